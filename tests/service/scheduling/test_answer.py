"""What an answer is made of, and how it ended, whatever way its tokens come."""

from typing import Any

import pytest

from service.ids import call_id
from storage.answer_pieces import CallStart, Piece, TextPiece, ThinkingPiece, content_of
from tests.support.fake_language import END, answer, ids_of, said

LS = '<call>run:{"cmd":"ls"}</call>'
NOW = "<call>now:{}</call>"


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thinking(thought: str, place: int = 0, *, shown: bool = True) -> dict[str, Any]:
    signature = f"signed {place} {thought}"
    return {"type": "thinking", "thinking": thought if shown else "", "signature": signature}


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    id = call_id("msg_1", number)
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


RUN, LOOK = call(0, "run", cmd="ls"), call(1, "now")
CASES: list[tuple[str, list[dict[str, Any]], str]] = [
    ("", [], "end_turn"),
    ("hello", [text("hello")], "end_turn"),
    (" \n hello ", [text(" \n hello ")], "end_turn"),
    (" \n ", [], "end_turn"),
    (
        f"<think>a</think>Text one.{LS}{NOW}Text two.",
        [thinking("a"), text("Text one."), RUN, LOOK, text("Text two.")],
        "tool_use",
    ),
    (f"<think>a</think>\n\n{LS}\n{NOW}\n", [thinking("a"), RUN, LOOK], "tool_use"),
    (LS, [RUN], "tool_use"),
    (
        "<think>a</think><think>b</think>c<think>d</think>",
        [thinking("a", 0), thinking("b", 1), text("c"), thinking("d", 2)],
        "end_turn",
    ),
    ("<think></think>a", [text("a")], "end_turn"),
    ("\n<think>a</think>b\n<think>\n</think>c", [thinking("a"), text("b\nc")], "end_turn"),
    ("<think>\n\n</think>\n<think> b</think>", [thinking(" b")], "end_turn"),
    (f"{LS}<think>why", [RUN, thinking("why")], "tool_use"),
    ("<think>plan", [thinking("plan")], "end_turn"),
    ("<think>é😀</think>é😀", [thinking("é😀"), text("é😀")], "end_turn"),
]


@pytest.mark.parametrize("streams", [True, False], ids=["growing", "held"])
@pytest.mark.parametrize(("written", "content", "reason"), CASES)
def test_blocks_and_ending_do_not_depend_on_how_the_tokens_come(
    written: str, content: list[dict[str, Any]], reason: str, streams: bool
) -> None:
    ids = ids_of(written + END)
    for cut in range(len(ids) + 1):
        made = answer(streams=streams)
        shown: list[Piece] = []
        for part in (ids[:cut], ids[cut:]):
            taken, pieces = made.take(part)
            assert taken == part
            shown += pieces
        assert content_of(shown) == content_of(made.pieces) == content
        assert (made.stop_reason, made.stop_sequence, made.fault) == (reason, None, None)
        assert not made.ended_early
    one_by_one = said(written + END, streams=streams)
    assert content_of(one_by_one.pieces) == content


def test_arguments_are_shown_as_they_grow_and_text_before_them_at_once() -> None:
    made = answer()
    shown = [made.take([token])[1] for token in ids_of("a<call>run:{")]
    assert shown[0] == [TextPiece("a")]
    assert shown[-2] == [CallStart(call_id("msg_1", 0), "run")]


def test_ids_of_calls_look_like_ids_and_are_those_of_their_message() -> None:
    ids = {call_id(message, number) for message in ("msg_1", "msg_2") for number in range(100)}
    assert len(ids) == 200
    assert all(len(each) == 30 and each[6:].isalnum() for each in ids)
    assert content_of(said(LS).pieces) == content_of(said(LS).pieces)


def test_thinking_that_is_not_shown_is_in_its_signature_only() -> None:
    made = said(f"<think>secret</think>a{END}", display="omitted")
    assert content_of(made.pieces) == [thinking("secret", shown=False), text("a")]
    assert made.pieces[0] == ThinkingPiece("")
    assert "secret" not in str([each for each in made.pieces if isinstance(each, ThinkingPiece)])


def test_thinking_tokens_are_those_of_the_parser() -> None:
    made = said(f"<think>abc</think>de{END}")
    assert (made.thinking_tokens, len(made.ids)) == (5, 8)


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thinking_that_tokens_ran_out_in_is_signed(display: Any) -> None:
    made = said("<think>plan it", max_tokens=5, display=display)
    assert content_of(made.pieces) == [thinking("plan", shown=display == "summarized")]
    assert made.stop_reason == "max_tokens"


@pytest.mark.parametrize("tokens", range(1, 40))
def test_a_call_that_tokens_run_out_in_is_no_content(tokens: int) -> None:
    """What came before it stays; a whole call is there to be run, unless another one is cut."""
    written = f"ab{LS}{NOW}c"
    first, second, third = (len(ids_of(each)) for each in ("ab", f"ab{LS}", f"ab{LS}{NOW}"))
    made = said(written, max_tokens=tokens)
    content = [text("ab"[:tokens])]
    content += [RUN] if tokens >= second else []
    content += [LOOK] if tokens >= third else []
    content += [text("c")] if tokens > third else []
    assert content_of(made.pieces) == content
    assert made.ids.tolist() == ids_of(written)[:tokens]
    within = [
        first + len(ids_of("<call>run:")) <= tokens < second,
        second + len(ids_of("<call>now:")) <= tokens < third,
    ]
    if tokens > len(ids_of(written)):
        assert made.stop_reason is None
    elif any(within) or tokens < second:
        assert made.stop_reason == "max_tokens"
    else:
        assert made.stop_reason == "tool_use"


def test_an_answer_that_ends_within_a_call_fails() -> None:
    made = said(f"a<call>run:{{{END}")
    assert made.stop_reason is None
    assert made.fault is not None
    assert made.fault.type == "api_error"
    assert content_of(made.pieces) == [text("a")]


def test_a_stop_sequence_counts_in_text_only() -> None:
    written = '<think>no STOP yet</think>Answer <call>run:{"cmd":"STOP"}</call>b STOP rest'
    made = said(written, stop_sequences=("STOP",))
    assert content_of(made.pieces) == [
        thinking("no STOP yet"),
        text("Answer "),
        call(0, "run", cmd="STOP"),
        text("b "),
    ]
    assert (made.stop_reason, made.stop_sequence) == ("tool_use", None)
    assert made.ended_early
    assert made.ids.tolist() == ids_of(written.removesuffix(" rest"))
    alone = said("a STOP b", stop_sequences=("STOP",))
    assert (alone.stop_reason, alone.stop_sequence) == ("stop_sequence", "STOP")


def test_without_parallel_calls_an_answer_is_over_after_its_first() -> None:
    made = answer(parallel=False)
    _, shown = made.take(ids_of(f"a{LS}{NOW}b{END}"))
    assert content_of(shown) == [text("a"), RUN]
    assert (made.stop_reason, made.ended_early, made.ended_itself) == ("tool_use", True, False)
    assert made.take(ids_of("b")) == ([], [])


def test_the_models_own_end_after_an_only_call_belongs_to_the_answer() -> None:
    made = answer(parallel=False)
    taken, shown = made.take(ids_of(f"a{LS}{END}"))
    assert taken == ids_of(f"a{LS}{END}")
    assert content_of(shown) == [text("a"), RUN]
    assert (made.stop_reason, made.ended_early, made.ended_itself) == ("tool_use", False, True)


def test_a_call_that_must_not_be_published_ends_the_answer_and_says_why() -> None:
    made = answer(streams=False)
    taken, shown = made.take(ids_of(f'a<call>run:{{"bad":1}}</call>{LS}{END}'))
    assert taken == ids_of('a<call>run:{"bad":1}</call>')
    assert content_of(shown) == [text("a")]
    assert (made.stop_reason, made.ended_early) == (None, True)
    assert made.fault is not None
    assert (made.fault.status, made.fault.type) == (500, "api_error")
    assert "run" in made.fault.message
    assert "an argument is bad" in made.fault.message


def test_an_engine_without_room_ends_an_answer_once() -> None:
    made = answer(max_tokens=0)
    assert (made.cut(), made.stop_reason) == ([], "max_tokens")
    over = said(f"a{END}")
    assert (over.cut(), over.stop_reason) == ([], "end_turn")
