"""`GET /v1/runs`, `GET /v1/runs/{id}`, `POST /v1/runs/{id}/cancel` and `…/resume`."""

from dataclasses import asdict
from typing import Any

from quart import Quart, Response, g, jsonify, request

from service.core import Core
from service.errors import ApiError
from service.routes.queries import limit
from storage.jobs import Job, JobState
from storage.telemetry import telemetry_of

_LIMIT = 100


class RunRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def mount(self, app: Quart) -> None:
        app.add_url_rule("/v1/runs", view_func=self.list_runs)
        app.add_url_rule("/v1/runs/<run_id>", view_func=self.show_run)
        app.add_url_rule("/v1/runs/<run_id>/cancel", view_func=self.cancel_run, methods=["POST"])
        app.add_url_rule("/v1/runs/<run_id>/resume", view_func=self.resume_run, methods=["POST"])

    async def list_runs(self) -> Response:
        """Those of the caller's key, newest first; `?state=`, `?limit=` up to 100, and
        `?before_id=` for the next page."""
        states = [_state(each) for each in request.args.getlist("state")]
        most = limit(_LIMIT, _LIMIT)
        before = request.args.get("before_id")
        if before is not None and await _known(self._core, before) is None:
            raise ApiError.not_found(
                f"before_id: the run {before[:100]} is not known here (any more); list from the"
                " start again"
            )
        found = await self._core.jobs.list(
            states=states or None,
            api_key=g.api_key,
            limit=most + 1,
            before=before,
        )
        page = [_describe(job) for job in found[:most]]
        return jsonify(
            {
                "data": page,
                "has_more": len(found) > most,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
            }
        )

    async def show_run(self, run_id: str) -> Response:
        job = await run_of(self._core, run_id)
        history = await self._core.jobs.history(run_id)
        telemetry = await telemetry_of(self._core.db, run_id)
        return jsonify(
            {
                **_describe(job),
                "queue_position": await self._core.jobs.position(run_id),
                "history": [asdict(each) for each in history],
                "telemetry": asdict(telemetry) if telemetry else None,
            }
        )

    async def cancel_run(self, run_id: str) -> Response:
        """Accepted for a queued or running run; of no effect on one that has ended."""
        await run_of(self._core, run_id)
        by = f" by {g.api_key}" if g.api_key else ""
        await self._core.cancellation.request(run_id, f"requested{by} through the API")
        return jsonify(_describe(await run_of(self._core, run_id)))

    async def resume_run(self, run_id: str) -> Response:
        """Have a run that was cancelled or interrupted go on to its end, in the background."""
        core, job = self._core, await run_of(self._core, run_id)
        why_not = await core.resume(job)
        if why_not is not None:
            # Not 409, which SDKs send again.
            raise ApiError.invalid(f"run: {why_not}")
        response = jsonify(_describe(await run_of(self._core, run_id)))
        response.status_code = 202
        return response


async def run_of(core: Core, run_id: str) -> Job:
    """The run, if it is one of the caller's key. Raises ApiError 404."""
    if (job := await _known(core, run_id)) is None:
        raise ApiError.not_found(f"run: {run_id[:100]} is not known here")
    return job


async def _known(core: Core, run_id: str) -> Job | None:
    job = await core.jobs.get(run_id)
    return job if job and g.api_key in (None, job.api_key) else None


def _describe(job: Job) -> dict[str, Any]:
    return {"type": "run", **asdict(job)}


def _state(name: str) -> JobState:
    try:
        return JobState(name)
    except ValueError:
        raise ApiError.invalid(f"state: Input should be one of {', '.join(JobState)}") from None
