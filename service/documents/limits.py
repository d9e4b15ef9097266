"""How much is read of documents, and what that may take."""

MOST_MIB = 32
MOST_BYTES = MOST_MIB << 20  # the API's own limit, as is that of pages in a request
MOST_PAGES = 600
MOST_CHARACTERS = 8_000_000  # of one PDF; no model that is served has a context for so many

# Of the process that reads one PDF. A text PDF of 600 pages takes a tenth of either.
MOST_CPU_SECONDS = 20
MOST_MEMORY_BYTES = 1 << 30
# That all documents of one request may take together, however little work they are.
MOST_SECONDS = 60.0
