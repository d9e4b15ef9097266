import pytest

# Not a test file itself, but full of assertions.
pytest.register_assert_rewrite("tests.end_to_end.sdk_scenarios")
