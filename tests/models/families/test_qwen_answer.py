"""What Qwen writes, read at every split: thinking, text, and calls in JSON and in tags."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.catalog import inspect
from models.conversation import AnswerForm, ThinkingMode, ToolChoice
from models.families.qwen import QwenFamily
from models.families.qwen_answer import QwenSyntax
from models.families.qwen_dialect import CALL, CALL_END, THINK, THINK_END, Dialect
from models.grammar.validation import Schemas
from models.parsing.events import CallArguments, CallEnd, CallStart, Event
from tests.models.families.answers import blocks, read
from tests.models.parsing.call_bodies import TOOLS
from tests.support.tiny_qwen import Generation, write_tiny_qwen

MARKERS = (CALL, CALL_END, THINK, THINK_END)
THINKS = ThinkingMode("adaptive")
LS = {"cmd": "ls"}


def dialect(calls: Any, *, thinks: bool = True) -> Dialect:
    return Dialect(False, calls, False, "\n", (), (), (), thinks, False, ((), ()), True, ())


def json_call(name: str = "run", arguments: Any = None) -> str:
    call = {"name": name, "arguments": LS if arguments is None else arguments}
    written = json.dumps(call, ensure_ascii=False)
    return f"{CALL}\n{written}\n{CALL_END}"


def xml_call(name: str = "run", arguments: Any = None) -> str:
    values = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n"
        for key, value in (LS if arguments is None else arguments).items()
    )
    return f"{CALL}\n<function={name}>\n{values}</function>\n{CALL_END}"


BOTH = pytest.mark.parametrize(("calls", "call"), [("json", json_call), ("xml", xml_call)])


def answer(
    raw: str,
    calls: str = "json",
    *,
    opens: str = "text",
    form: AnswerForm | None = None,
    cut: bool = False,
) -> list[Any]:
    """The blocks of the answer, which are the same whether its calls stream or are held."""
    form = form or AnswerForm(tools=TOOLS, thinking=THINKS, guided=False)
    fault = Schemas(form.tools).fault
    return read(lambda: QwenSyntax(form, dialect(calls), fault, opens), MARKERS, raw, cut=cut)


@BOTH
def test_blocks_follow_each_other(calls: str, call: Any) -> None:
    a, b = call("run", {"cmd": "a"}), call("now", {})

    assert answer(f"<think>\nhm\n</think>\n\nOne.\n{a}\n{b}\nTwo.", calls) == [
        ("thinks", "hm"),
        "One.",
        ("run", {"cmd": "a"}),
        ("now", {}),
        "Two.",
    ]
    assert answer(f"<think>a</think>\n\n{b}{b}", calls) == [
        ("thinks", "a"),
        ("now", {}),
        ("now", {}),
    ]
    assert answer(f"{b} \n", calls) == [("now", {})]
    assert answer(f"<think>a</think>One<think>b</think>{b}", calls) == [
        ("thinks", "a"),
        "One",
        ("thinks", "b"),
        ("now", {}),
    ]


@pytest.mark.parametrize(
    ("raw", "cut", "expected"),
    [
        ("plan</think></think>Text", False, [("thinks", "plan"), "Text"]),
        ("plan", False, [("thinks", "plan")]),
        ("plan", True, [("thinks", "plan")]),
        (
            "say the word </think> in text: hello </think> world",
            False,
            [("thinks", "say the word"), "in text: hello </think> world"],
        ),
        ("</think>", False, []),
        ("</think>\n\nText", False, ["Text"]),
        ("\n</think>\n\nText\n", False, ["Text\n"]),
        ("<think>\n\n</think>\n\nText", False, ["Text"]),
        ("one\n\ntwo \n\n</think>Text", False, [("thinks", "one\n\ntwo"), "Text"]),
        ("a `</think>` b </think>Text", False, [("thinks", "a `"), "` b </think>Text"]),
    ],
)
def test_thinking_that_the_prompt_opened_ends_once(raw: str, cut: bool, expected: Any) -> None:
    assert answer(raw, opens="thinking", cut=cut) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("<think>x</think>y", [("thinks", "x"), "y"]),
        ("<think></think>y", ["y"]),
        ("</think>y", ["y"]),
        ("", []),
        (" \n", []),
        ("  y", ["  y"]),
        ("`<think>` is a tag", ["`<think>` is a tag"]),
    ],
)
def test_an_answer_that_was_not_to_think_may_think(raw: str, expected: Any) -> None:
    assert answer(raw, form=AnswerForm()) == expected


@BOTH
def test_calls_in_thinking_are_calls_if_the_answer_ends_with_them(calls: str, call: Any) -> None:
    def thought(raw: str, *, cut: bool = False) -> list[Any]:
        return answer(raw, calls, opens="thinking", cut=cut)

    good = call()
    assert thought(f"plan it\n{good}") == [("thinks", "plan it"), ("run", LS)]
    assert thought(f"{good}{good}") == [("run", LS), ("run", LS)]
    assert thought(f"plan it\n{good}", cut=True) == [("thinks", f"plan it\n{good}")]
    assert thought(f"So {good} it is.</think>Yes.") == [("thinks", f"So {good} it is."), "Yes."]
    written = f"{CALL}{CALL_END} is how"
    for bad in (call("nobody"), call("run", {}), written, f"{CALL}\n", f"{good} is how"):
        assert thought(f"plan {bad}") == [("thinks", f"plan {bad}".strip())]


@BOTH
def test_quoted_calls_are_text(calls: str, call: Any) -> None:
    fenced = f"To call it write:\n```xml\n{call()}\n```\nThat is all."
    inline = f"use `{CALL}` then `{CALL_END}`"

    assert answer(fenced, calls) == [fenced]
    assert answer(inline, calls) == [inline]
    assert answer(f"{inline}\n{call()}", calls) == [inline, ("run", LS)]


@BOTH
def test_what_is_no_call_is_text(calls: str, call: Any) -> None:
    prose = f"{CALL} is how it begins."
    broken = f"{CALL}\n{{oops\n{CALL_END}"

    assert answer(prose, calls) == [prose]
    assert answer(f"So: {broken}\n{call()}", calls) == [
        f"So: {broken}",
        ("run", LS),
    ]
    assert answer(CALL_END, calls) == [CALL_END]
    assert answer(call("../x"), calls) == [call("../x")]
    half = call()[: -len(CALL_END) - 4]
    assert answer(half, calls) == [half]


def test_text_after_a_call_that_has_no_close_is_kept() -> None:
    unclosed = json_call().removesuffix(f"\n{CALL_END}")

    assert answer(f"{unclosed}Done.") == [("run", LS), "Done."]
    assert answer(f"{unclosed}Done.{CALL_END}") == [("run", LS), f"Done.{CALL_END}"]


@BOTH
@pytest.mark.parametrize(
    "form",
    [
        AnswerForm(guided=False),
        AnswerForm(tools=TOOLS, choice=ToolChoice("none"), guided=False),
    ],
)
def test_without_tools_nothing_is_a_call(calls: str, call: Any, form: AnswerForm) -> None:
    raw = f"A {call()}\n"

    assert answer(raw, calls, form=form) == [raw]


@BOTH
def test_a_call_that_is_cut_is_no_call(calls: str, call: Any) -> None:
    raw = call("run", {"cmd": "rm -rf /tmp/build"})
    for end in range(len(CALL), len(raw) - len(CALL_END)):
        held = answer(f"Now: {raw[:end]}", calls, cut=True)
        assert held[0].rstrip() == "Now:"
        assert held[1:] in ([], [("run", {"cmd": "rm -rf /tmp/build"})])
        if "}}" not in raw[:end] and calls == "json":
            assert held[1:] == []


@BOTH
def test_only_the_wrapper_s_close_may_be_missing(calls: str, call: Any) -> None:
    whole = call()

    assert answer(whole.removesuffix(CALL_END), calls) == [("run", LS)]
    assert answer(whole.removesuffix(CALL_END) + whole, calls) == [("run", LS), ("run", LS)]


@BOTH
@pytest.mark.parametrize("name", ["run", "now"])
def test_an_answer_may_end_within_the_wrapper_s_close(calls: str, call: Any, name: str) -> None:
    arguments = LS if name == "run" else {}
    opened = call(name, arguments).removesuffix(CALL_END)
    for end in range(len(CALL_END)):
        assert answer(opened + CALL_END[:end], calls) == [(name, arguments)]


def test_what_only_begins_as_the_wrapper_s_close_is_text() -> None:
    opened = json_call().removesuffix(f"\n{CALL_END}")
    for other in ("</tool>", "</tool_callers>", "<", "</tool_call"):
        assert answer(f"{opened}{other} and more") == [("run", LS), f"{other} and more"]


def test_a_brace_too_many_is_no_text() -> None:
    assert answer(json_call().replace("}}", "}}}")) == [("run", LS)]


def test_a_close_inside_of_a_value_is_text() -> None:
    content = f's = "</parameter>"\nt = "</function>{CALL_END}"\nu = "{CALL}{THINK}"'
    arguments = {"path": "a.py", "content": content}

    assert answer(xml_call("write_file", arguments), "xml") == [("write_file", arguments)]
    assert answer(json_call("write_file", arguments), "json") == [("write_file", arguments)]


@BOTH
def test_where_one_call_is_allowed_the_answer_is_over_after_it(calls: str, call: Any) -> None:
    form = AnswerForm(tools=TOOLS, choice=ToolChoice(parallel=False), guided=False)

    assert answer(f"A {call()} B {call()}", calls, form=form) == ["A", ("run", LS)]


def test_several_calls_in_one_wrapper_are_several_calls() -> None:
    listed = f'{CALL}[{{"name":"now"}},{{"name":"run","arguments":{{"cmd":"ls"}}}}]{CALL_END}'
    tagged = f"{CALL}\n<function=now>\n</function>\n" + xml_call().removeprefix(f"{CALL}\n")

    assert answer(listed, "json") == [("now", {}), ("run", LS)]
    assert answer(tagged, "xml") == [("now", {}), ("run", LS)]


@BOTH
def test_a_call_that_breaks_its_schema_is_never_published(calls: str, call: Any) -> None:
    assert answer(f"A {call('run', {})} B", calls) == ["A", ("invalid", "run")]


@BOTH
@pytest.mark.parametrize(
    ("written", "meant"),
    [("Run", "run"), ("functions.run", "run"), ("default_api:run", "run"), ("nobody", "nobody")],
)
def test_names_are_taken_as_they_are_meant(calls: str, call: Any, written: str, meant: str) -> None:
    assert answer(call(written), calls) == [(meant, LS)]


@BOTH
def test_text_before_a_call_can_be_thinking(calls: str, call: Any) -> None:
    mode = ThinkingMode("between_tools")
    form = AnswerForm(tools=TOOLS, thinking=mode, guided=False)

    assert answer(f"I look.\n{call()}", calls, form=form) == [("thinks", "I look."), ("run", LS)]
    assert answer("Just text.\n", calls, form=form) == ["Just text.\n"]


BARE = json.dumps({"name": "run", "arguments": LS})


@pytest.mark.parametrize(
    "raw",
    [
        BARE,
        f"\n{BARE}\n",
        f"```json\n{BARE}\n```",
        f"```\n{BARE}\n```\n",
        f"```json\n{BARE}",
        json.dumps({"arguments": LS, "name": "run"}, indent=2),
    ],
)
def test_an_answer_that_is_nothing_but_a_call_is_one(raw: str) -> None:
    assert answer(raw) == [("run", LS)]
    assert answer(raw, form=AnswerForm()) == [raw]
    assert answer(raw, "xml") == [raw]


@pytest.mark.parametrize(
    "raw",
    [
        f"{BARE} and more",
        f"So: {BARE}",
        f"{BARE}\n{BARE}",
        f"[{BARE}]",
        f"```python\n{BARE}\n```",
        f"```json\n{BARE}\n``` Done.",
        BARE.replace("run", "nobody"),
        BARE.replace("cmd", "timeout"),
        BARE[:-1],
        '```json\n{"name": "my-app", "version": "1.0.0"}\n```',
        '{"name": "run", "arguments": {"cmd": "ls"}, "id": 3}',
        "```",
        "{",
    ],
)
def test_an_answer_that_is_something_else_as_well_is_text(raw: str) -> None:
    assert answer(raw) == [raw]


def test_a_bare_call_that_is_cut_is_text() -> None:
    assert answer(BARE, cut=True) == [BARE]


def test_a_text_is_held_only_while_it_can_become_a_call() -> None:
    form = AnswerForm(tools=TOOLS)
    syntax = QwenSyntax(form, dialect("json"), Schemas(TOOLS).fault, "text")

    assert list(syntax.text('{"na')) == []
    assert blocks(list(syntax.text('mes": '))) == ['{"names":']


@BOTH
def test_guided_calls_stream_while_they_grow(calls: str, call: Any) -> None:
    syntax = QwenSyntax(AnswerForm(tools=TOOLS), dialect(calls), Schemas(TOOLS).fault, "text")
    list(syntax.marker(CALL))
    events: list[Event] = []
    body = call("write_file", {"content": "abc", "path": "x"})
    for character in body.removeprefix(CALL).removesuffix(CALL_END):
        events += syntax.text(character)
    events += syntax.marker(CALL_END)

    assert isinstance(events[0], CallStart)
    assert isinstance(events[-1], CallEnd)
    pieces = [each.json for each in events if isinstance(each, CallArguments)]
    assert len(pieces) > 8
    assert json.loads("".join(pieces)) == {"content": "abc", "path": "x"}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[Generation, QwenFamily]:
    base: Path = tmp_path_factory.mktemp("models")
    generations: tuple[Generation, ...] = ("qwen3", "qwen3.5")
    return {each: QwenFamily(inspect(write_tiny_qwen(base / each, each))) for each in generations}


_PARTS = st.one_of(
    st.sampled_from(
        [
            *MARKERS,
            "<function=run>",
            "<parameter=cmd>\n",
            "\n</parameter>\n",
            "</function>",
            '{"name": "run", "arguments": ',
            '{"cmd": "',
            '"}}',
            "```\n",
            "`",
            "\n",
            "\\ud83d",
        ]
    ),
    st.text(max_size=4),
)


@pytest.mark.parametrize("generation", ["qwen3", "qwen3.5"])
@given(st.lists(_PARTS, max_size=12), st.booleans(), st.booleans(), st.booleans())
def test_any_answer_is_read(
    families: dict[Generation, QwenFamily],
    generation: Generation,
    parts: list[str],
    guided: bool,
    cut: bool,
    thinks: bool,
) -> None:
    """Whatever a model writes, no character of text is lost but white space, nothing fails, and
    held calls are valid."""
    family = families[generation]
    form = AnswerForm(tools=TOOLS, thinking=THINKS, guided=guided)
    parser = family.parser(form, "thinking" if thinks else "text")
    tokens = family._tokens  # pyright: ignore[reportPrivateUsage]
    events: list[Event] = []
    for part in parts:
        ids = [tokens.special[part]] if part in MARKERS else tokens.plain(part)
        for id in ids:
            events += parser.feed(id)
    events += parser.end(cut=cut)

    said = blocks(events)
    assert all(said)
    if not guided:
        for name, arguments in (each for each in said if isinstance(each, tuple)):
            if name not in ("thinks", "invalid", "nobody"):
                assert Schemas(TOOLS).fault(name, arguments) is None
