"""What is computed again in a conversation whose prompts go on from each other."""

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from models.catalog import Checkpoint, inspect
from models.families import family_of
from tests.support.random_weights import write_random_weights
from tests.support.running import Running
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_hybrid import write_tiny_hybrid
from tests.support.tiny_qwen import write_tiny_qwen
from tests.support.wide_context import with_context
from tools.bench.client import Client
from tools.bench.figure import Bar, Figure
from tools.bench.prompts import words
from tools.bench.services import Places, real

_TURNS = 10
_WORDS = 40  # of a result, and of the system text
_ANSWER_TOKENS = 400  # of a tokenizer without words, a call takes many
_TOOL = {
    "name": "look",
    "description": "Shows a part of the file.",
    "input_schema": {
        "type": "object",
        "properties": {"part": {"enum": ["head", "middle", "tail"]}, "all": {"type": "boolean"}},
        "required": ["part", "all"],
        "additionalProperties": False,
    },
}
_ONE_CALL = {"type": "any", "disable_parallel_tool_use": True}
# Every family whose weights are not at hand, with random ones.
_RANDOM: dict[str, Callable[[Path], Path]] = {
    "qwen3": partial(write_tiny_qwen, generation="qwen3"),
    "qwen3.5": write_tiny_hybrid,
    "gemma3": write_tiny_gemma3,
    "gemma4": write_tiny_gemma4,
    "glimmer": write_tiny_glimmer,
}


def tool_turns(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """A conversation of ten turns with a real model."""
    yield _turns(checkpoint, checkpoint.id, places, quick)


def random_tool_turns(places: Places, quick: bool) -> Iterator[Figure]:
    """The same with models of random weights, of every other architecture."""
    for name, write in list(_RANDOM.items())[-1:] if quick else _RANDOM.items():
        with tempfile.TemporaryDirectory(dir=places.disk) as folder:
            model = with_context(write(Path(folder) / "tiny"), 1 << 14)
            if write is not write_tiny_hybrid:  # has its weights already
                write_random_weights(model)
            yield _turns(inspect(model), f"{name}, random", places, quick)


def _turns(checkpoint: Checkpoint, name: str, places: Places, quick: bool) -> Figure:
    turns = 3 if quick else _TURNS
    has_tools = family_of(checkpoint).capabilities.tools
    with real(checkpoint, places.disk) as service:
        runs = list(_converse(service, turns, has_tools))
    new = prefilled = before = 0
    for run in runs:
        new += run["input_tokens"] - before
        prefilled += run["telemetry"]["prefilled_tokens"]
        before = run["input_tokens"] + run["output_tokens"]
    return Figure(
        f"{name}: computed again in {turns} turns / new",
        100 * (prefilled / new - 1),
        "%",
        f"prefilled {prefilled} tokens, of which {new} were neither in the prompt before nor its "
        f"answer{'' if has_tools else '; without tools, which the family has not'}",
        Bar("<=", 3),
    )


def _converse(service: Running, turns: int, has_tools: bool) -> Iterator[dict[str, Any]]:
    """The runs, one for each turn."""
    client = Client(service.url)
    messages: list[dict[str, Any]] = [{"role": "user", "content": words(_WORDS, 0)}]
    asks: dict[str, Any] = {"tools": [_TOOL], "tool_choice": _ONE_CALL}
    if not has_tools:
        form = {"type": "json_schema", "schema": _TOOL["input_schema"]}
        asks = {"output_config": {"format": form}}
    for turn in range(turns):
        asked = {
            "model": "claude-bench",
            "max_tokens": _ANSWER_TOKENS,
            "temperature": 0,
            "system": words(_WORDS, 1),
            "messages": messages,
            "cache_control": {"type": "ephemeral"},
            **asks,
        }
        answer = client.post("/v1/messages", json.dumps(asked).encode())
        latest = client.get("/v1/runs?limit=1")["data"][0]
        yield client.get(f"/v1/runs/{latest['id']}")
        content = answer["content"] or [{"type": "text", "text": "-"}]
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        said = words(_WORDS, 2 + turn)
        results = [{"type": "tool_result", "tool_use_id": id, "content": said} for id in calls]
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": results or said},
        ]
