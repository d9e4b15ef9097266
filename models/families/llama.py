"""The llama family as SmolLM2 speaks it: ChatML turns around plain text."""

from collections.abc import Iterable, Sequence

from models.catalog import Checkpoint, CheckpointError
from models.conversation import AnswerForm, Conversation, Turn
from models.families.chat_template import ChatTemplate, TemplateFailed
from models.families.chatml import ChatML, Pieces
from models.families.family import Capabilities, Family, PreparedPrompt
from models.families.own_tokens import OwnTokens
from models.families.plain import readable
from models.families.prompt_tokens import Piece, PromptTokens
from models.grammar.guide_spec import Constrained, Ended, GuideSpec
from models.grammar.json_grammar import output_grammar
from models.parsing.answer import AnswerParser
from models.parsing.syntax import PlainText


class LlamaFamily(Family):
    """Renders `<|im_start|>ROLE\\nTEXT<|im_end|>\\n` for every turn, wherever it stands. Calls and
    results are text."""

    name = "llama"
    capabilities = Capabilities(structured_outputs=True)

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if the checkpoint's own template is not of this form."""
        self._tokens = PromptTokens(checkpoint)
        self._chatml = ChatML(self._tokens)
        self._own = OwnTokens(self._tokens, (self._chatml.start,))
        template = ChatTemplate(checkpoint, self._tokens)
        try:
            self._default_system = self._system_of(template)
        except (TemplateFailed, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint.id} has a chat template that does not write ChatML turns ({error})"
            ) from error
        # A model that opens another turn has ended its own.
        self.stop_ids = checkpoint.stop_ids | {self._chatml.start, self._chatml.end}

    def render(self, conversation: Conversation) -> PreparedPrompt:
        turns = conversation.turns
        if self._default_system and turns[0].role != "system":
            turns = (Turn.of("system", self._default_system), *turns)
        *said, last = turns if conversation.prefills else (*turns, _ANSWER)
        before = self._tokens.encode(self._said(said))
        return PreparedPrompt(
            before + self._tokens.encode(self._begun(last)),
            answer_from=None if conversation.prefills else len(before),
        )

    def encoded_at_once(self, turns: Iterable[str]) -> Iterable[str]:
        return self._tokens.encoded_at_once(turns)

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(
            self._tokens.token_bytes, PlainText(), stop_sequences=form.stop_sequences
        )

    def guide(self, form: AnswerForm, opens: str = "text") -> GuideSpec | None:
        if form.output_schema is None or not form.guided:
            return None
        return GuideSpec((Constrained(output_grammar(form.output_schema), then=1), Ended()))

    def _said(self, turns: Sequence[Turn]) -> Pieces:
        return tuple(piece for each in turns for piece in self._turn(each))

    def _turn(self, turn: Turn) -> Pieces:
        if own := self._own.of(turn):
            return self._chatml.ended(own)
        return self._chatml.turn(turn.role, readable(turn))

    def _begun(self, turn: Turn) -> Pieces:
        return self._chatml.beginning(turn.role, readable(turn))

    def _system_of(self, template: ChatTemplate) -> str | None:
        """The system text that the template puts in where a conversation has none.

        Raises TemplateFailed, or ValueError if it does not write ChatML turns.
        """
        given, missing = (_written(template, turns) for turns in (_PROBE, _PROBE[1:]))
        answer = self._begun(_ANSWER)
        expected = _joined([*self._said(_PROBE[1:]), *answer])
        added = missing[: len(missing) - len(expected)]
        text = str(added[1]).removeprefix("system\n") if len(added) > 1 else ""
        system = self._chatml.turn("system", text) if added else ()
        if given != _joined([*self._said(_PROBE), *answer]) or missing != _joined(
            [*system, *expected]
        ):
            raise ValueError("it has other turns, or other texts")
        return text or None


_ANSWER = Turn.of("assistant", "")
# With white space around the texts, since some templates take it off.
_PROBE = tuple(Turn.of(role, f" {role}\n") for role in ("system", "user", "assistant", "user"))


def _written(template: ChatTemplate, turns: Sequence[Turn]) -> list[str | int]:
    messages = [{"role": each.role, "content": each.text} for each in turns]
    return template.pieces(messages, add_generation_prompt=True)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with neighbouring texts in one."""
    joined: list[Piece] = []
    for each in pieces:
        before = joined[-1] if joined else None
        if isinstance(each, str) and isinstance(before, str):
            joined[-1] = before + each
        else:
            joined.append(each)
    return joined
