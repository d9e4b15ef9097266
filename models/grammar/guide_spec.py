"""How an answer is guided: a small automaton over token ids, which the engine follows.

A family describes it; `models.grammar.guide` follows it. Free text is free: only in the states
that say so is the model's choice of the next token limited.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Free:
    """Any token. `exits` are the ids that lead to another state, by its number.

    With `text`, an exit inside of quoted code (`models.parsing.code_spans`) is none. A state that
    has `close` is thinking: all its tokens, and the exit, count for the budget of the spec, and
    when no more than `close` fits, those ids are forced; the last of them must be an exit.
    Unless it `may_end`, the run's stop ids are not allowed.
    """

    exits: Mapping[int, int] = field(default_factory=dict[int, int])
    text: bool = False
    close: tuple[int, ...] = ()
    may_end: bool = True


@dataclass(frozen=True, slots=True)
class Forced:
    """These ids, then the state `then`."""

    ids: tuple[int, ...]
    then: int


@dataclass(frozen=True, slots=True)
class Constrained:
    """What `grammar` (llguidance's Lark) allows, up to its end: where no more can follow, or where
    `then` is `Ended` and the run is stopped. What was written then, decoded with special tokens,
    leads to `branches[it]`, or else to `then`."""

    grammar: str
    then: int
    branches: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing but the run's stop ids; or `token` alone, with which the family ends such a turn when
    it writes it down again."""

    token: int | None = None


State = Free | Forced | Constrained | Ended
_KINDS: dict[str, type[State]] = {each.__name__: each for each in State.__args__}


@dataclass(frozen=True, slots=True)
class GuideSpec:
    """The answer begins in the first state. `thinking_budget` is in tokens, over the whole answer;
    None if there is none."""

    states: tuple[State, ...]
    thinking_budget: int | None = None

    def as_json(self) -> dict[str, Any]:
        states: list[dict[str, Any]] = []
        for each in self.states:
            state = {"kind": type(each).__name__, **asdict(each)}
            if isinstance(each, Free):  # JSON has no numbers as keys
                state["exits"] = list(each.exits.items())
            states.append(state)
        return {"states": states, "thinking_budget": self.thinking_budget}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "GuideSpec":
        """Raises LookupError, TypeError or ValueError for what `as_json` did not make."""
        states: list[State] = []
        for fields in value["states"]:
            fields = dict(fields)
            kind = _KINDS[fields.pop("kind")]
            if "exits" in fields:
                fields["exits"] = dict(fields["exits"])
            for name in ("ids", "close"):
                if name in fields:
                    fields[name] = tuple(fields[name])
            states.append(kind(**fields))
        return cls(tuple(states), value["thinking_budget"])
