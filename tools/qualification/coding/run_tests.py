"""A child of `testing`: TESTS PROGRAM are two folders, and the tests import the program.

The tested code was written by a model. It cannot stand in for a module of Python's, since that
comes first on the path, nor pass by ending the process, since it is not told with which exit code.
That is no proof against code that changes unittest itself, or looks for the code in its frames:
all is one process.
"""

import sys
import unittest

FAILED = 87  # an exit code that nothing else has


def main() -> int:
    """The exit code: if all have passed, the byte on stdin. Tests that were skipped have not."""
    passed = sys.stdin.buffer.read(1)[0]
    tests, program = sys.argv[1:]
    sys.path += [tests, program]
    suite = unittest.defaultTestLoader.discover(tests, top_level_dir=tests)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    left_out = result.skipped or result.expectedFailures or not result.testsRun
    return passed if result.wasSuccessful() and not left_out else FAILED


if __name__ == "__main__":
    sys.exit(main())
