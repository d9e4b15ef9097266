"""Any checkpoint with a chat template: text, as that template writes it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from models.catalog import Checkpoint, CheckpointError
from models.conversation import AnswerForm, Conversation, Role, Turn
from models.families.chat_template import ChatTemplate, TemplateFailed
from models.families.family import Family, NotRendered, PreparedPrompt
from models.families.folding import folded
from models.families.plain import readable
from models.families.prompt_tokens import PromptTokens
from models.parsing.answer import AnswerParser
from models.parsing.syntax import PlainText

# Where the template lets system turns stand.
_Systems = Literal["anywhere", "first", "nowhere"]

_PROBES: dict[_Systems, tuple[Role, ...]] = {
    "anywhere": ("system", "user", "assistant", "system", "user"),
    "first": ("system", "user", "assistant", "user"),
    "nowhere": ("user", "assistant", "user"),
}


class GenericFamily(Family):
    """Renders through the checkpoint's own template, which is asked at load what it can do.

    System turns that it would refuse or lose are folded into the user's; calls, results and
    whatever else it may know are text.
    """

    name = "generic"

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError for a template that fails, or that loses what it is given."""
        self._tokens = PromptTokens(checkpoint)
        self._template = ChatTemplate(checkpoint, self._tokens)
        fault = ""
        for systems, roles in _PROBES.items():
            turns = [Turn.of(role, _probe(place)) for place, role in enumerate(roles)]
            try:
                pieces = self._pieces(turns)
            except TemplateFailed as error:
                fault = f"it fails: {error}"
                continue
            if _keeps(pieces, turns):
                self._systems = systems
                self.stop_ids = checkpoint.stop_ids | _ends(
                    pieces, _probe(roles.index("assistant"))
                )
                return
            fault = "it changes or leaves out what is said"
        raise CheckpointError(
            f"{checkpoint.id} has a chat template that cannot hold a conversation ({fault}); serve "
            "another model"
        )

    def render(self, conversation: Conversation) -> PreparedPrompt:
        turns = [Turn.of(each.role, readable(each)) for each in conversation.turns]
        if self._systems != "anywhere":
            turns = folded(turns, keeps_first=self._systems == "first")
        try:
            pieces = self._continued(turns) if conversation.prefills else self._pieces(turns)
        except TemplateFailed as error:
            place = self._failing(turns)
            raise NotRendered(
                f"the model's chat template cannot write turn {place + 1} of the conversation "
                f"({turns[place].role}): {error}"
            ) from error
        return PreparedPrompt(self._tokens.encode(pieces))

    def encoded_at_once(self, turns: Iterable[str]) -> Iterable[str]:
        # Templates need not have markers between turns.
        return self._tokens.encoded_at_once(["\n".join(turns)])

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(
            self._tokens.token_bytes, PlainText(), stop_sequences=form.stop_sequences
        )

    def _pieces(self, turns: Sequence[Turn], *, answer: bool = True) -> list[str | int]:
        messages = [{"role": each.role, "content": each.text} for each in turns]
        return self._template.pieces(messages, add_generation_prompt=answer)

    def _continued(self, turns: Sequence[Turn]) -> list[str | int]:
        """Up to the end of what the last turn says."""
        begun = turns[-1].text
        if not begun:
            return self._pieces(turns[:-1])
        pieces = self._pieces(turns, answer=False)
        while pieces:
            last = pieces.pop()
            # Perhaps stripped; the rest of what it ends with is the beginning of the answer.
            if isinstance(last, str) and begun.strip() in last:
                return [*pieces, last.rpartition(begun.strip())[0] + begun.lstrip()]
        raise TemplateFailed("an answer that is begun cannot be continued")

    def _failing(self, turns: Sequence[Turn]) -> int:
        """Which turn is the first that cannot be written after those before it."""
        good, bad = 0, len(turns)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._pieces(turns[:middle])
                good = middle
            except TemplateFailed:
                bad = middle
        return bad - 1


def _probe(place: int) -> str:
    return f'{place}: "it\'s" <b>Größer & 1</b>\n'


def _keeps(pieces: Sequence[str | int], turns: Sequence[Turn]) -> bool:
    """Whether all that is said stands there once, in order."""
    text = "\0".join(each for each in pieces if isinstance(each, str))
    start = 0
    for each in turns:
        said = each.text.strip()
        found = text.find(said, start)
        if found < 0 or text.count(said) != 1:
            return False
        start = found + len(said)
    return True


def _ends(pieces: Sequence[str | int], answer: str) -> frozenset[int]:
    """The marker, if any, by which the template ends an answer."""
    for each, after in pairwise(pieces):
        if isinstance(each, str) and each.rstrip().endswith(answer.strip()):
            return frozenset({after}) if isinstance(after, int) else frozenset()
    return frozenset()
