"""From a request's conversation to its prompt and the plan of its answer, off the event loop."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread

from models.boundary import Boundary
from models.conversation import Block, Conversation, Text, Thinking, ToolCall, Turn
from models.families.boundaries import boundaries
from models.families.family import Family, NotRendered, PreparedPrompt
from service.errors import ApiError
from service.guiding import Guides
from service.memory import give_back_freed_memory
from service.prompt_digests import PromptDigests
from service.requests.answer_plan import AfterSummary, AnswerPlan
from service.requests.compaction import asked_for_summary, task_with
from service.requests.context import too_long
from service.requests.context_editing import Edited, edited
from service.requests.prepare import MayCompact, Prepared
from service.shared_tokens import shared_tokens
from service.wire.context_edits import ClearToolUses, Compact
from storage.json_text import to_json

# Beyond this nothing is tokenised at once: it takes up to 500 bytes a character while it lasts, and
# no served context holds so much (four characters a token is usual; twelve is rare; in small
# contexts a run of spaces, with 64 a token, shall still be counted).
_CHARACTERS_AT_LEAST = 1_000_000
_CHARACTERS_PER_TOKEN = 12
# Above this the memory it took is worth giving back.
_CHARACTERS_OF_A_LONG_PROMPT = 100_000
# Two, so that one huge prompt does not keep all others from being counted.
_AT_ONCE = 2
# Of those that are counted beyond that in portions, for up to some 20 s; others do not wait for it.
_LONG_AT_ONCE = 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, how the engine is to guide the answer (`GuideSpec` as JSON), where the prompt is
    to be kept, in ascending order, how many tokens it had before it was edited, and the SHA-256 of
    the uploaded files that it was made of, by id."""

    ids: "array[int]"
    plan: AnswerPlan
    digests: PromptDigests
    guide: dict[str, Any] | None = None
    boundaries: tuple[Boundary, ...] = ()
    original_tokens: int = 0
    files: Mapping[str, str] = field(default_factory=dict[str, str])


class Prompts:
    """The one path for counting and for generating, so both see the same tokens."""

    def __init__(self, family: Family, guides: Guides, context_tokens: int) -> None:
        self._family = family
        self._guides = guides
        self._context_tokens = context_tokens
        self._most = max(_CHARACTERS_AT_LEAST, _CHARACTERS_PER_TOKEN * context_tokens)
        self._limiter = CapacityLimiter(_AT_ONCE)
        self._long_limiter = CapacityLimiter(_LONG_AT_ONCE)

    async def prepare(self, prepared: Prepared, *, counts: bool = False) -> Prompt:
        """Raises ApiError 400 for a conversation too long to be tokenised at all, and for one
        that the family cannot write down. One that only `counts` may be as long as it likes, if it
        can be encoded in portions."""
        # What is cleared has to be counted first, too.
        whole = counts or any(isinstance(each, ClearToolUses) for each in prepared.edits or ())
        length = await to_thread.run_sync(_characters, prepared.conversation, limiter=self._limiter)
        is_long = whole and length > self._most
        return await to_thread.run_sync(
            partial(self._prepare, prepared, length, whole=whole),
            limiter=self._long_limiter if is_long else self._limiter,
        )

    def _prepare(self, prepared: Prepared, length: int, *, whole: bool) -> Prompt:
        try:
            self._check_length(prepared.conversation, length, whole=whole)
            edits = edited(
                prepared.conversation,
                prepared.edits or (),
                self._family.render,
                self._context_tokens,
            )
            if edits.due is None or prepared.may_compact is None:
                return self._prompt(prepared, edits)
            return self._asking_first(prepared, edits, edits.due, prepared.may_compact)
        except NotRendered as error:
            raise ApiError.invalid(f"messages: {error}") from error
        finally:
            if length > _CHARACTERS_OF_A_LONG_PROMPT:
                give_back_freed_memory()

    def _prompt(self, prepared: Prepared, edits: Edited) -> Prompt:
        plan, guide = self._plan(prepared, edits)
        return Prompt(
            edits.rendered.ids,
            plan,
            PromptDigests.of(prepared.conversation),
            guide,
            self._boundaries(edits.conversation, edits.rendered),
            edits.original_tokens,
        )

    def _plan(self, prepared: Prepared, edits: Edited) -> tuple[AnswerPlan, dict[str, Any] | None]:
        """And how the engine is to guide the answer."""
        rendered = edits.rendered
        guide = self._guides.of(edits.conversation.form, rendered.opens, prepared.tool_paths)
        plan = AnswerPlan(
            guide.form,
            rendered.opens,
            prepared.display,
            guide.unguided,
            rendered.answer_from,
            edits=None if prepared.edits is None else edits.applied,
            summary=prepared.summary,
            findable=prepared.findable,
        )
        return plan, guide.spec.as_json() if guide.spec else None

    def _asking_first(
        self, prepared: Prepared, edits: Edited, compact: Compact, after: MayCompact
    ) -> Prompt:
        """For a summary, after which the answer comes; or the client again, if it is to pause."""
        task = task_with(compact.instructions)
        conversation = asked_for_summary(edits.conversation, task)
        rendered = self._family.render(conversation)
        asking = self._prompt(
            replace(prepared, summary=after.summary),
            replace(edits, conversation=conversation, rendered=rendered),
        )
        if compact.pause_after_compaction:
            return asking
        plan, _ = self._plan(prepared, edits)
        kept = shared_tokens(rendered.ids, edits.rendered.ids)
        then = AfterSummary(
            plan,
            after.system,
            conversation.effort,
            after.max_tokens,
            kept,
            tuple(edits.rendered.ids[kept:]),
        )
        return replace(asking, plan=replace(asking.plan, unguided=plan.unguided, then=then))

    def _boundaries(
        self, conversation: Conversation, rendered: PreparedPrompt
    ) -> tuple[Boundary, ...]:
        # They cost several renderings: nothing for a prompt that will not be run.
        if len(rendered.ids) > self._context_tokens:
            return ()
        return boundaries(self._family, conversation, rendered)

    def _check_length(self, conversation: Conversation, length: int, *, whole: bool) -> None:
        if length <= self._most:
            return
        if whole:
            at_once = self._family.encoded_at_once(_texts(conversation))
            if max(map(len, at_once)) <= self._most:
                return
        counted = len(self._family.render(_beginning(conversation, self._most)).ids)
        if counted > self._context_tokens:
            raise ApiError.invalid(
                f"{too_long(counted, self._context_tokens)}"
                f" (counted in the first {self._most} of {length} characters)"
            )
        raise ApiError.invalid(f"prompt is too long: {length} characters > {self._most} maximum")


def _characters(conversation: Conversation) -> int:
    tools = sum(len(_json(each.schema)) for each in conversation.form.tools)
    return tools + sum(len(_written(each)) for turn in conversation.turns for each in turn.blocks)


def _beginning(conversation: Conversation, characters: int) -> Conversation:
    """As one turn: how it is divided makes little of so many tokens."""
    return Conversation((Turn.of("user", "".join(_texts(conversation))[:characters]),))


def _texts(conversation: Conversation) -> list[str]:
    """Those of the tools as one, and of each turn."""
    tools = "".join(_json(each.schema) for each in conversation.form.tools)
    return [tools, *("".join(map(_written, turn.blocks)) for turn in conversation.turns)]


def _written(block: Block) -> str:
    match block:
        case Text(text) | Thinking(text):
            return text
        case ToolCall():
            return _json(block.arguments)
        case _:
            return block.text


def _json(value: dict[str, Any]) -> str:
    return to_json(value).decode()
