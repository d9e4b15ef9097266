"""The llama family as SmolLM2 speaks it: ChatML turns around plain text."""

from array import array
from collections.abc import Iterable, Sequence

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from models.catalog import Checkpoint, CheckpointError
from models.conversation import AnswerForm, Conversation, Turn
from models.families.family import Family, PreparedPrompt
from models.parsing.answer import AnswerParser
from models.parsing.syntax import PlainText
from models.parsing.token_text import TokenBytes

_START, _END = "<|im_start|>", "<|im_end|>"


class LlamaFamily(Family):
    """Renders `<|im_start|>ROLE\\nTEXT<|im_end|>\\n` for every turn, wherever it stands.

    Turn markers are put in by id; the same characters in somebody's text are encoded as plain
    text, so that no text can forge a turn.
    """

    name = "llama"

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if the checkpoint's own template is not of this form."""
        self._tokenizer = _tokenizer(checkpoint)
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        start, end = self._tokenizer.token_to_id(_START), self._tokenizer.token_to_id(_END)
        try:
            self._default_system = _default_system(checkpoint.chat_template())
            if start is None or end is None:
                raise ValueError("its tokenizer lacks ChatML's markers")
        except ValueError as error:
            raise CheckpointError(
                f"{checkpoint.id} has a chat template that no family of this version knows "
                f"({error}); serve a model with ChatML turns, such as smollm2-135m-instruct"
            ) from error
        self._start, self._end = start, end
        # A model that opens another turn has ended its own.
        self.stop_ids = checkpoint.stop_ids | {start, end}
        try:
            self._token_bytes = TokenBytes(self._tokenizer)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.id} cannot be served: {error}") from error

    def render(self, conversation: Conversation) -> PreparedPrompt:
        turns = conversation.turns
        if self._default_system and turns[0].role != "system":
            turns = (Turn.of("system", self._default_system), *turns)
        *closed, last = turns if conversation.prefills else (*turns, Turn.of("assistant", ""))
        texts = [f"{each.role}\n{each.text}" for each in (*closed, last)]
        # A batch, since only that releases the interpreter lock while it encodes.
        *encoded, newline = self._tokenizer.encode_batch_fast(
            [*texts, "\n"], add_special_tokens=False
        )
        ids = array("I")
        for each in encoded[:-1]:
            ids.extend((self._start, *each.ids, self._end, *newline.ids))
        ids.extend((self._start, *encoded[-1].ids))
        return PreparedPrompt(ids)

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(self._token_bytes, PlainText(), stop_sequences=form.stop_sequences)


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    file = checkpoint.path / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower kind
        raise CheckpointError(
            f"{file} is not a tokenizer ({error}): pull or copy it again"
        ) from error


def _chatml(turns: Iterable[Turn]) -> str:
    return "".join(f"{_START}{each.role}\n{each.text}{_END}\n" for each in turns)


def _render(template: str, turns: Sequence[Turn]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": each.role, "content": each.text} for each in turns]
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


# With white space around the texts, since some templates take it off.
_PROBE = tuple(Turn.of(role, f" {role}\n") for role in ("system", "user", "assistant", "user"))


def _default_system(template: str) -> str | None:
    """The system text that the template puts in where a conversation has none.

    Raises ValueError if the template does not write ChatML turns.
    """
    answer = f"{_START}assistant\n"
    try:
        given, missing = _render(template, _PROBE), _render(template, _PROBE[1:])
    except Exception as error:  # a template is a program: it may fail in any way
        raise ValueError(f"it fails: {error}") from error
    added = missing.removesuffix(_chatml(_PROBE[1:]) + answer)
    text = added.removeprefix(f"{_START}system\n").removesuffix(f"{_END}\n")
    if given != _chatml(_PROBE) + answer or added not in ("", _chatml([Turn.of("system", text)])):
        raise ValueError("it does not write ChatML turns")
    return text or None
