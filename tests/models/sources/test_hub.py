import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub.constants
import numpy as np
import pytest

from models.catalog import CheckpointError, installed
from models.safetensors_file import write_float32
from models.sources import pull

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = "model.safetensors"


class Hub(ThreadingHTTPServer):
    """The part of a hub that a download needs, for the repository org/tiny in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder = folder
        self.known = True
        self.breaks = False  # connections that carry weights end half-way
        self.fetched: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self.server.known:
            self.answer(b"", status=404, fault="RepoNotFound")
        elif path == "/api/models/org/tiny":
            self.answer(json.dumps({"id": "org/tiny", "sha": COMMIT}).encode())
        elif path.startswith(f"/api/models/org/tiny/tree/{COMMIT}"):
            self.answer(json.dumps([entry(file) for file in self.server.folder.iterdir()]).encode())
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            self.answer_file(path.rpartition("/")[2])
        else:
            self.answer(b"", status=404)

    def answer_file(self, name: str) -> None:
        content = (self.server.folder / name).read_bytes()
        if self.command == "GET":
            self.server.fetched.append(name)
        if name != WEIGHTS or not self.server.breaks:
            self.answer(content)
        elif self.server.fetched.count(name) > 1:  # the library's own attempts to go on
            self.answer(b"", status=400)
        else:
            self.answer(content, sent=len(content) // 2)

    def answer(
        self,
        body: bytes,
        *,
        status: int = 200,
        fault: str | None = None,
        sent: int | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if fault is not None:
            self.send_header("X-Error-Code", fault)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])

    def log_message(self, format: str, *args: object) -> None:
        pass


def entry(file: Path) -> dict[str, object]:
    oid = hashlib.sha1(file.read_bytes()).hexdigest()
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": oid}


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    constants = huggingface_hub.constants
    files = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)


@pytest.fixture
def hub(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    rows = np.ones((1000, 100), np.float32)
    write_float32(model_folder / WEIGHTS, {"x": rows.shape}, [rows])
    (model_folder / "README.md").write_text("not needed")
    with Hub(model_folder) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        address = f"http://127.0.0.1:{server.server_port}"
        use_hub(monkeypatch, address)
        yield server
        server.shutdown()


def refusal(models_dir: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        pull("org/tiny", models_dir)
    assert "\n" not in str(error.value)
    assert installed(models_dir) == []
    return str(error.value)


def test_a_repository_is_downloaded_without_what_is_not_needed(hub: Hub, tmp_path: Path):
    checkpoint = pull("org/tiny", tmp_path / "models")
    assert checkpoint.id == "org--tiny"
    assert checkpoint.source == "hub org/tiny"
    assert sorted(file.name for file in checkpoint.path.iterdir()) == [
        "config.json",
        WEIGHTS,
        "receipt.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((checkpoint.path / "receipt.json").read_text())["revision"] == COMMIT


def test_an_interrupted_download_fetches_only_the_rest_next_time(hub: Hub, tmp_path: Path):
    hub.breaks = True
    refusal(tmp_path / "models")
    hub.breaks = False
    hub.fetched.clear()
    checkpoint = pull("org/tiny", tmp_path / "models")
    assert hub.fetched == [WEIGHTS]
    assert (checkpoint.path / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()


def test_an_unknown_repository_is_named(hub: Hub, tmp_path: Path):
    hub.known = False
    assert "check the name" in refusal(tmp_path / "models")


def test_without_a_network_the_message_says_how_to_use_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_hub(monkeypatch, "http://127.0.0.1:9")
    message = refusal(tmp_path / "models")
    assert "offline" in message
    assert "`mererun models pull /path/to/folder`" in message
