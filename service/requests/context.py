"""Whether a prompt and its answer fit the model."""

from service.errors import ApiError


def too_long(input_tokens: int, context_tokens: int) -> str:
    """The words that clients look for; more may follow them."""
    return f"prompt is too long: {input_tokens} tokens > {context_tokens} maximum"


def summary_tokens(context_tokens: int) -> int:
    """The most that a summary may have which nobody said the length of."""
    return min(context_tokens // 8, 8192)


def check_fits(
    input_tokens: int,
    max_tokens: int,
    *,
    context_tokens: int,
    max_output_tokens: int,
    model: str,
) -> None:
    """Raises ApiError 400 unless prompt and answer fit.

    Clients parse the first two texts, to compact the history or to lower `max_tokens`: the words
    and the order of the checks are part of the contract.
    """
    if input_tokens > context_tokens:
        raise ApiError.invalid(too_long(input_tokens, context_tokens))
    if input_tokens + max_tokens > context_tokens:
        raise ApiError.invalid(
            "input length and `max_tokens` exceed context limit:"
            f" {input_tokens} + {max_tokens} > {context_tokens},"
            " decrease input length or `max_tokens` and try again"
        )
    if max_tokens > max_output_tokens:
        raise ApiError.invalid(
            f"max_tokens: {max_tokens} > {max_output_tokens},"
            f" which is the maximum allowed number of output tokens for {model}"
        )
