"""Media types, as they are compared: by their names alone."""


def bare(given: str) -> str:
    """`text/plain` of `Text/Plain; charset=utf-8`."""
    return given.partition(";")[0].strip().lower()
