"""From a request's conversation to its prepared prompt, off the event loop."""

from anyio import CapacityLimiter, to_thread

from models.conversation import Conversation, Turn
from models.families.family import Family, PreparedPrompt
from service.errors import ApiError
from service.memory import give_back_freed_memory
from service.requests.context import too_long

# Beyond this nothing is tokenised: it takes up to 500 bytes a character while it lasts, and no
# served context holds so much (four characters a token is usual; twelve is rare; in small contexts
# a run of spaces, with 64 a token, shall still be counted).
_CHARACTERS_AT_LEAST = 1_000_000
_CHARACTERS_PER_TOKEN = 12
# Above this the memory it took is worth giving back.
_CHARACTERS_OF_A_LONG_PROMPT = 100_000
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
        try:
            return self._rendered(conversation, length)
        finally:
            if length > _CHARACTERS_OF_A_LONG_PROMPT:
                give_back_freed_memory()

    def _rendered(self, conversation: Conversation, length: int) -> PreparedPrompt:
        if length <= self._most:
            return self._family.render(conversation)
        counted = len(self._family.render(_beginning(conversation, self._most)).ids)
        if counted > self._context_tokens:
            raise ApiError.invalid(
                f"{too_long(counted, self._context_tokens)}"
                f" (counted in the first {self._most} of {length} characters)"
            )
        raise ApiError.invalid(f"prompt is too long: {length} characters > {self._most} maximum")


def _beginning(conversation: Conversation, characters: int) -> Conversation:
    turns: list[Turn] = []
    for turn in conversation.turns:
        if characters <= 0:
            break
        turns.append(Turn.of(turn.role, turn.text[:characters]))
        characters -= len(turn.text)
    return Conversation(tuple(turns))
