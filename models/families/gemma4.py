"""Gemma 4: channels of thought, and calls in the model's own turn."""

from collections.abc import Iterable, Sequence

from models.catalog import Checkpoint, CheckpointError
from models.conversation import AnswerForm, Conversation, Tool
from models.families.chat_template import ChatTemplate, Message, TemplateFailed, functions
from models.families.family import Capabilities, Family, NotRendered, PreparedPrompt
from models.families.gemma4_answer import CHANNEL, MARKERS, THOUGHT, Gemma4Syntax
from models.families.gemma4_guide import gemma4_guide
from models.families.gemma4_turns import (
    RESPONSE,
    RESPONSE_END,
    TURN,
    TURN_END,
    Gemma4Turns,
)
from models.families.kept_heads import Head, KeptHeads
from models.families.own_tokens import OwnTokens
from models.families.prompt_tokens import PromptTokens
from models.grammar.guide_spec import GuideSpec
from models.grammar.validation import Schemas
from models.parsing.answer import AnswerParser

_USER: Message = {"role": "user", "content": "x"}
_CALLS: list[Message] = [
    _USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "0", "type": "function", "function": {"name": "x", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_call_id": "0", "name": "x", "content": "x"},
]


class Gemma4Family(Family):
    """What stands before the first turn of user or model, tools and all, is written by the
    checkpoint's own template; so is what the model's answer begins with. The turns are ours."""

    name = "gemma4"
    capabilities = Capabilities(
        tools=True,
        structured_outputs=True,
        thinking=frozenset({"adaptive", "enabled", "between_tools"}),
    )

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if the checkpoint's own template is not of this form."""
        self._tokens = PromptTokens(checkpoint)
        self._template = ChatTemplate(checkpoint, self._tokens)
        self._heads = KeptHeads()
        names = (*MARKERS, TURN, TURN_END, RESPONSE, RESPONSE_END)
        self._ids: dict[str, int] = dict(zip(names, self._tokens.ids(*names), strict=True))
        markers = (self._ids[each] for each in (*MARKERS, TURN))
        self._own = OwnTokens(self._tokens, markers)
        # A model that opens a response has ended its calls, and one that opens a turn its own.
        stops = (self._ids[each] for each in (TURN, TURN_END, RESPONSE))
        self.stop_ids = checkpoint.stop_ids | frozenset(stops)
        try:
            self._beginnings = {
                (after_result, thinks): self._beginning(after_result, thinks)
                for after_result in (False, True)
                for thinks in (False, True)
            }
            self._head("x", (), thinks=False)
        except (LookupError, TemplateFailed) as error:
            raise CheckpointError(
                f"{checkpoint.id} has a chat template that does not write Gemma 4's turns ({error})"
            ) from error

    def render(self, conversation: Conversation) -> PreparedPrompt:
        turns, form = conversation.turns, conversation.form
        if conversation.prefills and not turns[-1].blocks:
            turns = turns[:-1]
        system = turns[0].text if turns and turns[0].role == "system" else ""
        try:
            head = self._head(system, form.listed_tools, thinks=form.thinking.thinks)
        except (LookupError, TemplateFailed) as error:
            raise NotRendered(
                f"the model's chat template cannot write the system turn and the tools: {error}"
            ) from error
        written = Gemma4Turns(self._ids, self._own)
        prefills = bool(turns) and turns[-1].role == "assistant"
        written.write(turns[1:] if system else turns, prefills=prefills)
        before = self._tokens.encode((*head, *written.pieces))
        if prefills:
            return PreparedPrompt(before)
        turn = () if written.goes_on else (self._ids[TURN], "model\n")
        beginning = self._beginnings[written.goes_on, form.thinking.thinks]
        return PreparedPrompt(
            before + self._tokens.encode((*turn, *beginning)),
            "thought" if beginning == [self._ids[CHANNEL], THOUGHT] else "text",
            len(before),
        )

    def encoded_at_once(self, turns: Iterable[str]) -> Iterable[str]:
        return self._tokens.encoded_at_once(turns)

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(
            self._tokens.token_bytes,
            Gemma4Syntax(form, Schemas(form.tools).fault, opens),
            markers={self._ids[each]: each for each in MARKERS},
            stop_sequences=form.stop_sequences,
        )

    def guide(self, form: AnswerForm, opens: str = "text") -> GuideSpec | None:
        return gemma4_guide(form, opens, self._ids)

    def _head(self, system: str, tools: Sequence[Tool], *, thinks: bool) -> Head:
        """All that stands before the turns. Raises TemplateFailed, LookupError."""
        messages = [{"role": "system", "content": system}, _USER] if system else [_USER]
        offered = functions(tools)

        def write() -> list[str | int]:
            pieces = self._template.pieces(
                messages, tools=offered, enable_thinking=thinks, add_generation_prompt=True
            )
            return pieces[: _last(pieces, self._ids[TURN], "user\n")]

        return self._heads.of([system, offered, thinks], write)

    def _beginning(self, after_result: bool, thinks: bool) -> list[str | int]:
        """What the template begins an answer with. Raises TemplateFailed, LookupError."""
        pieces = self._template.pieces(
            _CALLS if after_result else [_USER],
            enable_thinking=thinks,
            add_generation_prompt=True,
        )
        if not after_result:
            place = _last(pieces, self._ids[TURN], "model\n") + 1
            return [str(pieces[place]).removeprefix("model\n"), *pieces[place + 1 :]]
        ends = [place for place, each in enumerate(pieces) if each == self._ids[RESPONSE_END]]
        # Older templates know no results in messages of their own.
        return pieces[ends[-1] + 1 :] if ends else []


def _last(pieces: Sequence[str | int], marker: int, text: str) -> int:
    """Where the marker stands for the last time before such a text. Raises LookupError."""
    for place in reversed(range(len(pieces) - 1)):
        after = pieces[place + 1]
        if pieces[place] == marker and isinstance(after, str) and after.startswith(text):
            return place
    raise LookupError(f"no {text.strip()} after its marker")
