"""Why the prompt cache serves less of a prompt than of an earlier one, from that one's record."""

from array import array
from pathlib import Path

from anyio import to_thread

from models.catalog import Checkpoint
from models.engine.protocol import ids_of
from service.ids import run_of
from service.prompts import Prompt
from service.wire.requests import MessagesRequest
from service.wire.responses import CacheMiss
from storage.errors import StorageError
from storage.jobs import Job, Jobs
from storage.run_records import RunRecord

_UNREADABLE = (StorageError, LookupError, TypeError, ValueError, OverflowError, AttributeError)


class CacheDiagnosis:
    """Compares prompts of the model that is served with recorded ones."""

    def __init__(self, jobs: Jobs, data_dir: Path, checkpoint: Checkpoint) -> None:
        self._jobs = jobs
        self._data_dir = data_dir
        self._model = checkpoint.weights_sha256 or checkpoint.id

    async def of(
        self, request: MessagesRequest, prompt: Prompt, api_key: str | None
    ) -> CacheMiss | None:
        """None when nothing is missed, or no earlier message is named. It never fails: what cannot
        be read is unavailable."""
        asked = request.diagnostics
        if asked is None or asked.previous_message_id is None:
            return None
        try:
            job = await self._job(asked.previous_message_id)
            if job is None or job.api_key != api_key:
                return CacheMiss("previous_message_not_found")
            return await to_thread.run_sync(self._compare, job, prompt)
        except _UNREADABLE:
            return CacheMiss("unavailable")

    async def _job(self, message_id: str) -> Job | None:
        run = run_of(message_id)
        return await self._jobs.get(run) if run else None

    def _compare(self, job: Job, prompt: Prompt) -> CacheMiss | None:
        before = RunRecord.at(self._data_dir / job.record).prompt()
        if not before["ids"]:
            return CacheMiss("unavailable")
        ids = ids_of(before["ids"])
        kept = min(before["boundaries"][-1][0], len(ids) - 1) if before["boundaries"] else len(ids)
        if (before["weights_sha256"] or before["model"]) != self._model:
            return CacheMiss("model_changed", kept)
        missed = kept - _shared(ids, prompt.ids)
        if missed <= 0:
            return None
        if before["system_sha256"] != prompt.digests.system:
            return CacheMiss("system_changed", missed)
        if before["tools_sha256"] != prompt.digests.tools:
            return CacheMiss("tools_changed", missed)
        return CacheMiss("messages_changed", missed)


def _shared(one: "array[int]", other: "array[int]") -> int:
    """How many ids both begin with. Slices are compared in one go, whatever their length."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
