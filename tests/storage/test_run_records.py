import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from storage.errors import StorageError
from storage.run_records import RunRecord

CREATED_AT = datetime(2026, 3, 9, 23, 59, 59, tzinfo=UTC).timestamp()


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord.create(
        tmp_path, "run_1", CREATED_AT, request={"model": "m"}, prompt={"tokens": [1, 2]}
    )


def test_a_record_lies_under_the_day_it_was_made(tmp_path: Path, record: RunRecord) -> None:
    assert record.path == tmp_path / "runs" / "2026" / "03" / "09" / "run_1"
    assert sorted(os.listdir(record.path)) == ["prompt.json", "request.json"]


def test_a_day_that_is_removed_for_being_empty_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, day = Path.mkdir, tmp_path / "runs" / "2026" / "03" / "09"
    removed: list[Path] = []

    def watched(folder: Path, **more: Any) -> None:
        if folder.name == "run_1" and not removed:
            removed.append(day)
            day.rmdir()
        mkdir(folder, **more)

    monkeypatch.setattr(Path, "mkdir", watched)
    record = RunRecord.create(tmp_path, "run_1", CREATED_AT, request={}, prompt={})
    assert removed
    assert record.request() == {}


def test_only_its_user_can_read_a_record(tmp_path: Path, record: RunRecord) -> None:
    record.append([{"type": "admitted"}])
    record.close(response={}, telemetry={})
    for item in (tmp_path / "runs").rglob("*"):
        mode = stat.S_IMODE(item.stat().st_mode)
        assert mode == (0o700 if item.is_dir() else 0o600), item


def test_a_record_tells_the_run_from_request_to_answer(record: RunRecord) -> None:
    assert not record.closed
    assert record.response() is None
    record.append([{"type": "admitted"}, {"type": "tokens", "ids": [7]}])
    record.append([{"type": "done"}])
    record.close(response={"text": "hi"}, telemetry={"queue_seconds": 0.5})

    read = RunRecord.at(record.path)
    assert read.closed
    assert read.request() == {"model": "m"}
    assert read.prompt() == {"tokens": [1, 2]}
    assert read.events() == [
        {"seq": 1, "type": "admitted"},
        {"seq": 2, "type": "tokens", "ids": [7]},
        {"seq": 3, "type": "done"},
    ]
    assert read.response() == {"text": "hi"}
    assert read.telemetry() == {"queue_seconds": 0.5}
    assert sorted(os.listdir(record.path)) == [
        "events.jsonl",
        "prompt.json",
        "request.json",
        "response.json",
        "telemetry.json",
    ]


def test_a_run_that_was_not_measured_has_no_telemetry(record: RunRecord) -> None:
    record.close(response={"error": "why"}, telemetry=None)
    assert record.closed
    assert record.telemetry() is None
    assert record.events() == []


@pytest.mark.parametrize("torn", [b'{"seq":3,"ty', b'{"seq":3,"type":"x"}', b"\0" * 40, b"\0\n"])
def test_a_line_torn_by_a_crash_is_left_out_and_the_next_one_is_whole(
    record: RunRecord, torn: bytes
) -> None:
    record.append([{"type": "a"}, {"type": "b"}])
    with (record.path / "events.jsonl").open("ab") as file:
        file.write(torn)
    resumed = RunRecord.at(record.path)
    whole = [{"seq": 1, "type": "a"}, {"seq": 2, "type": "b"}]
    assert resumed.events() == whole
    resumed.append([{"type": "c"}])
    assert resumed.events() == [*whole, {"seq": 3, "type": "c"}]


def test_damage_inside_the_events_is_told_by_line(record: RunRecord) -> None:
    (record.path / "events.jsonl").write_bytes(b'{"seq":1}\n{"se\n{"seq":3}\n')
    with pytest.raises(StorageError, match=r"runs/2026/03/09/run_1 is damaged in line 2"):
        record.events()


def test_a_rename_undone_by_a_power_cut_loses_nothing(record: RunRecord) -> None:
    record.close(response={"text": "hi"}, telemetry=None)
    for name in ("request.json", "response.json"):
        (record.path / name).rename(record.path / f"{name}.tmp")
    read = RunRecord.at(record.path)
    assert read.closed
    assert (read.request(), read.response()) == ({"model": "m"}, {"text": "hi"})


def test_a_half_written_answer_is_no_answer(record: RunRecord) -> None:
    (record.path / "response.json.tmp").write_bytes(b'{"text":"h')
    assert not record.closed
    record.close(response={"text": "hi"}, telemetry=None)
    assert record.response() == {"text": "hi"}


def test_the_answer_appears_after_all_else_is_on_disk(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[str] = []
    rename = Path.rename

    def watched(source: Path, target: Path) -> Path:
        renamed.append(target.name)
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", watched)
    record.close(response={}, telemetry={})
    assert renamed == ["telemetry.json", "response.json"]


def test_an_existing_record_is_not_overwritten(tmp_path: Path, record: RunRecord) -> None:
    with pytest.raises(StorageError, match="could not be written: File exists"):
        RunRecord.create(tmp_path, "run_1", CREATED_AT, request={}, prompt={})
    assert record.request() == {"model": "m"}


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"has no readable request\.json"):
        RunRecord.at(tmp_path / "runs" / "2026" / "03" / "09" / "none").request()


def test_events_that_do_not_fit_are_taken_back(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.append([{"type": "a"}])
    write = os.write
    calls = iter([True, False])

    def full(descriptor: int, data: memoryview) -> int:
        if next(calls, False):
            return write(descriptor, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        record.append([{"type": "b"}])
    monkeypatch.undo()
    record.append([{"type": "c"}])
    assert record.events() == [{"seq": 1, "type": "a"}, {"seq": 2, "type": "c"}]


def test_what_a_client_can_send_can_be_kept(tmp_path: Path) -> None:
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    request = {"half": "cut \ud83d", "large": 1 << 70, "nul": "\0", "deep": deep}
    record = RunRecord.create(tmp_path, "odd", CREATED_AT, request=request, prompt={})
    assert record.request() == {
        "half": "cut ?",
        "large": float(1 << 70),
        "nul": "\0",
        "deep": deep,
    }
