"""One run as a page of text."""

from collections.abc import Iterator, Sequence
from typing import Any

from storage.verification import StoredRun
from tools.inspection.conversation import content_text, turns
from tools.inspection.replaying import streamed_text
from tools.inspection.terminal import bar, coloured_state, heading, safe, seconds, time_of_day
from tools.inspection.timeline import timeline

_BAR_COLUMNS = 40


def page(
    stored: StoredRun,
    request: dict[str, Any] | None,
    events: Sequence[dict[str, Any]],
    response: dict[str, Any] | None,
    now: float,
) -> Iterator[str]:
    """The lines; they are safe to print. `now` is in unix seconds."""
    yield from _facts(stored)
    yield from _timeline(stored, events, now)
    yield from _history(stored)
    yield from _prompt(request)
    yield from _answer(events, response)
    yield from _usage(stored, response)
    yield from _error(stored)


def _facts(stored: StoredRun) -> Iterator[str]:
    job = stored.job
    ending = f" ({safe(job.stop_reason)})" if job.stop_reason else ""
    yield f"{heading(safe(job.id))}  {coloured_state(job.state)}{ending}"
    facts = {
        "model": job.model,
        "message": job.message_id,
        "request": job.request_id,
        "key": job.api_key,
        "arrived": f"{time_of_day(job.created_at)}, {'streaming' if job.streaming else 'buffered'}",
        "attempt": job.attempt,
        "record": job.record,
    }
    for name, value in facts.items():
        if value is not None:
            yield f"  {name:<8} {safe(value)}"


def _timeline(stored: StoredRun, events: Sequence[dict[str, Any]], now: float) -> Iterator[str]:
    found = timeline(stored, events, now)
    whole = sum(max(phase.seconds, 0) for phase in found.phases)
    yield f"\n{heading('Timeline')}  {found.source}"
    for phase in found.phases:
        drawn = bar(phase.seconds / whole, _BAR_COLUMNS) if whole else ""
        yield f"  {phase.name:<8} {seconds(phase.seconds):>10}  {drawn}".rstrip()
    measured = stored.telemetry
    if measured is not None and measured.first_token_seconds is not None:
        yield f"  first token after {seconds(measured.first_token_seconds)}"
    if measured is not None and measured.decode_seconds > 0:
        rate = measured.output_tokens / measured.decode_seconds
        yield f"  {rate:.1f} tokens/s in decode"


def _history(stored: StoredRun) -> Iterator[str]:
    yield f"\n{heading('History')}"
    before = None
    for each in stored.history:
        later = "" if before is None else f"+{seconds(each.at - before)}"
        before = each.at
        owner = f"  by {safe(each.owner)}" if each.owner else ""
        state = coloured_state(each.to_state, 11)
        yield f"  {time_of_day(each.at)}  {state} {later:>12}  attempt {each.attempt}{owner}"


def _prompt(request: dict[str, Any] | None) -> Iterator[str]:
    yield f"\n{heading('Prompt')}"
    if request is None:
        yield "  (its record cannot be read)"
        return
    for role, text in turns(request):
        yield from _block(role, text)


def _answer(events: Sequence[dict[str, Any]], response: dict[str, Any] | None) -> Iterator[str]:
    if response is not None:
        yield f"\n{heading('Answer')}"
        text = content_text(response["message"]["content"])
    else:
        yield f"\n{heading('Answer so far')}"
        text = streamed_text(events)
    yield from _block("assistant", text) if text else ("  (no text)",)


def _usage(stored: StoredRun, response: dict[str, Any] | None) -> Iterator[str]:
    job = stored.job
    yield f"\n{heading('Usage')}"
    yield f"  input    {job.input_tokens:>8} tokens"
    if response is not None:
        usage = response["message"]["usage"]
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            if usage[name]:
                yield f"    of it {usage[name]:>8} {name}"
    if stored.telemetry is not None:
        yield f"    of it {stored.telemetry.prefilled_tokens:>8} computed by the engine"
    output = "-" if job.output_tokens is None else job.output_tokens
    yield f"  output   {output:>8} tokens of {job.max_tokens} asked for"
    if response is not None:
        details = response["message"]["usage"].get("output_tokens_details", {})
        if thinking := details.get("thinking_tokens"):
            yield f"    of it {thinking:>8} thinking"


def _error(stored: StoredRun) -> Iterator[str]:
    job = stored.job
    if job.cancel_requested_at is not None:
        yield f"\n{heading('Cancellation')}  asked for at {time_of_day(job.cancel_requested_at)}"
        yield f"  {safe(job.cancel_reason)}"
    if job.error_type or job.error_message:
        yield f"\n{heading('Error')}  {safe(job.error_type or '')}"
        yield f"  {safe(job.error_message or '')}"


def _block(role: str, text: str) -> Iterator[str]:
    yield f"  {heading(safe(role))}"
    yield from (f"    {line}" for line in safe(text).split("\n"))
