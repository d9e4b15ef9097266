"""Calls that a grammar guides: how many are valid, with and without, and what it costs.

The model is always Qwen2.5 Coder 0.5B, which is small enough to go wrong at temperature 1. The
engine's own loop runs in a process of its own. Prompts leave off where the arguments begin, and
what was prefilled for one call of a tool serves all others, so that nearly all time is decoding.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from tokenizers import Tokenizer

from models.catalog import Checkpoint
from models.conversation import Tool
from models.engine import blas
from models.engine.protocol import Run, Tokens, ids_of
from models.grammar.guide_spec import Constrained, Forced, Free, GuideSpec
from models.grammar.json_grammar import call_arguments, output_grammar
from models.grammar.lark import grammar
from models.grammar.validation import Schemas
from models.sources import pull
from tests.support.running import REPOSITORY
from tools.bench.figure import Bar, Figure, centre
from tools.bench.services import Places

_MODEL = "qwen2.5-coder-0.5b-instruct"
_MOST_TOKENS = 160
_END = "<|im_end|>"
_PROMPT = (
    "<|im_start|>user\nCall {name} once, with made-up but sensible arguments, as short as can be. "
    "JSON Schema of the arguments: {schema}<|im_end|>\n<|im_start|>assistant\n"
    # Without the space that follows: models write it and the brace as one token.
    '{{"name": "{name}", "arguments":'
)
# Many short steps through all that JSON has, and an end that is out of reach.
_ROWS: dict[str, Any] = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "string"},
            "kind": {"enum": ["file", "folder", "link"]},
            "open": {"type": "boolean"},
        },
        "required": ["id", "name", "kind", "open"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class Timed:
    """One generation: its ids, and the seconds from each to the next."""

    ids: list[int]
    steps: list[float]


def grammar_cost(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """The share of valid calls, and the cost of masks as a ratio."""
    del checkpoint, places  # the figures are of one model, and need no service
    folder = pull(_MODEL, REPOSITORY / "build" / "test-data" / "models").path
    tools = TOOLS[:4] if quick else TOOLS
    guided, free = (1, 1) if quick else (10, 3)
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=blas.preload) as engine:
        bench = _Bench(engine, folder)
        yield bench.validity(tools, guided, is_guided=True)
        yield bench.validity(tools, free, is_guided=False)
        yield bench.cost(*((2, 24) if quick else (5, 96)))


class _Bench:
    def __init__(self, engine: ProcessPoolExecutor, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._end = self._tokenizer.token_to_id(_END)

    def validity(self, tools: tuple[Tool, ...], calls: int, *, is_guided: bool) -> Figure:
        """The share of arguments that follow their schema, of so many calls of each tool: of those
        that came to their end, since one that is cut is never published."""
        schemas = Schemas(tools)
        valid, cut, tokens, total = 0, 0, 0, calls * len(tools)
        for tool in tools:
            prompt = _PROMPT.format(name=tool.name, schema=json.dumps(tool.schema))
            guide = (
                self._guide(grammar(f'" " {call_arguments(tool.schema)}')) if is_guided else None
            )
            for seed in range(calls):
                made = self._generate(prompt, _MOST_TOKENS, seed, guide).ids
                tokens += len(made)
                cut += self._end not in made
                valid += self._is_valid(made, tool, schemas)
        share = 100 * valid / max(total - cut, 1)
        how = (
            f"{valid} of {total - cut} calls, {calls} of each of {len(tools)} tools, temperature 1"
        )
        how += f"; {cut} more cut at {_MOST_TOKENS} tokens; {tokens / total:.0f} tokens a call"
        if is_guided:
            return Figure("valid calls, guided", share, "%", how, Bar(">=", 100))
        return Figure("valid calls, not guided", share, "%", how)

    def cost(self, pairs: int, tokens: int) -> Figure:
        """One guided step over one that is not, in turns; the first pair warms both."""
        prompt = f"<|im_start|>user\nInvent a table.{_END}\n<|im_start|>assistant\n"
        guide = self._guide(output_grammar(_ROWS))
        medians: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(pairs + 1):
            for is_guided in (pair % 2 == 0, pair % 2 == 1):
                made = self._generate(prompt, tokens, pair, guide if is_guided else None)
                medians[is_guided].append(1000 * median(made.steps))
        guided, free = medians[True][1:], medians[False][1:]
        return Figure(
            "guided step / free step",
            median(one / other for one, other in zip(guided, free, strict=True)),
            "",
            f"{pairs} pairs in turns, each of the median of {tokens} steps, every token masked; "
            f"ms: guided {centre(guided)}, free {centre(free)}",
            Bar("<=", 1.05),
        )

    def _guide(self, text: str) -> GuideSpec:
        """The end of the turn is forced, and not a stop id: the run is cancelled after it, so that
        what it has prefilled is kept for the next."""
        return GuideSpec((Constrained(text, 1), Forced((self._end,), 2), Free()))

    def _generate(self, prompt: str, tokens: int, seed: int, guide: GuideSpec | None) -> Timed:
        ids = ids_of(self._tokenizer.encode(prompt, add_special_tokens=False).ids)
        described = guide and guide.as_json()
        run = Run("bench", tokens, 1.0, 1.0, 0, seed, (), ids, guide=described)
        return self._engine.submit(_generate, self._folder, run, self._end).result()

    def _is_valid(self, ids: list[int], tool: Tool, schemas: Schemas) -> bool:
        """Read leniently: as the object, whatever stands after it."""
        if self._end not in ids:
            return False
        text = self._tokenizer.decode(ids[: ids.index(self._end)])
        try:
            arguments, _ = json.JSONDecoder().raw_decode(text.lstrip())
        except ValueError:
            return False
        return isinstance(arguments, dict) and schemas.fault(tool.name, arguments) is None


@cache
def _resident(folder: Path) -> Any:
    from models.engine.generate import ResidentModel  # in a process that has a BLAS before it

    model = ResidentModel(folder, lambda done, total: None, speculates=False)  # steps are measured
    model.warm_up()
    return model


def _generate(folder: Path, run: Run, end: int) -> Timed:
    """In the engine's process: cancelled after `end`, or after its last token."""
    ids: list[int] = []
    times: list[float] = []

    def emit(event: Any) -> None:
        if isinstance(event, Tokens):
            ids.extend(event.ids)
            times.append(time.perf_counter())

    def interrupted() -> Any:
        return "cancelled" if end in ids else None

    _resident(folder).run(run, emit, interrupted)
    return Timed(ids, [later - earlier for earlier, later in pairwise(times)])


_ADDRESS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "country": {"enum": ["NO", "SE", "DK"]},
    },
    "required": ["city", "country"],
    "additionalProperties": False,
}


def _tool(name: str, properties: dict[str, Any], required: list[str], **more: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": required, **more}
    return Tool(name, "", schema)


_TEXT, _WHOLE, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TOOLS = (
    _tool("set_alarm", {"hour": {**_WHOLE, "minimum": 0, "maximum": 23}, "on": _FLAG}, ["hour"]),
    _tool("move", {"to": {"enum": ["north", "south", "east", "west"]}, "steps": _WHOLE}, ["to"]),
    _tool("fetch", {"url": {"type": "string", "format": "uri"}, "again": _FLAG}, ["url"]),
    _tool(
        "ship",
        {"to": {"$ref": "#/$defs/address"}, "gift": _FLAG},
        ["to", "gift"],
        **{"$defs": {"address": _ADDRESS}},
    ),
    _tool("say", {"text": {**_TEXT, "maxLength": 40}, "loud": _FLAG}, ["text", "loud"]),
    _tool("wait", {"seconds": {"type": "number", "exclusiveMinimum": 0}}, ["seconds"]),
    _tool("tag", {"tags": {"type": "array", "items": _TEXT, "maxItems": 3}}, ["tags"]),
    _tool(
        "point",
        {"at": {"type": "array", "prefixItems": [_WHOLE, _WHOLE], "items": False, "minItems": 2}},
        ["at"],
    ),
    _tool("cut", {"at": {"type": ["integer", "null"]}, "unit": {"const": "mm"}}, ["at", "unit"]),
    _tool(
        "list_files", {"in": _TEXT, "depth": {**_WHOLE, "maximum": 9}, "all": _FLAG}, ["in", "all"]
    ),
    _tool("remind", {"on": {"type": "string", "format": "date"}, "of": _TEXT}, ["on", "of"]),
    _tool("pay", {"cents": {**_WHOLE, "multipleOf": 5}, "in": {"enum": ["EUR", "NOK"]}}, ["cents"]),
    _tool(
        "find",
        {"by": {"anyOf": [{"type": "integer"}, {"enum": ["name", "age"]}]}, "first": _FLAG},
        ["by", "first"],
    ),
    _tool(
        "grow",
        {"tree": {"$ref": "#/$defs/tree"}},
        ["tree"],
        **{
            "$defs": {
                "tree": _tool(
                    "",
                    {
                        "value": _WHOLE,
                        "children": {
                            "type": "array",
                            "items": {"$ref": "#/$defs/tree"},
                            "maxItems": 2,
                        },
                    },
                    ["value"],
                ).schema
            }
        },
    ),
    _tool("paint", {"color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"}}, ["color"]),
    _tool(
        "book",
        {
            "seats": {
                "type": "array",
                "items": _tool(
                    "", {"row": _WHOLE, "side": {"enum": ["left", "right"]}}, ["row"]
                ).schema,
                "minItems": 1,
                "maxItems": 2,
            }
        },
        ["seats"],
    ),
    _tool(
        "count",
        {"of": {"type": "object", "additionalProperties": _WHOLE, "maxProperties": 3}},
        ["of"],
    ),
    _tool("ask", {"question": _TEXT, "choices": {"enum": [2, 3, 4]}}, ["question", "choices"]),
    _tool(
        "mix",
        {
            "of": {
                "allOf": [
                    _tool("", {"red": _WHOLE}, ["red"]).schema,
                    {"properties": {"blue": _WHOLE}},
                ]
            }
        },
        ["of"],
    ),
    _tool("log_in", {"id": {"type": "string", "format": "uuid"}, "keep": _FLAG}, ["id"]),
)
