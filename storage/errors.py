import errno

# Of a file or folder that is gone or somebody else's.
_LASTING = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM}


class StorageError(Exception):
    """A fault of the data folder, told in one sentence: what failed, where, and what to do."""

    @property
    def may_pass(self) -> bool:
        """Whether the same may succeed later, for instance once there is room on the disk."""
        cause = self.__cause__
        return cause is not None and getattr(cause, "errno", None) not in _LASTING
