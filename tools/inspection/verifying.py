"""Whether the stored runs are consistent, also while a service adds to them."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from storage.run_records import RunRecord
from storage.verification import StoredRun, disagreements, exposures, record_folders
from tools.inspection.archive import Archive, Wanted

# A record is written before its row: one that is found without it may be waiting for it.
_ADMISSION_SECONDS = 2.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Verified:
    """One run, or one record without a run, and what is wrong with it.

    A service killed while it admits a request leaves a record that never became a run. That is no
    fault: its client was told nothing.
    """

    name: str
    findings: list[str]
    admitted: bool = True


async def verify_all(archive: Archive) -> AsyncIterator[Verified]:
    """Every run, then whatever lies among the records and belongs to none."""
    # Before the rows are read, so that a record that is new by then cannot be missing one.
    folders = list(record_folders(archive.data_dir))
    known: set[str] = set()
    async for job in archive.runs(Wanted()):
        known.add(job.id)
        yield await verify_one(archive, job.id)
    deadline = anyio.current_time() + _ADMISSION_SECONDS
    for folder in folders:
        if folder.name not in known and not await _appears(archive, folder.name, deadline):
            # A record leaves this list when it is gone.
            if await archive.is_discarded(folder) or not folder.exists():
                continue
            if RunRecord.at(folder).begun:
                finding = f"{_shown(folder, archive)} is a record without a run"
                yield Verified(folder.name, [finding])
            else:
                yield Verified(folder.name, [], admitted=False)
    for folder in sorted({parent for each in folders for parent in list(each.parents)[:4]}):
        with suppress(FileNotFoundError):  # empty now, and so removed
            if findings := list(exposures(folder)):
                yield Verified(_shown(folder, archive), findings)


async def verify_one(archive: Archive, run_id: str) -> Verified:
    """A run that moves on between the reading of its row and of its record is read again."""
    stored = await archive.stored(run_id)
    while stored is not None:
        findings = await anyio.to_thread.run_sync(
            partial(disagreements, stored, archive.data_dir, shared=archive.db.shared)
        )
        if not findings:
            return Verified(run_id, [])
        again = await archive.stored(run_id)
        if again is None:
            break
        if _still(again) == _still(stored):
            return Verified(run_id, findings)
        stored = again
    return Verified(run_id, [])  # it was removed meanwhile


async def _appears(archive: Archive, run_id: str, deadline: float) -> bool:
    while not await archive.knows(run_id):
        if anyio.current_time() > deadline:
            return False
        await anyio.sleep(_POLL_SECONDS)
    return True


def _still(stored: StoredRun) -> StoredRun:
    """The run without what its lease keeper changes."""
    return replace(stored, job=replace(stored.job, lease_expires_at=None))


def _shown(folder: Path, archive: Archive) -> str:
    return str(folder.relative_to(archive.data_dir))
