"""What is changed in settings of which only a few keys are ours, and how that is undone.

Keys are written with a dot: `env.ANTHROPIC_MODEL` is the key ANTHROPIC_MODEL in the object `env`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

_ABSENT = object()


class Undo(BaseModel):
    """What must be known to undo changes: the values that keys had `before`, where they had any,
    and all that was ever `written` there. It is kept before the change is made, so `written` may
    have what never was: a value is ours if it is one of these."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before: dict[str, Any] = {}
    written: dict[str, list[Any]] = {}

    def is_ours(self, settings: Mapping[str, Any], key: str) -> bool:
        """Whether the value of `key` was written by us, and not changed since."""
        return value_of(settings, key) in self.written.get(key, ())


@dataclass(frozen=True, slots=True)
class Changed:
    """Settings after a change, and how to undo it. `kept` are keys that once were ours, and are
    left as they are since somebody else changed them."""

    settings: dict[str, Any]
    undo: Undo
    kept: tuple[str, ...]


def value_of(settings: Mapping[str, Any], key: str, default: Any = _ABSENT) -> Any:
    """The value of a key with a dot; `default` where it, or the object it is in, is not there."""
    value: Any = settings
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]  # pyright: ignore[reportUnknownVariableType]
    return value  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one key. `value` is the one that is ours, else None: others may be secret."""

    key: str
    does: Literal["set", "replaced", "restored", "removed"]
    value: Any


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], ours: Mapping[str, Any], keys: Iterable[str]
) -> tuple[Change, ...]:
    """How `keys` of `old` become those of `new`, in which the values of `ours` are ours."""
    changes: list[Change] = []
    for key in keys:
        was, value = value_of(old, key), value_of(new, key)
        if value == was:
            continue
        if value is _ABSENT:
            changes.append(Change(key, "removed", None))
        elif key not in ours:
            changes.append(Change(key, "restored", None))
        else:
            changes.append(Change(key, "set" if was is _ABSENT else "replaced", value))
    return tuple(changes)


def with_ours(settings: Mapping[str, Any], wanted: Mapping[str, Any], undo: Undo) -> Changed:
    """`settings` with what is `wanted`, and without what earlier changes left and is no longer.

    Keys keep their places, new ones come last. Done twice, it is as done once.
    """
    restored = without_ours(settings, undo, (key for key in undo.written if key not in wanted))
    changed, before = restored.settings, dict(undo.before)
    written = {key: list(values) for key, values in undo.written.items() if key in wanted}
    for key, value in wanted.items():
        if not undo.is_ours(changed, key):
            before.pop(key, None)
            if (current := value_of(changed, key)) is not _ABSENT:
                before[key] = current
        _set(changed, key, value)
        if value not in (values := written.setdefault(key, [])):
            values.append(value)
    before = {key: value for key, value in before.items() if key in written}
    return Changed(changed, Undo(before=before, written=written), restored.kept)


def without_ours(
    settings: Mapping[str, Any], undo: Undo, keys: Iterable[str] | None = None
) -> Changed:
    """`settings` with `keys`, by default all that are ours, as they were before."""
    changed = dict(settings)
    kept: list[str] = []
    for key in undo.written if keys is None else keys:
        before = undo.before.get(key, _ABSENT)
        if undo.is_ours(changed, key):
            _set(changed, key, before)
        elif value_of(changed, key) not in (before, _ABSENT):
            kept.append(key)
    return Changed(changed, Undo(), tuple(kept))


def _set(settings: dict[str, Any], key: str, value: Any) -> None:
    """An object that has lost its last key goes with it."""
    name, _, inner = key.partition(".")
    if inner:
        inside = dict[str, Any](settings.get(name, {}))
        _set(inside, inner, value)
        value = inside or _ABSENT
    if value is _ABSENT:
        settings.pop(name, None)
    else:
        settings[name] = value
