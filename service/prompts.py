"""From a request's conversation to its prepared prompt, off the event loop."""

from anyio import CapacityLimiter, to_thread

from models.conversation import Conversation, Turn
from models.families.family import Family, PreparedPrompt
from service.errors import ApiError

# Beyond this nothing is tokenised: memory grows by about 100 bytes a character, and no served
# context holds so much (four characters a token is usual; twelve is rare).
_CHARACTERS_AT_LEAST = 2_000_000
_CHARACTERS_PER_TOKEN = 12
# Two, so that one huge prompt does not keep all others from being counted.
_AT_ONCE = 2


class Prompts:
    """The one path for counting and for generating, so both see the same tokens."""

    def __init__(self, family: Family, context_tokens: int) -> None:
        self._family = family
        self._context_tokens = context_tokens
        self._most = max(_CHARACTERS_AT_LEAST, _CHARACTERS_PER_TOKEN * context_tokens)
        self._limiter = CapacityLimiter(_AT_ONCE)

    async def prepare(self, conversation: Conversation) -> PreparedPrompt:
        """Raises ApiError 400 for a conversation too long to be tokenised at all."""
        return await to_thread.run_sync(self._prepare, conversation, limiter=self._limiter)

    def _prepare(self, conversation: Conversation) -> PreparedPrompt:
        length = sum(len(turn.text) for turn in conversation.turns)
        if length <= self._most:
            return self._family.render(conversation)
        counted = len(self._family.render(_beginning(conversation, self._most)).ids)
        if counted > self._context_tokens:
            raise ApiError.invalid(
                f"prompt is too long: {counted} tokens > {self._context_tokens} maximum"
                f" (counted in the first {self._most} of {length} characters)"
            )
        raise ApiError.invalid(f"prompt is too long: {length} characters > {self._most} maximum")


def _beginning(conversation: Conversation, characters: int) -> Conversation:
    turns: list[Turn] = []
    for turn in conversation.turns:
        if characters <= 0:
            break
        turns.append(Turn(turn.role, turn.text[:characters]))
        characters -= len(turn.text)
    return Conversation(tuple(turns))
