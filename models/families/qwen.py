"""The Qwen family: Qwen2.5 and 3 with calls in JSON, Qwen3-Coder and 3.5 on with calls in tags."""

from collections.abc import Iterable
from typing import Any

from models.catalog import Checkpoint, CheckpointError
from models.conversation import AnswerForm, Conversation, Effort
from models.families.chat_template import ChatTemplate, TemplateFailed, functions
from models.families.chatml import ChatML, Pieces
from models.families.family import Capabilities, Family, NotRendered, PreparedPrompt, ThinkingKind
from models.families.kept_heads import KeptHeads
from models.families.own_tokens import OwnTokens
from models.families.prompt_tokens import PromptTokens
from models.families.qwen_answer import QwenSyntax
from models.families.qwen_dialect import CALL, CALL_END, THINK, THINK_END, dialect_of
from models.families.qwen_guide import qwen_guide
from models.families.qwen_turns import QwenTurns
from models.grammar.guide_spec import GuideSpec
from models.grammar.validation import Schemas
from models.parsing.answer import AnswerParser

_QUESTION = "?"


class QwenFamily(Family):
    """What stands before the first question, tools and effort and all, is written by the
    checkpoint's own template, and which dialect the rest is in is learnt from it."""

    name = "qwen"

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if the checkpoint's own template is not of this form."""
        self._tokens = PromptTokens(checkpoint)
        self._template = ChatTemplate(checkpoint, self._tokens)
        self._chatml = ChatML(self._tokens)
        try:
            self._dialect = dialect_of(self._template, self._tokens)
        except ValueError as error:
            raise CheckpointError(
                f"{checkpoint.id} has a chat template that does not write calls as Qwen's do "
                f"({error})"
            ) from error
        names = (CALL, CALL_END, *((THINK, THINK_END) if self._dialect.thinks else ()))
        self._markers = {self._tokens.special[each]: each for each in names}
        self._turns = QwenTurns(
            self._chatml,
            self._dialect,
            self._tokens.special,
            OwnTokens(self._tokens, (self._chatml.start, *self._markers)),
        )
        self._heads = KeptHeads()
        thinking: set[ThinkingKind] = {"between_tools"}
        if self._dialect.thinks:
            thinking |= {"adaptive", "enabled"}
        self.capabilities = Capabilities(
            tools=True,
            structured_outputs=True,
            thinking=frozenset(thinking),
            efforts=self._dialect.efforts,
        )
        # A model that opens another turn has ended its own.
        ends = {"<|endoftext|>"} & self._tokens.special.keys()
        self.stop_ids = (
            checkpoint.stop_ids
            | {self._chatml.start, self._chatml.end}
            | {self._tokens.special[each] for each in ends}
        )

    def render(self, conversation: Conversation) -> PreparedPrompt:
        turns, thinks = conversation.turns, conversation.form.thinking.thinks
        system = turns[0].text if turns and turns[0].role == "system" else None
        head = self._head(system, conversation, thinks=thinks)
        prefill = turns[-1] if conversation.prefills else None
        written = turns[system is not None : len(turns) - (prefill is not None)]
        beginning = self._turns.answer(prefill, thinks=thinks)
        is_thinking = beginning[-2:] == (self._tokens.special.get(THINK), "\n")
        before = self._tokens.encode((*head, *self._turns.pieces(written)))
        return PreparedPrompt(
            before + self._tokens.encode(beginning),
            "thinking" if is_thinking else "text",
            len(before) if prefill is None else None,
        )

    def encoded_at_once(self, turns: Iterable[str]) -> Iterable[str]:
        return self._tokens.encoded_at_once(turns)

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(
            self._tokens.token_bytes,
            QwenSyntax(form, self._dialect, Schemas(form.tools).fault, opens),
            markers=self._markers,
            stop_sequences=form.stop_sequences,
        )

    def guide(self, form: AnswerForm, opens: str = "text") -> GuideSpec | None:
        return qwen_guide(form, opens, self._dialect, self._tokens)

    def _head(self, system: str | None, conversation: Conversation, *, thinks: bool) -> Pieces:
        """All that stands before the turns. Raises NotRendered."""
        tools = functions(conversation.form.listed_tools)
        effort = conversation.effort if thinks else None
        return self._heads.of(
            [system, tools, effort, thinks],
            lambda: self._written_head(system, tools, effort, thinks=thinks),
        )

    def _written_head(
        self, system: str | None, tools: object, effort: Effort | None, *, thinks: bool
    ) -> Pieces:
        messages = [] if system is None else [{"role": "system", "content": system}]
        variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        if self._dialect.thinks and (thinks or self._dialect.can_be_told_not_to_think):
            variables["enable_thinking"] = thinks
        question = {"role": "user", "content": _QUESTION}
        try:
            pieces = self._template.pieces([*messages, question], tools=tools, **variables)
        except TemplateFailed as error:
            raise NotRendered(
                f"the model's chat template cannot write the system turn and the tools: {error}"
            ) from error
        asked = [self._chatml.start, f"user\n{_QUESTION}", self._chatml.end, "\n"]
        if pieces[-len(asked) :] != asked:
            raise NotRendered("the model's chat template writes no turns after its system turn")
        return tuple(pieces[: -len(asked)])
