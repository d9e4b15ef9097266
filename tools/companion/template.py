"""The ids that a chat template puts around what is said."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.companion.errors import CannotTrain

_QUESTION, _ANSWER, _NEXT = "\x01question\x01", "\x01answer\x01", "\x01next\x01"


@dataclass(frozen=True, slots=True)
class Template:
    """Token ids of one conversation's frame.

    `before_question` opens a conversation, `before_answer` follows a question's `end`, and
    `before_next` an answer's. `special` are ids that no text has.
    """

    before_question: tuple[int, ...]
    before_answer: tuple[int, ...]
    before_next: tuple[int, ...]
    end: int
    special: tuple[int, ...]

    @property
    def unused(self) -> int:
        """A special id that conversations do not have, either; raises `CannotTrain`."""
        frame = {*self.before_question, *self.before_answer, *self.before_next}
        if not (unused := set(self.special) - frame):
            raise CannotTrain("the tokenizer has no special token that conversations do not have")
        return max(unused)

    @classmethod
    def of(cls, folder: Path) -> "Template":
        """From `template.json`, or from the tokenizer and chat template of a checkpoint, for which
        tokenizers and jinja2 are needed; raises `CannotTrain`."""
        saved = folder / "template.json"
        if saved.is_file():
            return cls(**json.loads(saved.read_text()))
        try:
            return cls._rendered(folder)
        except ImportError as missing:
            raise CannotTrain(
                f"{missing.name} is not installed here: write {saved} where it is, with "
                f"`python -m tools.companion.template {folder}`"
            ) from None

    @classmethod
    def _rendered(cls, folder: Path) -> "Template":
        import jinja2
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        special = [each for each in tokenizer.get_added_tokens_decoder().items() if each[1].special]
        end = next((id for id, token in special if token.content == config["eos_token"]), None)
        said = [("user", _QUESTION), ("assistant", _ANSWER), ("user", _NEXT)]
        text = jinja2.Template(config["chat_template"]).render(
            messages=[{"role": role, "content": content} for role, content in said],
            **{name: config.get(name, "") for name in ("bos_token", "eos_token")},
        )
        before, found, rest = text.partition(_QUESTION)
        between, found_too, rest = rest.partition(_ANSWER)
        again = rest.partition(_NEXT)[0]
        ends = between.startswith(config["eos_token"]) and again.startswith(config["eos_token"])
        if end is None or not (found and found_too and ends):
            raise CannotTrain(
                f"the chat template in {folder} does not end each turn with eos_token, "
                f"{config['eos_token']}: write its ids into template.json by hand"
            )

        def ids(part: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(part, add_special_tokens=False).ids)

        others = tuple(sorted(id for id, _ in special if id != end))
        return cls(ids(before), ids(between)[1:], ids(again)[1:], end, others)


if __name__ == "__main__":
    import sys

    for each in sys.argv[1:]:
        (Path(each) / "template.json").write_text(json.dumps(asdict(Template.of(Path(each)))))
