"""`tools/qualify-messages`, over servers that do right, do wrong, and die."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_language import write_fake_checkpoint
from tests.support.messages_server import Blocks, MessagesServer, called, messages_server, said
from tests.support.running import REPOSITORY, scripted_service
from tools.qualify_messages import main

Qualify = Callable[..., tuple[int, dict[str, Any]]]


def sensible(request: dict[str, Any]) -> Blocks:
    """The answers that the questions hope for."""
    if request.get("tool_choice", {}).get("type") == "tool":
        return called("get_weather", city="Oslo")
    return said("Rain." if request.get("tools") else "Paris.")


@pytest.fixture
def plain() -> Iterator[MessagesServer]:
    with messages_server(sensible) as server:
        yield server


@pytest.fixture
def qualify(tmp_path: Path) -> Qualify:
    def run(url: str, *options: str) -> tuple[int, dict[str, Any]]:
        report = tmp_path / "report.json"
        code = main([url, *options, "--json", str(report), "--page", str(tmp_path / "page.md")])
        return code, json.loads(report.read_text())

    return run


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("script") / "script.json"


@pytest.fixture(scope="module")
def service_url(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service over an engine that always does what is in `script`."""
    model = write_fake_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRIPT_FILE", str(script))
        with scripted_service(model, tmp_path_factory.mktemp("data")) as service:
            yield service.url


def checks(report: dict[str, Any], verdict: str) -> dict[str, str]:
    """The checks with this verdict, and why they have it."""
    found = [each for each in report["checks"] if each["verdict"] == verdict]
    return {f"{each['area']}: {each['name']}": each["why"] for each in found}


def test_a_good_server_qualifies_and_what_is_skipped_does_not(
    qualify: Qualify, plain: MessagesServer
) -> None:
    areas = ("protocol", "calls", "keys", "counting", "recovery", "images")
    code, report = qualify(plain.url, "--only", *areas)

    assert code == 0, checks(report, "failed")
    assert report["areas"] == {
        "protocol": "qualified",
        "calls": "qualified",
        "keys": "not qualified",
        "counting": "qualified",
        "images": "not qualified",
        "recovery": "qualified",
    }
    skipped = checks(report, "skipped")
    assert skipped["keys: wrong keys"] == "no key was given: run with --api-key-file"
    assert skipped["images: a PNG"] == "the server declares no image_input"


def test_evidence_has_shapes_of_what_was_sent_and_came(
    qualify: Qualify, plain: MessagesServer, tmp_path: Path
) -> None:
    _, report = qualify(plain.url, "--only", "protocol", "calls", "--max-tokens", "77")

    check = next(each for each in report["checks"] if each["name"].startswith("streamed answer"))
    first, second, _ = check["exchanges"]
    assert first["sent"]["max_tokens"] == 77
    assert first["sent"]["messages"] == [{"role": "user", "content": "50 characters"}]
    assert first["came"]["events"][:2] == ["message_start", "content_block_start"]
    assert second["came"]["message"]["content"] == [{"type": "text", "text": "6 characters"}]
    assert second["came"]["request_id"].startswith("req_")
    assert second["seconds"] > 0
    page = (tmp_path / "page.md").read_text()
    assert "| calls | streamed | passed |" in page


def test_what_the_model_says_decides_no_verdict(qualify: Qualify, plain: MessagesServer) -> None:
    plain.answers = lambda request: (
        called("get_weather", city="Rome") if "tool_choice" in request else said("No idea.")
    )
    code, report = qualify(plain.url, "--only", "protocol", "calls")

    assert code == 0
    assert {each["met"] for each in report["model_outcomes"]} == {False}
    assert "outcomes" not in report["checks"][0]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("no request ids", "has no request-id header"),
        ("same ids", "have the same id, msg_1"),
        ("wrong count", "count_tokens says"),
        ("accepts anything", "the request was accepted, not refused with status 400"),
        ("no stop", "the stream ends with ['content_block_stop', 'message_delta']"),
        ("wrong index", "an event of block 0 has index 1"),
    ],
)
def test_what_is_wrong_fails_and_is_named(
    qualify: Qualify, plain: MessagesServer, fault: str, why: str
) -> None:
    plain.faults.add(fault)
    code, report = qualify(plain.url, "--only", "protocol")

    assert code == 1
    assert report["areas"]["protocol"] == "failed"
    assert any(why in each for each in checks(report, "failed").values()), report["checks"]


def test_a_server_that_ignores_cache_markers_does_not_qualify(
    qualify: Qualify, plain: MessagesServer
) -> None:
    code, report = qualify(plain.url, "--only", "cache")

    assert (code, report["areas"]["cache"]) == (1, "failed")
    assert "nothing was written to the cache" in checks(report, "failed").values()


def test_a_server_that_dies_leaves_a_report_that_says_so(
    qualify: Qualify, plain: MessagesServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain.dies_after = 3
    code, report = qualify(plain.url, "--only", "protocol", "counting")

    assert code == 1
    assert report["server_is_gone"]
    assert len(checks(report, "passed")) == 1
    assert len(checks(report, "failed")) == 1
    assert set(checks(report, "not run").values()) == {"the server is gone"}
    assert report["areas"]["counting"] == "not qualified"
    assert "**The server was gone at the end.**" in (tmp_path / "page.md").read_text()
    assert "not run: counting, plain: the server is gone" in capsys.readouterr().out


def test_the_service_qualifies_in_what_it_declares(
    qualify: Qualify, service_url: str, script: Path
) -> None:
    script.write_text(json.dumps({"say": "Paris."}))
    areas = ("cache", "documents", "recovery")
    code, report = qualify(service_url, "--only", *areas)

    assert code == 0, checks(report, "failed")
    assert set(report["areas"].values()) == {"qualified"}


def test_a_server_that_refuses_all_documents_is_not_seen_to_refuse_damaged_ones(
    qualify: Qualify, plain: MessagesServer
) -> None:
    plain.faults.add("no documents")
    _, report = qualify(plain.url, "--only", "documents")

    why = checks(report, "skipped")["documents: a damaged PDF"]
    assert why == "a good one is refused, too: no documents"


@pytest.mark.parametrize(
    ("said", "verdict", "why"),
    [
        ("<think>Hm.</think>Paris.", "passed", None),
        ("Paris.", "skipped", "the model has not thought: no signature was seen"),
    ],
)
def test_thinking_that_was_not_seen_does_not_qualify(
    qualify: Qualify, service_url: str, script: Path, said: str, verdict: str, why: str | None
) -> None:
    script.write_text(json.dumps({"say": said}))
    _, report = qualify(service_url, "--only", "capabilities")

    assert checks(report, verdict)["capabilities: thinking"] == why, report["checks"]


@pytest.mark.parametrize("kind", ["regex", "bm25"])
def test_the_search_of_the_service_qualifies(
    qualify: Qualify, service_url: str, script: Path, kind: str
) -> None:
    call = f'<call>tool_search_tool_{kind}:{{"query":"weather"}}</call>'
    script.write_text(json.dumps({"say": call}))
    _, report = qualify(service_url, "--only", "search")

    assert f"search: {kind}" in checks(report, "passed"), report["checks"]
    found = [each["said"] for each in report["model_outcomes"] if each["met"]]
    assert any(each.startswith("get_weather by ") for each in found)


def test_the_service_is_seen_to_cancel(qualify: Qualify, service_url: str, script: Path) -> None:
    script.write_text(json.dumps({"say": "x" * 4000, "step_ms": 10, "prefill_tokens": 5}))
    code, report = qualify(service_url, "--only", "cancellation", "--max-tokens", "4")

    assert code == 0, report["checks"]
    assert report["areas"]["cancellation"] == "qualified", checks(report, "skipped")


@pytest.mark.parametrize(
    ("seconds_a_character", "verdict", "why"),
    [
        (1e-3, "failed", "the next answer took"),
        (3e-4, "skipped", "s to go, less than the bar of"),
    ],
)
def test_a_server_that_reads_prompts_to_their_end_does_not_qualify(
    qualify: Qualify,
    plain: MessagesServer,
    seconds_a_character: float,
    verdict: str,
    why: str,
) -> None:
    reads = threading.Lock()

    def slow(request: dict[str, Any]) -> Blocks:
        with reads:
            time.sleep(len(str(request["messages"])) * seconds_a_character)
        return said("Paris.")

    plain.answers = slow
    _, report = qualify(plain.url, "--only", "cancellation")

    assert why in checks(report, verdict)["cancellation: mid-prefill"]


def test_what_cannot_be_qualified_is_refused(
    plain: MessagesServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, why in (
        (["http://127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
        (["127.0.0.1:9"], "is no URL of a server"),
        (["http://me:secret@127.0.0.1:9"], "use --api-key-file"),
        ([plain.url, "--model", "other"], "has no model 'other'"),
        ([plain.url, "--json", str(tmp_path / "none" / "a.json")], "cannot be written"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        told = capsys.readouterr().err
        assert why in told
        assert "secret" not in told


@pytest.mark.parametrize("said", ["<html>\n\x1b[2J", "{", "[]", "null", '{"data": [[]]}'])
def test_a_server_that_tells_no_models_is_refused_in_one_line(
    plain: MessagesServer, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    plain.models = said
    for model in ([], ["--model", "plain"]):
        with pytest.raises(SystemExit, match="2"):
            main([plain.url, *model])
        told = capsys.readouterr().err.removesuffix("\n")
        assert told.startswith("qualify-messages: ")
        assert told.isprintable()


def test_a_server_that_tells_no_models_any_more_is_still_there(
    qualify: Qualify, plain: MessagesServer
) -> None:
    def answers(request: dict[str, Any]) -> Blocks:
        plain.models = "null"
        return sensible(request)

    plain.answers = answers
    code, report = qualify(plain.url, "--only", "recovery")
    assert (code, report["server_is_gone"]) == (0, False), checks(report, "failed")


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    command = [REPOSITORY / "tools" / "qualify-messages", "http://127.0.0.1:9"]
    missing = ["--api-key-file", str(tmp_path / "none")]
    ended = subprocess.run([*command, *missing], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("qualify-messages: the key in ")
    assert ended.stderr.count("\n") == 1
