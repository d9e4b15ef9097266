"""`GET /v1/runtime`: what the service is doing, what is on, and why."""

import os
from dataclasses import asdict
from typing import Any

import psutil
from anyio import to_thread
from quart import Quart, Response, jsonify

from models.engine.host import EngineStatus
from models.families.family import Capabilities
from service.core import Core
from service.settings import Settings
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
                    "source": core.checkpoint.source,
                    "path": str(core.checkpoint.path.absolute()),
                },
                "engine": asdict(engine),
                "memory": {
                    "service_bytes": await to_thread.run_sync(_resident_bytes, os.getpid()),
                    "engine_bytes": await to_thread.run_sync(_resident_bytes, engine.pid),
                },
                "runs": counts,
                "optional": {
                    **optional_paths(core.settings, engine),
                    **cache_paths(core.settings, engine),
                    "grammar": _grammar(core.settings.grammar, core.family.capabilities),
                },
            }
        )


def _resident_bytes(pid: int | None) -> int | None:
    try:
        return psutil.Process(pid).memory_info().rss if pid else None
    except psutil.Error:
        return None


def optional_paths(settings: Settings, engine: EngineStatus) -> dict[str, Any]:
    """What could be on in any engine: whether it is, and why."""
    return {
        **_chosen_at_load(engine.facts),
        "speculation": _speculation(settings, engine.facts),
    }


def _speculation(settings: Settings, facts: dict[str, Any] | None) -> dict[str, Any]:
    if not settings.speculation:
        return _off("the service was started with --speculation off")
    if facts is None:
        return _off("the engine has not loaded the model yet")
    if not facts["speculates"]:
        return _off("what this model has read cannot be taken back")
    drafter: dict[str, Any] | None = facts["drafter"]
    if drafter is None:
        return _on("the default: drafts come from the text itself")
    return _on(
        f"the default: drafts come from the text and the {drafter['kind']} {drafter['name']}"
    )


def cache_paths(settings: Settings, engine: EngineStatus) -> dict[str, Any]:
    """Where the prompt cache keeps what: whether it does, and why."""
    if settings.cache_memory_gib == 0:
        off = _off("the service was started with --cache-memory-gib 0")
        return {"prompt_cache": off, "prompt_cache_disk": off}
    return {
        "prompt_cache": _on("the default"),
        "prompt_cache_disk": _cache_disk(settings, engine.cache),
    }


def _cache_disk(settings: Settings, facts: dict[str, Any] | None) -> dict[str, Any]:
    if settings.cache_disk_gib == 0:
        return _off("the service was started without --cache-disk-gib")
    disk: dict[str, Any] | None = (facts or {}).get("disk")
    if disk is None:
        return _off("the engine has not said yet whether it can be used")
    if not disk["on"]:
        return _off(disk["why"])
    return _on("the service was started with --cache-disk-gib")


def _chosen_at_load(facts: dict[str, Any] | None) -> dict[str, Any]:
    if facts is None:
        unknown = _off("the engine has not loaded the model yet")
        return {"fast_blas": unknown, "dense_float32": unknown}
    if facts["device"] != "cpu":
        needless = _off("the device is a GPU")
        return {"fast_blas": needless, "dense_float32": needless}
    blas = facts["blas"]
    return {
        "fast_blas": _on(blas) if blas else _off("no OpenBLAS was found"),
        "dense_float32": _on("a CPU has no fast product of any other kind"),
    }


def _grammar(is_on: bool, can: Capabilities) -> dict[str, Any]:
    if not (can.tools or can.structured_outputs):
        return _off("the model's answers are text alone")
    return _on("the default") if is_on else _off("the service was started with --grammar off")


def _on(why: str) -> dict[str, Any]:
    return {"on": True, "why": why}


def _off(why: str) -> dict[str, Any]:
    return {"on": False, "why": why}
