"""Which of Qwen's dialects a checkpoint speaks, as its own chat template shows."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from models.conversation import Effort
from models.families.chat_template import ChatTemplate, Message, TemplateFailed
from models.families.chatml import END, START, Pieces, pieces_of
from models.families.prompt_tokens import PromptTokens

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How turns are written.

    If it `strips`, texts stand without the white space around them. `calls` is the form of calls;
    in tags, booleans and nulls may be written `as_python` does. `text_end` stands between a text
    and the call after it, and the others around, between and after the results in a user turn.

    If it `marks_no_thinking`, every turn that has none says so. `opens` is what an answer begins
    with, when it is to think and when it is not, which not all templates can be told; `efforts`
    are those that the template knows.
    """

    strips: bool
    calls: Literal["json", "xml"]
    as_python: bool
    text_end: str
    result_start: Pieces
    result_between: Pieces
    result_end: Pieces
    thinks: bool
    marks_no_thinking: bool
    opens: tuple[Pieces, Pieces]
    can_be_told_not_to_think: bool
    efforts: tuple[Effort, ...]


def dialect_of(template: ChatTemplate, tokens: PromptTokens) -> Dialect:
    """Raises ValueError for a template that writes no calls as Qwen does, or fails."""
    return _Probe(template, tokens).dialect()


_ARGUMENTS: dict[str, Any] = {"word": "x", "yes": True}
_CALLS: list[dict[str, Any]] = [
    {"id": str(place), "type": "function", "function": {"name": "name", "arguments": _ARGUMENTS}}
    for place in range(2)
]
_ASKED: Message = {"role": "user", "content": " asked "}
_RESULTS: list[Message] = [
    {"role": "tool", "tool_call_id": str(place), "name": "name", "content": f"RESULT{place}"}
    for place in range(2)
]
_NO_THINKING = f"{THINK}\n\n{THINK_END}\n\n"


class _Probe:
    def __init__(self, template: ChatTemplate, tokens: PromptTokens) -> None:
        self._template, self._tokens = template, tokens
        self._names = {id: name for name, id in tokens.special.items()}
        self._has_thinking = {THINK, THINK_END} <= tokens.special.keys()

    def dialect(self) -> Dialect:
        if missing := {START, END, CALL, CALL_END} - self._tokens.special.keys():
            raise ValueError(f"its tokenizer lacks {min(missing)}")
        plain, thought = self._history(), self._history(reasoning_content="THOUGHT")
        before, _, rest = plain.partition("SAID")
        text_end, _, rest = rest.partition(CALL)
        call, _, rest = rest.partition(CALL_END)
        between, _, rest = rest.partition(CALL)
        answered = f"{call}{CALL_END}{END}\n{START}user"
        _check(bool(call) and between == "\n" and rest.startswith(answered), "calls")
        rest = rest.removeprefix(answered)
        start, _, rest = rest.partition("RESULT0")
        result_between, _, rest = rest.partition("RESULT1")
        end, _, rest = rest.partition(END)
        _check("<tool_response>" in start and rest.startswith(f"\n{START}assistant\n"), "results")
        is_xml = "<function=name>" in call
        _check(is_xml or '{"name": "name", "arguments": ' in call, "calls")
        marks_no_thinking = before.endswith(f"{START}assistant\n{_NO_THINKING}")
        _check(marks_no_thinking or before.endswith(f"{START}assistant\n"), "answers")
        opens = self._opens(True) or "", self._opens(False)
        thinks = self._has_thinking and any(THINK in (each or "") for each in (*opens, thought))
        if thinks:
            written = f"{START}assistant\n{THINK}\nTHOUGHT\n{THINK_END}\n\nSAID"
            _check(written in thought and opens[0] in ("", f"{THINK}\n"), "thinking")
        return Dialect(
            strips="user\nasked" in plain,
            calls="xml" if is_xml else "json",
            as_python="True" in call,
            text_end=text_end,
            result_start=self._pieces(start),
            result_between=self._pieces(result_between),
            result_end=self._pieces(end),
            thinks=thinks,
            marks_no_thinking=marks_no_thinking,
            opens=(self._pieces(opens[0]), self._pieces(_NO_THINKING)) if thinks else ((), ()),
            can_be_told_not_to_think=opens[1] is not None,
            efforts=self._efforts() if thinks else (),
        )

    def _history(self, **reasoning: str) -> str:
        """Two calls and their results, after the last question, which is where thinking stays."""
        called: Message = {"role": "assistant", "content": "SAID", "tool_calls": _CALLS}
        return self._written([_ASKED, called | reasoning, *_RESULTS])

    def _opens(self, thinks: bool) -> str | None:
        """What an answer begins with; None if the template knows no answer of that kind."""
        try:
            written = self._written([_ASKED], enable_thinking=thinks)
        except ValueError:
            return None
        return written.rpartition(f"{START}assistant\n")[2]

    def _efforts(self) -> tuple[Effort, ...]:
        """Those that the template tells from a word that is none."""
        unknown = self._with_effort("unknown")
        written = {each: self._with_effort(each) for each in get_args(Effort)}
        return tuple(each for each, text in written.items() if text not in (None, unknown))

    def _with_effort(self, effort: str) -> str | None:
        try:
            return self._written([_ASKED], enable_thinking=True, reasoning_effort=effort)
        except ValueError:
            return None

    def _written(self, messages: list[Message], **variables: Any) -> str:
        try:
            pieces = self._template.pieces(
                messages, add_generation_prompt=True, preserve_thinking=True, **variables
            )
        except TemplateFailed as error:
            raise ValueError(f"it fails: {error}") from error
        return "".join(self._names[each] if isinstance(each, int) else each for each in pieces)

    def _pieces(self, text: str) -> Pieces:
        return pieces_of(text, self._tokens.special)


def _check(is_known: bool, what: str) -> None:
    if not is_known:
        raise ValueError(f"it writes {what} in a way of its own")
