"""`tools/inspect-runs`, over runs whose answers are more than text."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.fake_language import ids_of, write_fake_checkpoint
from tests.support.messages import body
from tests.support.running import scripted_service
from tools.inspect_runs import main

SAID = '<think>hm\x1b[2J</think>See.<call>run:{"cmd":"ls é"}</call><call>now:{}</call>Done.'
CUT = '<think>hm</think><call>run:{"cmd":"ls'
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("run", "now")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """A data folder, a run that said everything, and one that tokens ran out for."""
    folder = tmp_path_factory.mktemp("blocks")
    model = write_fake_checkpoint(folder / "tiny")
    with scripted_service(model, folder / "data") as service, service.client() as client:
        ids: list[str] = []
        for said, tokens in ((SAID, 200), (CUT, len(ids_of(CUT)))):
            request = body(json.dumps({"say": said}), tools=TOOLS, thinking={"type": "adaptive"})
            answer = client.post("/v1/messages", json={**request, "max_tokens": tokens})
            ids.append(answer.raise_for_status().headers["mererun-run"])
        yield folder / "data", ids[0], ids[1]


def inspect(data_dir: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--data-dir", str(data_dir)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_tells_thinking_and_calls_apart_from_text(runs: tuple[Path, str, str]) -> None:
    shown = inspect(runs[0], "show", runs[1])
    for part in (
        "\n    [thinking] hm\\x1b[2J\n",
        "\n    See.\n",
        '\n    [call of run] {"cmd": "ls é"}\n',
        "\n    [call of now] {}\n",
        "\n    of it        8 thinking\n",
    ):
        assert part in shown


def test_replay_prints_thinking_and_calls_as_they_streamed(runs: tuple[Path, str, str]) -> None:
    assert inspect(runs[0], "replay", runs[1]) == (
        "hm\\x1b[2J\n[end of thinking]\nSee."
        '\n[call of run] {"cmd":"ls é"}\n\n[call of now] {}\nDone.\n'
    )
    assert inspect(runs[0], "replay", runs[2]).endswith('\n[call of run] {"cmd":"ls\n')


def test_runs_with_thinking_and_calls_verify(runs: tuple[Path, str, str]) -> None:
    assert inspect(runs[0], "verify") == "2 runs verified\n"
