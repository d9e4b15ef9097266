"""How fast answers are read in each language, and prompts with many tools written.

In CPU time, since nothing here waits.
"""

import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from statistics import median

from models.catalog import Checkpoint
from models.conversation import AnswerForm, Conversation, Tool, Turn
from models.families.gemma4_answer import CALL as GEMMA_CALL
from models.families.gemma4_answer import CALL_END as GEMMA_CALL_END
from models.families.gemma4_answer import QUOTE, Gemma4Syntax
from models.families.glimmer_answer import MESSAGE, GlimmerSyntax
from models.families.qwen import QwenFamily
from models.families.qwen_answer import QwenSyntax
from models.families.qwen_dialect import CALL, CALL_END, Dialect
from models.parsing.syntax import Syntax
from models.sources import pull
from tests.support.running import REPOSITORY
from tools.bench.figure import Bar, Figure
from tools.bench.prompts import words
from tools.bench.services import Places

_PIECE = 4
_SIZE = 1_000_000
_PROSE = 'def f(x):\n    return "é" * x  # <b>not a tag</b>, and \\n\n'
_NUMBERS = "1,-2.5,true,null,"
_MODEL = "qwen2.5-coder-0.5b-instruct"
_SCHEMA = {
    "type": "object",
    "properties": {"content": {"type": "string"}, "rows": {"type": "array"}},
}
_TOOL = Tool("write", "", _SCHEMA)
_FORM = AnswerForm((_TOOL,))

# What an answer begins with, what then comes over and over, and its end; markers by themselves.
_Answer = tuple[tuple[str, ...], str, tuple[str, ...]]


def parsing(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Each language's slowest answer of a megabyte, and a long prompt with 21 tools."""
    del checkpoint, places  # no engine and no service take part
    size = _SIZE // 50 if quick else _SIZE
    for name, (make, markers, answers) in _languages().items():
        seconds = {kind: _seconds(make, markers, its, size) for kind, its in answers.items()}
        slowest = max(seconds, key=lambda kind: seconds[kind])
        twice = _seconds(make, markers, answers[slowest], 2 * size)
        how = f"{size / 1e6:g} MB in pieces of four characters; its slowest: {slowest}"
        speed = size / 1e6 / seconds[slowest]
        yield Figure(f"{name} is read", speed, "MB/s", how, Bar(">=", 1))
        ratio = twice / seconds[slowest]
        yield Figure(f"{name}, twice as much", ratio, "x", "time, 2 MB to 1 MB", Bar("<=", 2.5))
    yield _rendering(3 if quick else 15)


def _languages() -> dict[str, tuple[Callable[[], Syntax], set[str], dict[str, _Answer]]]:
    def qwen(calls: str) -> Callable[[], Syntax]:
        written = "xml" if calls == "xml" else "json"
        dialect = Dialect(False, written, False, "\n", (), (), (), True, False, ((), ()), True, ())
        return lambda: QwenSyntax(_FORM, dialect, _no_fault, "text")

    text: _Answer = (("So: ",), _PROSE, ())
    written = _PROSE.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    json = (CALL, '{"name": "write", "arguments": {"')
    tags = (CALL, "\n<function=write>\n")
    tags_end = ("\n</parameter>\n</function>\n", CALL_END)
    atem = (" to=write", MESSAGE, '<atem:function_calls>\n<atem:invoke name="write">\n')
    atem_end = ("</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",)
    gemma = (GEMMA_CALL, "call:write{")
    return {
        "Qwen, JSON": (
            qwen("json"),
            {CALL, CALL_END},
            {
                "text": text,
                "a string": ((*json, 'content": "'), written, ('"}}', CALL_END)),
                "numbers": ((*json, 'rows": ['), _NUMBERS, ("0]}}", CALL_END)),
            },
        ),
        "Qwen, tags": (
            qwen("xml"),
            {CALL, CALL_END},
            {
                "text": text,
                "a string": ((*tags, "<parameter=content>\n"), _PROSE, tags_end),
                "numbers": ((*tags, "<parameter=rows>\n["), _NUMBERS, ("0]", *tags_end)),
            },
        ),
        "Muse Glimmer": (
            lambda: GlimmerSyntax(_FORM, _no_fault, "header"),
            {MESSAGE},
            {
                "text": ((" to=user", MESSAGE), _PROSE, ()),
                "a string": ((*atem, '<atem:parameter name="content">'), _PROSE, atem_end),
                "numbers": ((*atem, '<atem:parameter name="rows">['), _NUMBERS, ("0]", *atem_end)),
            },
        ),
        "Gemma 4": (
            lambda: Gemma4Syntax(_FORM, _no_fault, "text"),
            {GEMMA_CALL, GEMMA_CALL_END, QUOTE},
            {
                "text": text,
                "a string": ((*gemma, "content:", QUOTE), _PROSE, (QUOTE, "}", GEMMA_CALL_END)),
                "numbers": ((*gemma, "rows:["), _NUMBERS, ("0]}", GEMMA_CALL_END)),
            },
        ),
    }


def _no_fault(name: str, arguments: dict[str, object]) -> str | None:
    return None


def _seconds(make: Callable[[], Syntax], markers: set[str], answer: _Answer, size: int) -> float:
    start, repeated, end = answer
    body = "".join(islice(cycle(repeated), size - size % len(repeated)))
    pieces = [body[place : place + _PIECE] for place in range(0, len(body), _PIECE)]
    syntax = make()
    began = time.process_time()
    events = 0
    for each in (*start, *pieces, *end):
        for _ in syntax.marker(each) if each in markers else syntax.text(each):
            events += 1
    for _ in syntax.end(cut=False):
        events += 1
    assert events, "nothing was read"
    return time.process_time() - began


def _rendering(times: int) -> Figure:
    """Of a conversation that goes on, so that only what is new has not been seen before."""
    family = QwenFamily(pull(_MODEL, REPOSITORY / "build" / "test-data" / "models"))
    form = AnswerForm(
        tuple(Tool(f"tool_{number}", words(150, number), _SCHEMA) for number in range(21))
    )
    turns = [
        Turn.of("assistant" if number % 2 else "user", words(400, number)) for number in range(41)
    ]
    tokens = len(family.render(Conversation(tuple(turns), form=form)).ids)
    seconds: list[float] = []
    for number in range(times):
        said = (Turn.of("assistant", words(40, -number)), Turn.of("user", words(40, ~number)))
        turns += said
        began = time.process_time()
        family.render(Conversation(tuple(turns), form=form))
        seconds.append(time.process_time() - began)
    how = f"{tokens} tokens with 21 tools, a turn more each of {times} times; median"
    return Figure("a long prompt is written", median(seconds) * 1000, "ms", how, Bar("<=", 60))
