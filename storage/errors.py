class StorageError(Exception):
    """A fault of the data folder, told in one sentence: what failed, where, and what to do."""
