import pytest

from service.errors import ApiError
from service.requests.context import check_fits


def check(input_tokens: int, max_tokens: int) -> None:
    check_fits(input_tokens, max_tokens, context_tokens=2048, max_output_tokens=512, model="tiny")


@pytest.mark.parametrize(
    ("input_tokens", "max_tokens", "message"),
    [
        (2148, 10, "prompt is too long: 2148 tokens > 2048 maximum"),
        (2049, 0, "prompt is too long: 2049 tokens > 2048 maximum"),
        (2049, 2**63, "prompt is too long: 2049 tokens > 2048 maximum"),
        (
            1998,
            20000,
            "input length and `max_tokens` exceed context limit: 1998 + 20000 > 2048,"
            " decrease input length or `max_tokens` and try again",
        ),
        (
            2048,
            1,
            "input length and `max_tokens` exceed context limit: 2048 + 1 > 2048,"
            " decrease input length or `max_tokens` and try again",
        ),
        (
            10,
            513,
            "max_tokens: 513 > 512, which is the maximum allowed number of output tokens for tiny",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_clients_look_for(
    input_tokens: int, max_tokens: int, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        check(input_tokens, max_tokens)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    assert caught.value.message == message


@pytest.mark.parametrize(("input_tokens", "max_tokens"), [(2048, 0), (1536, 512), (1, 0)])
def test_a_prompt_and_answer_that_fill_the_context_exactly_fit(
    input_tokens: int, max_tokens: int
) -> None:
    check(input_tokens, max_tokens)
