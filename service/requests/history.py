"""The messages of a request as turns of a conversation."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from models.conversation import Block, Mark, Role, Text, Thinking, ToolCall, ToolResult, Turn
from service.errors import ApiError
from service.requests.compaction import is_compaction
from service.requests.found_tools import told_of_search
from service.requests.marked_text import ended, joined, longest, merged
from service.requests.readable import Readable, block_text, text_of
from service.requests.served import Served
from service.requests.volatile_lines import without_volatile_lines
from service.signatures import Altered, Foreign, Genuine
from service.tool_search.definitions import SEARCHES
from service.wire.blocks import (
    AssistantBlock,
    CompactionBlock,
    ContainerUploadBlock,
    FallbackBlock,
    McpToolListingBlock,
    RedactedThinkingBlock,
    ServerToolResultBlock,
    SystemBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolResultContent,
    ToolSearchError,
    ToolSearchResultBlock,
    ToolUseBlock,
)
from service.wire.requests import (
    AssistantMessage,
    BaseRequest,
    SystemMessage,
    UserMessage,
)

B = TypeVar("B", bound=BaseModel)


class History:
    """Reads messages in order. What it has read is valid once `end` was called.

    Neighbours of one role become one turn, their texts paragraphs. Results stand first in their
    turn, in the order of their calls; so do those of searches that were run here, though clients
    send them within the answer, which goes on in another turn. A system turn keeps its place, but
    for one between calls and their results, which comes after these; one that is to be cleared at
    the next user message is left out once there is one. What is `kept` of it, by its path, is
    marked; of what the model is not shown, the end of what was said before. Where it refers to a
    tool of which there is a definition, by its name, it has that. All methods raise ApiError 400.
    """

    def __init__(
        self, served: Served, kept: Mapping[str, int], definitions: Mapping[str, str]
    ) -> None:
        self.dropped: dict[str, None] = {}  # types of blocks that the model is not shown
        self.marks_before: list[Mark] = []  # of what is to be kept before anything is said
        self._served = served
        self._kept = kept
        self._definitions = definitions
        self._turns: list[tuple[Role, list[Block]]] = []
        self._calls: dict[str, str] = {}  # paths of all calls by id
        self._open: dict[str, ToolCall] = {}  # calls without a result so far
        self._answered: dict[str, int] = {}  # places of the last turn's calls in it
        self._held: list[Block] = []  # of system turns between calls and their results
        self._found: list[ToolResult] = []  # results of searches, not yet in a turn
        self._thoughts: dict[str, int] = {}  # the last place of thinking by message id

    @classmethod
    def of(
        cls,
        request: BaseRequest,
        served: Served,
        kept: Mapping[str, int],
        definitions: Mapping[str, str],
    ) -> "History":
        history = cls(served, kept, definitions)
        history._add("system", history._told(request.system, "system"))
        users = (n for n, each in enumerate(request.messages) if isinstance(each, UserMessage))
        last_question = max(users, default=0)
        for index, message in enumerate(request.messages):
            path = f"messages.{index}"
            match message:
                case SystemMessage(clear_at="next_user_message") if index < last_question:
                    history._system(message, path, shown=False)
                case SystemMessage():
                    history._system(message, path)
                case UserMessage():
                    history._user(message, f"{path}.content")
                case AssistantMessage():
                    history._assistant(message, f"{path}.content")
        history._end(len(request.messages) - 1, goes_on=not is_compaction(request))
        return history

    @classmethod
    def before_messages(cls, request: BaseRequest, served: Served) -> str:
        """The system text, without that of messages."""
        return joined(cls(served, {}, {})._told(request.system, "system")).text

    @classmethod
    def answered(
        cls,
        content: Sequence[dict[str, Any]],
        served: Served,
        definitions: Mapping[str, str],
    ) -> tuple[Turn, ...]:
        """The turns that an answer is, the blocks of which a client sends back as they are. The
        last has results, if these are what it ends with."""
        history = cls(served, {}, definitions)
        answer = AssistantMessage.model_validate({"role": "assistant", "content": content})
        history._assistant(answer, "content")
        history._end_searches()
        return history.turns

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(Turn(role, tuple(merged(blocks))) for role, blocks in self._turns)

    def _system(self, message: SystemMessage, path: str, *, shown: bool = True) -> None:
        told = self._told(message.content, f"{path}.content")
        if not shown:
            told = [_emptied(each) for each in told]
        if self._open:
            self._held += told
        else:
            if shown:
                self._end_searches()
            self._add("system", told)

    def _told(self, content: str | Sequence[SystemBlock] | None, path: str) -> list[Text]:
        leads = all(role == "system" for role, _ in self._turns)
        return [
            without_volatile_lines(self._text(block, f"{path}.{index}"), leads=leads)
            if isinstance(block, TextBlock)
            else self._nothing(f"{path}.{index}")  # it changes the tools, see tools.py
            for index, block in enumerate(_blocks(content or ""))
        ]

    def _user(self, message: UserMessage, path: str) -> None:
        results: list[ToolResult] = []
        texts: list[Text] = []
        for index, block in enumerate(_blocks(message.content)):
            if isinstance(block, ToolResultBlock):
                results.append(self._result(block, f"{path}.{index}"))
            else:
                texts.append(self._text(block, f"{path}.{index}"))
        if not results and not any(each.text for each in texts):
            raise ApiError.invalid(f"{path}: user messages must hold some text")
        results += self._found
        self._found = []
        # Sorted here too, since what comes after them may mark the last.
        self._add("user", [*sorted(results, key=self._place), *texts])
        if results and not self._open:
            self._turns[-1][1].sort(key=self._place)
            self._add("system", self._held)
            self._held = []

    def _place(self, block: Block) -> int:
        """Results before all else, in the order of their calls."""
        if isinstance(block, ToolResult):
            return self._answered[block.call_id]
        return len(self._answered)

    def _result(self, block: ToolResultBlock, path: str) -> ToolResult:
        call = self._called(block, path)
        content, defines = block.content, False
        if isinstance(content, list):
            content = [self._defined(each) for each in content]
            defines = content != block.content
        text = text_of(content, f"{path}.content", self._served.model, self._kept)
        marks = ended(text, self._kept.get(path)).marks
        return ToolResult(call.id, call.name, text.text, bool(block.is_error), marks, defines)

    def _search_result(self, block: ToolSearchResultBlock, path: str) -> ToolResult:
        call = self._called(block, path)
        text = Text(told_of_search(block, self._definitions))
        failed = isinstance(block.content, ToolSearchError)
        marks = ended(text, self._kept.get(path)).marks
        return ToolResult(call.id, call.name, text.text, failed, marks, defines_tools=not failed)

    def _defined(self, block: ToolResultContent) -> ToolResultContent:
        if isinstance(block, ToolReferenceBlock) and block.tool_name in self._definitions:
            return TextBlock.of(self._definitions[block.tool_name])
        return block

    def _called(self, block: ToolResultBlock | ToolSearchResultBlock, path: str) -> ToolCall:
        """The call that the result at `path` is of."""
        id = block.tool_use_id
        call = self._open.pop(id, None)
        if call is None and id in self._answered:
            raise ApiError.invalid(
                f"{path}.tool_use_id: each tool_use must have a single result, and {_shown(id)} has"
                " one already"
            )
        if call is None:
            raise ApiError.invalid(
                f"{path}.tool_use_id: unexpected tool_use_id {_shown(id)}: a {block.type} must have"
                " its tool_use in the assistant message before it"
            )
        return call

    def _end_searches(self) -> None:
        """What was searched is known, and what comes is said knowing it."""
        if self._found:
            self._add("user", sorted(self._found, key=self._place))
            self._found, self._answered = [], {}

    def _text(self, block: Readable, path: str) -> Text:
        return block_text(block, path, self._served.model, self._kept)

    def _nothing(self, path: str) -> Text:
        """What a block says that the model is not shown; it may be marked."""
        return ended(Text(""), self._kept.get(path))

    def _assistant(self, message: AssistantMessage, path: str) -> None:
        if not self._turns or self._turns[-1][0] != "assistant":
            self._check_answered()
            self._answered = {}
        if not self._summary(message, path):
            self._begin("assistant")
        for index, block in enumerate(_blocks(message.content)):
            if not self._open and not isinstance(block, ToolSearchResultBlock):
                self._end_searches()
            said = self._said(block, f"{path}.{index}")
            if said is not None:
                self._add("assistant", [said])

    def _summary(self, message: AssistantMessage, path: str) -> bool:
        """Whether there is nothing but what a summary says, instead of the messages before it: as
        if the user had said it."""
        blocks = _blocks(message.content)
        summaries = [each for each in blocks if isinstance(each, CompactionBlock)]
        if summaries and summaries[0].content is not None:
            self._add("user", [self._text(summaries[0], f"{path}.0")])
        return len(blocks) == len(summaries) > 0

    def _said(self, block: AssistantBlock, path: str) -> Block | None:
        """What the model is shown of a block of an earlier answer."""
        match block:
            case ThinkingBlock():
                return self._thought(block, path)
            case ToolUseBlock(type="tool_use"):
                return self._call(block, path)
            case ToolUseBlock(type="server_tool_use", name=name) if name in SEARCHES:
                return self._call(block, path)
            case (
                ToolUseBlock()
                | ServerToolResultBlock()
                | RedactedThinkingBlock()
                | McpToolListingBlock()
                | FallbackBlock()
                | ContainerUploadBlock()
            ):
                self.dropped[block.type] = None
                return self._nothing(path)
            case CompactionBlock(content=str()):
                return None  # it stands before the answer
            case ToolSearchResultBlock():
                self._found.append(self._search_result(block, path))
                return None
            case _:
                return self._text(block, path)

    def _call(self, block: ToolUseBlock, path: str) -> ToolCall:
        first = self._calls.setdefault(block.id, path)
        if first != path:
            raise ApiError.invalid(
                f"{path}.id: tool_use ids must be unique, and {_shown(block.id)} is that of {first}"
            )
        call = ToolCall(block.id, block.name, block.input, self._kept.get(path))
        self._open[block.id] = call
        self._answered[block.id] = len(self._answered)
        return call

    def _thought(self, block: ThinkingBlock, path: str) -> Thinking | Text | None:
        match self._served.signer.check(block.thinking, block.signature or ""):
            case Genuine(text, self._served.model, message_id, place, is_note):
                if place <= self._thoughts.get(message_id, -1):
                    raise _altered(path)
                self._thoughts[message_id] = place
                return Text(text) if is_note else Thinking(text)
            case Altered():
                raise _altered(path)
            case Genuine() | Foreign():
                pass
        self.dropped[block.type] = None
        return None

    def _end(self, last: int, *, goes_on: bool) -> None:
        self._check_answered(None if goes_on else "compaction_incomplete_turn")
        self._end_searches()
        if not self._turns or self._turns[-1][0] != "assistant":
            return
        said = list(merged(self._turns[-1][1]))
        if not said:
            self._turns.pop()  # there is nothing that the answer could go on with
        elif goes_on and not isinstance(said[-1], Text):
            raise ApiError.invalid(
                f"messages.{last}.content: a last assistant message must end with text, which the"
                " answer goes on with; leave it out for a new answer"
            )

    def _check_answered(self, code: str | None = None) -> None:
        if self._open:
            call = next(iter(self._open))
            raise ApiError.invalid(
                f"{self._calls[call]}: tool_use ids were found without tool_result blocks"
                f" immediately after: {_shown(call)}",
                code,
            )

    def _begin(self, role: Role) -> None:
        if not self._turns or self._turns[-1][0] != role:
            self._turns.append((role, []))

    def _add(self, role: Role, blocks: Sequence[Block]) -> None:
        """Texts that are empty make no turn: their marks are at the end of what was said before."""
        for block in blocks:
            if isinstance(block, Text) and not block.text:
                if block.marks:
                    self._mark_end(block.marks)
            else:
                self._begin(role)
                self._turns[-1][1].append(block)

    def _mark_end(self, marks: Sequence[Mark]) -> None:
        for _, blocks in reversed(self._turns):
            for place in reversed(range(len(blocks))):
                block = blocks[place]
                if not isinstance(block, Thinking):
                    blocks[place] = ended(block, longest(marks))
                    return
        self.marks_before += marks


def _blocks(content: str | Sequence[B]) -> Sequence[TextBlock | B]:
    return [TextBlock.of(content)] if isinstance(content, str) else content


def _emptied(text: Text) -> Text:
    return Text("", tuple(Mark(0, each.ttl_seconds) for each in text.marks))


def _shown(id: str) -> str:
    return id if len(id) <= 60 else id[:60] + "…"


def _altered(path: str) -> ApiError:
    return ApiError.invalid(
        f"{path}: this thinking is not as this server signed it; send it back unchanged and in its"
        " place, or leave the block out"
    )
