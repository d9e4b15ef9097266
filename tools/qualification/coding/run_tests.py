"""A child of `testing`: TESTS PROGRAM are two folders, and the tests import the program.

The tested code was written by a model. It cannot stand in for a module of Python's, since that
comes first on the path, and it passes no test by ending the process.
"""

import sys
import unittest

PASSED, FAILED = 86, 87  # exit codes that nothing else has


def main() -> int:
    """The exit code. Tests that were skipped have not passed."""
    tests, program = sys.argv[1:]
    sys.path += [tests, program]
    suite = unittest.defaultTestLoader.discover(tests, top_level_dir=tests)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    left_out = result.skipped or result.expectedFailures or not result.testsRun
    return PASSED if result.wasSuccessful() and not left_out else FAILED


if __name__ == "__main__":
    sys.exit(main())
