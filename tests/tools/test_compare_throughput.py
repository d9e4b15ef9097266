"""`tools/compare-throughput`, over servers that tell of more or fewer tokens in their time.

But for the test of what disturbs, the machine of all others is one where nothing else runs.
"""

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.support.messages_process import messages_process
from tests.support.running import REPOSITORY
from tools.compare_throughput import main
from tools.throughput.workloads import WORKLOADS

Compare = Callable[..., tuple[int, dict[str, Any]]]
FASTER = 1000  # by far more than any machine is slowed down in a test


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with messages_process() as url:
        yield url


@pytest.fixture(scope="module")
def fast() -> Iterator[str]:
    with messages_process(speed=FASTER) as url:
        yield url


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that has nothing else to do, and memory to spare."""
    times = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    memory = SimpleNamespace(available=90, total=100)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(used=0))
    sensors = {"cpu": [SimpleNamespace(current=50.0, high=100.0)]}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: sensors, raising=False)
    return monkeypatch


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def run(reference: str, candidate: str, *options: str) -> tuple[int, dict[str, Any]]:
        report = tmp_path / "report.json"
        written = ["--json", str(report), "--page", str(tmp_path / "page.md")]
        code = main([reference, candidate, "--runs", "1", *options, *written])
        return code, json.loads(report.read_text())

    return run


def attempts(report: dict[str, Any], verdict: str) -> list[dict[str, Any]]:
    return [each for each in report["attempts"] if each["verdict"] == verdict]


@pytest.mark.usefixtures("quiet")
def test_a_candidate_that_is_faster_in_every_workload_is_a_gain(
    compare: Compare, plain: str, fast: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = compare(plain, fast, "--runs", "2")

    assert (code, report["verdict"]) == (0, "gain")
    for found in report["comparisons"].values():
        assert found["kept"] == {"R1": 2, "C": 2, "R2": 2}
        assert min(found["ratios"]["C/R1"], found["ratios"]["C/R2"]) > 1.05
    warm = Counter(
        (each["place"]["workload"], each["place"]["server"]) for each in attempts(report, "warm-up")
    )
    assert warm == {(name, role): 1 for name in WORKLOADS for role in ("reference", "candidate")}
    assert len(report["attempts"]) == len(WORKLOADS) * (2 + 2 * 3)
    assert "| chat | output tokens/s |" in (tmp_path / "page.md").read_text()
    told = "gain, of chat, long-prompt, rewrite, tool-call"
    assert capsys.readouterr().out.endswith(f"{told}\n")


@pytest.mark.usefixtures("quiet")
def test_a_candidate_that_is_slower_in_one_workload_is_none(compare: Compare, fast: str) -> None:
    with messages_process(speed=FASTER**2, speed_with_tools=1) as uneven:
        code, report = compare(fast, uneven, "--only", "chat", "tool-call")
        assert (code, report["verdict"]) == (1, "no gain")
        verdicts = {name: each["verdict"] for name, each in report["comparisons"].items()}
        assert verdicts == {"chat": "gain", "tool-call": "no gain"}

        code, report = compare(fast, uneven, "--only", "chat")
        assert (code, report["verdict"]) == (0, "gain")


@pytest.mark.usefixtures("quiet")
def test_the_same_server_twice_is_no_gain_and_has_no_prompt_in_its_cache(
    compare: Compare, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "perf_counter", itertools.count(1).__next__)
    same = plain.replace("127.0.0.1", "localhost")
    code, report = compare(plain, same, "--only", "chat", "long-prompt")

    assert (code, report["verdict"]) == (1, "no gain")
    for each in report["comparisons"].values():
        assert each["ratios"] == {"C/R1": 1, "C/R2": 1, "R2/R1": 1}
    for each in report["attempts"]:
        answered = each["answered"]
        whole, first = answered["seconds"], answered["first_content_seconds"]
        assert 0 < first < whole
        if each["place"]["workload"] == "long-prompt":
            assert each["tokens_per_second"] == answered["input_tokens"] / first
        else:
            assert each["tokens_per_second"] == answered["output_tokens"] / whole
    openings = [each["opening"] for each in report["attempts"]]
    assert len(set(openings)) == len(openings)


def test_what_is_measured_while_others_take_the_cpu_is_asked_again_and_then_given_up(
    compare: Compare, plain: str
) -> None:
    busy = "print(flush=True)\nwhile True: pass"
    hogs = [
        subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE)
        for _ in range(max(1, (psutil.cpu_count() or 1) // 4))
    ]
    try:
        for hog in hogs:
            hog.stdout.readline()
        with messages_process(seconds=0.06) as slow:
            code, report = compare(slow, slow, "--only", "chat")
    finally:
        for hog in hogs:
            with hog:
                hog.kill()

    assert (code, report["verdict"]) == (2, "not measured")
    places = Counter(each["place"]["block"] for each in attempts(report, "excluded"))
    assert places == dict.fromkeys(("R1", "C", "R2"), report["limits"]["tries"])
    for each in attempts(report, "excluded"):
        assert each["why"].startswith("other processes took ")
        assert each["seen"]["others_cpu_mean"] > report["limits"]["others_cpu"]
        assert each["answered"]
    why = report["comparisons"]["chat"]["why"]
    assert why.startswith("too few samples were kept: 0 of 1 in R1, 0 of 1 in C, 0 of 1 in R2; ")


@pytest.mark.parametrize(
    ("name", "shown", "why"),
    [
        ("virtual_memory", SimpleNamespace(available=4, total=100), "4.0% of the memory was left"),
        ("swap_memory", None, "bytes were swapped out"),
        (
            "sensors_temperatures",
            {"cpu": [SimpleNamespace(current=99.0, high=90.0)]},
            "a sensor was at 110% of what it calls high",
        ),
    ],
)
def test_a_machine_without_memory_or_too_hot_measures_nothing(
    compare: Compare, plain: str, quiet: pytest.MonkeyPatch, name: str, shown: Any, why: str
) -> None:
    grows = itertools.count()
    quiet.setattr(psutil, name, lambda: shown or SimpleNamespace(used=next(grows)), raising=False)
    code, report = compare(plain, plain, "--only", "chat")

    assert code == 2
    assert all(why in each["why"] for each in attempts(report, "excluded"))
    assert len(attempts(report, "excluded")) == 9


@pytest.mark.usefixtures("quiet")
def test_a_server_that_dies_leaves_a_report_that_says_so(
    compare: Compare, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with messages_process(speed=FASTER, dies_after=6) as dying:
        code, report = compare(plain, dying)

    assert (code, report["verdict"], report["server_is_gone"]) == (2, "not measured", "candidate")
    [failed] = attempts(report, "failed")
    assert failed is report["attempts"][-1]
    place = {"server": "candidate", "workload": "long-prompt", "block": "C"}
    assert failed["place"].items() >= place.items()
    verdicts = [each["verdict"] for each in report["comparisons"].values()]
    assert verdicts == ["gain", *["not measured"] * 3]
    told = "The candidate was gone before the end."
    assert told in capsys.readouterr().out
    assert told in (tmp_path / "page.md").read_text()


@pytest.mark.usefixtures("quiet")
def test_a_workload_that_is_refused_or_cut_leaves_no_verdict(compare: Compare, plain: str) -> None:
    with messages_process(speed=FASTER, faults=["no tools"]) as toolless:
        code, report = compare(plain, toolless, "--only", "chat", "tool-call")
        assert (code, report["verdict"]) == (2, "not measured")
        assert [each["place"]["workload"] for each in attempts(report, "refused")] == ["tool-call"]
        why = report["comparisons"].pop("tool-call")["why"]
        assert why.startswith("skipped, since the candidate refuses it: ")
        assert "tools are not supported" in why
        assert {each["verdict"] for each in report["comparisons"].values()} == {"gain"}
    with messages_process(speed=FASTER, faults=["no stop"]) as cutting:
        code, report = compare(plain, cutting, "--only", "chat", "rewrite")
        assert (code, report["verdict"]) == (2, "not measured")
        whys = [each["why"] for each in attempts(report, "failed")]
        assert whys == ["the stream was cut before message_stop"] * 2


def test_what_cannot_be_compared_is_refused(
    plain: str, tmp_path: Path, quiet: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        return capsys.readouterr().err

    assert "run this on the server's machine" in refused("http://192.0.2.1:8765", plain)
    assert "nothing answers at http://127.0.0.1:9" in refused(plain, "http://127.0.0.1:9")
    assert "is no URL of a server" in refused(plain, "http://127.0.0.1:99999")
    assert "secret" not in refused(plain, "http://me:secret@127.0.0.1:99999")
    assert "name another by --candidate-model" in refused(plain, plain, "--candidate-model", "x")
    assert "cannot be written" in refused(plain, plain, "--json", str(tmp_path / "none" / "a"))
    quiet.setattr(psutil, "process_iter", lambda: iter(()))
    assert "run this as the user who runs the server" in refused(plain, plain)


def test_the_command_refuses_in_one_line() -> None:
    urls = ["http://192.0.2.1", "http://127.0.0.1:9"]
    command = [REPOSITORY / "tools" / "compare-throughput", *urls]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("compare-throughput: what else takes the CPU of 192.0.2.1 ")
    assert ended.stderr.count("\n") == 1


def test_workloads_are_those_that_were_frozen() -> None:
    assert {name: each.sha256[:16] for name, each in WORKLOADS.items()} == {
        "chat": "55ea09071def34a6",
        "long-prompt": "33bf67bc4150b5f5",
        "rewrite": "eca58eeb5bc3e963",
        "tool-call": "eedbd71061dcf2c7",
    }
