"""What is read of documents at most."""

MOST_MIB = 32
MOST_BYTES = MOST_MIB << 20  # the API's own limit, as is that of pages in a request
MOST_PAGES = 600
