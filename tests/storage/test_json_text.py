import math

from hypothesis import example, given
from hypothesis import strategies as st

from storage.json_text import from_json, to_json


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text())
@example(9007199254740993)
@example(2**63)
@example(2**64)
@example(-(2**63) - 1)
@example(10**400)
@example(math.pi * 1e-30)
@example("-12345678901234567890")
def test_what_is_written_is_read_again_exactly(value: object) -> None:
    again = from_json(to_json({"value": [value]}))["value"][0]
    assert (again, type(again)) == (value, type(value))
