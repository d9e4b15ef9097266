"""Gemma 3: turns of user and model, and no others."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from models.catalog import Checkpoint, CheckpointError, NoChatTemplate
from models.conversation import AnswerForm, Conversation, Role, Turn
from models.families.chat_template import ChatTemplate, TemplateFailed
from models.families.family import Capabilities, Family, PreparedPrompt
from models.families.folding import folded
from models.families.own_tokens import OwnTokens
from models.families.plain import readable
from models.families.prompt_tokens import Piece, PromptTokens
from models.grammar.guide_spec import Constrained, Ended, GuideSpec
from models.grammar.json_grammar import output_grammar
from models.parsing.answer import AnswerParser
from models.parsing.syntax import PlainText

_START, _END, _BEGIN = "<start_of_turn>", "<end_of_turn>", "<bos>"


class Gemma3Family(Family):
    """Renders `<start_of_turn>ROLE\\nTEXT<end_of_turn>\\n`, the texts stripped.

    System turns are folded into the user's. A base model, which has no chat template, gets the
    same turns: they are what its vocabulary has, though it was not tuned on them.
    """

    name = "gemma3"
    capabilities = Capabilities(structured_outputs=True)

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if the checkpoint's own template is not of this form."""
        self._tokens = PromptTokens(checkpoint)
        self._begin, self._start, self._end = self._tokens.ids(_BEGIN, _START, _END)
        self._own = OwnTokens(self._tokens, (self._start,))
        # A model that opens another turn has ended its own.
        self.stop_ids = checkpoint.stop_ids | {self._start, self._end}
        try:
            template = ChatTemplate(checkpoint, self._tokens)
        except NoChatTemplate:
            return
        self._compare(template, checkpoint.id)

    def render(self, conversation: Conversation) -> PreparedPrompt:
        turns, begun = conversation.turns, ""
        if conversation.prefills:
            turns, begun = turns[:-1], readable(turns[-1]).lstrip()
        before = self._tokens.encode(self._said(turns))
        return PreparedPrompt(
            before + self._tokens.encode(self._begun(begun)),
            answer_from=None if conversation.prefills else len(before),
        )

    def encoded_at_once(self, turns: Iterable[str]) -> Iterable[str]:
        return self._tokens.encoded_at_once(turns)

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(
            self._tokens.token_bytes, PlainText(), stop_sequences=form.stop_sequences
        )

    def guide(self, form: AnswerForm, opens: str = "text") -> GuideSpec | None:
        if form.output_schema is None:
            return None
        return GuideSpec((Constrained(output_grammar(form.output_schema), 1), Ended()))

    def _said(self, turns: Sequence[Turn]) -> list[Piece]:
        pieces: list[Piece] = [self._begin]
        for each in folded([_stripped(each) for each in turns], keeps_first=False):
            written = (self._start, f"{_role(each.role)}\n{each.text}")
            own = self._own.of(each)
            pieces += (*((own,) if own else written), self._end, "\n")
        return pieces

    def _begun(self, text: str) -> list[Piece]:
        return [self._start, f"model\n{text}"]

    def _compare(self, template: ChatTemplate, checkpoint: str) -> None:
        roles: tuple[Role, ...] = ("system", "user", "assistant", "user")
        messages = [{"role": each, "content": f" {each}\n"} for each in roles]
        try:
            theirs = template.pieces(messages, add_generation_prompt=True)
        except TemplateFailed as error:
            why = f"it fails: {error}"
        else:
            said = [Turn.of(each, f" {each}\n") for each in roles]
            ours = [*self._said(said), *self._begun("")]
            if self._tokens.encode(theirs) == self._tokens.encode(ours):
                return
            why = "it does not write Gemma 3's turns"
        raise CheckpointError(f"{checkpoint} has a chat template of another form ({why})")


def _role(role: Role) -> str:
    return "model" if role == "assistant" else role


def _stripped(turn: Turn) -> Turn:
    text = readable(turn)
    said = Turn.of(turn.role, text if turn.role == "system" else text.strip())
    return replace(said, tokens=turn.tokens)
