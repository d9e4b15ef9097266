"""What `mererun serve` refuses, and what it leaves."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import httpx
import pytest

from service.cli import keys_add, serve_command
from service.commands.models import list_models
from tests.support.running import REPOSITORY, real_service
from tools.inspect_runs import list_command


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


two_addresses = pytest.mark.skipif(not has_ipv6(), reason="there is one local address")


def serve(model: Path, data_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Of a command that must end by itself."""
    command = [sys.executable, "-m", "service.cli", "serve", "--model", str(model), "--port", "0"]
    return subprocess.run(
        [*command, "--data-dir", str(data_dir), *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )


def without_folder(tiny: Path, tmp_path: Path) -> list[str]:
    return ["--ready-file", str(tmp_path / "missing" / "ready.json")]


def with_a_folder_in_its_place(tiny: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "ready.json").mkdir()
    return ["--ready-file", str(tmp_path / "ready.json")]


def with_a_tokenizer_of_nothing(tiny: Path, tmp_path: Path) -> list[str]:
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "tokenizer.json").write_text('{"added_tokens": []}')
    return ["--model", str(folder)]


def with_an_unknown_home(tiny: Path, tmp_path: Path) -> list[str]:
    return ["--model", "~nobody-of-that-name"]


def without_a_key(tiny: Path, tmp_path: Path) -> list[str]:
    return ["--host", "0.0.0.0"]


def with_a_busy_port(tiny: Path, tmp_path: Path) -> list[str]:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    taken.detach()  # it stays open
    return ["--port", str(port)]


def with_a_word_for_a_database(tiny: Path, tmp_path: Path) -> list[str]:
    return ["--database-url", "mererun"]


def with_no_number(tiny: Path, tmp_path: Path) -> list[str]:
    return ["--retain-gib", "nan"]


def with_no_end(tiny: Path, tmp_path: Path) -> list[str]:
    return ["--retain-days", "inf"]


@pytest.mark.parametrize(
    ("arrange", "said"),
    [
        (without_folder, "choose another --ready-file"),
        (with_a_folder_in_its_place, "choose another --ready-file"),
        (with_a_tokenizer_of_nothing, "tokenizer.json"),
        (with_an_unknown_home, "neither an installed model nor a model folder"),
        (without_a_key, "add --api-key-file"),
        (with_a_word_for_a_database, "'--database-url'"),
        (with_no_number, "'--retain-gib'"),
        (with_no_end, "'--retain-days'"),
        (with_a_busy_port, "stop what uses it or choose another --port"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(
    tiny: Path, tmp_path: Path, arrange: Callable[[Path, Path], list[str]], said: str
) -> None:
    ended = serve(tiny, tmp_path / "data", *arrange(tiny, tmp_path))
    *_, last = ended.stderr.splitlines()
    assert last.startswith("Error: ")
    assert said in last
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 2


@two_addresses
def test_the_service_is_at_both_local_addresses(tiny: Path, tmp_path: Path) -> None:
    with real_service(tiny, tmp_path / "data") as running:
        port = httpx.URL(running.url).port
        for host in ("127.0.0.1", "[::1]"):
            assert httpx.get(f"http://{host}:{port}/healthz").status_code == 200


@two_addresses
def test_another_program_at_the_other_local_address_is_left_alone(
    tiny: Path, tmp_path: Path
) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with real_service(tiny, tmp_path / "data", "--port", str(port)) as running:
            assert running.url == f"http://127.0.0.1:{port}"


def test_the_ready_file_of_a_killed_service_is_gone_while_the_next_one_loads(
    tiny: Path, tmp_path: Path
) -> None:
    with real_service(tiny, tmp_path) as service:
        ready = tmp_path / "ready.json"
        assert json.loads(ready.read_text()) == {"url": service.url, "pid": service.process.pid}
        service.kill()
        assert ready.exists()
        weights = shutil.copytree(tiny, tmp_path / "half") / "model.safetensors"
        weights.write_bytes(weights.read_bytes().replace(b"model.norm", b"model.mnor"))
        failed = serve(tmp_path / "half", tmp_path, "--ready-file", str(ready))
    assert failed.returncode == 2, failed.stderr
    assert not list(tmp_path.glob("ready.json*"))


@pytest.mark.parametrize("command", [serve_command, keys_add, list_models, list_command])
def test_a_tilde_is_the_home_folder_for_every_command(
    command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    paths = [each for each in command.params if isinstance(each.type, click.Path)]
    assert paths
    for option in paths:
        assert option.type.convert("~/x", option, None) == Path("/home/somebody/x")


def test_every_option_has_its_variable() -> None:
    for option in serve_command.params:
        assert option.envvar == f"MERERUN_{option.opts[0][2:].replace('-', '_').upper()}"
