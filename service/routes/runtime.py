"""`GET /v1/runtime`: what the service is doing, what is on, and why."""

import os
from dataclasses import asdict
from typing import Any

import psutil
from anyio import to_thread
from quart import Quart, Response, jsonify

from models.engine.host import EngineStatus
from service.core import Core
from storage.jobs import JobState


class RuntimeRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def mount(self, app: Quart) -> None:
        app.add_url_rule("/v1/runtime", view_func=self.show_runtime)

    async def show_runtime(self) -> Response:
        core = self._core
        engine = core.engine.status
        counts = await core.jobs.counts()
        return jsonify(
            {
                "type": "runtime",
                "admission": {
                    "open": core.admission.open,
                    "queued": counts[JobState.QUEUED],
                    "running": counts[JobState.RUNNING],
                    "limit": core.settings.queue_limit,
                },
                "model": {
                    "id": core.checkpoint.id,
                    "family": core.family.name,
                    "context_tokens": core.context_tokens,
                    "max_output_tokens": core.max_output_tokens,
                    "weights_sha256": core.checkpoint.weights_sha256,
                },
                "engine": asdict(engine),
                "memory": {
                    "service_bytes": await to_thread.run_sync(_resident_bytes, os.getpid()),
                    "engine_bytes": await to_thread.run_sync(_resident_bytes, engine.pid),
                },
                "runs": counts,
                "optional": _optional(engine),
            }
        )


def _resident_bytes(pid: int | None) -> int | None:
    try:
        return psutil.Process(pid).memory_info().rss if pid else None
    except psutil.Error:
        return None


def _optional(engine: EngineStatus) -> dict[str, Any]:
    facts = engine.facts or {}
    blas, dense = facts.get("blas"), facts.get("device") == "cpu"
    return {
        "fast_blas": {
            "on": blas is not None,
            "why": blas
            or ("the device is a GPU" if facts and not dense else "no OpenBLAS was found"),
        },
        "dense_float32": {
            "on": dense,
            "why": "a CPU has no fast product of any other kind"
            if dense
            else "the device is a GPU",
        },
        "prompt_cache": {"on": False, "why": "not in this version"},
        "speculation": {"on": False, "why": "not in this version"},
    }
