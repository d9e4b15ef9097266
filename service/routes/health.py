"""`GET /healthz` and `HEAD /`: is anybody there, and ready?"""

from quart import Quart, Response, jsonify

from service.core import Core


class HealthRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def mount(self, app: Quart) -> None:
        app.add_url_rule("/", view_func=self.root)
        app.add_url_rule("/healthz", view_func=self.health)

    async def root(self) -> Response:
        return jsonify({"service": "mererun", "model": self._core.checkpoint.id})

    async def health(self) -> Response:
        """503 while the engine cannot take a job, and once the service is shutting down."""
        core = self._core
        status = core.engine.status.condition if core.admission.open else "shutting down"
        response = jsonify({"status": status})  # strangers may ask: `/v1/runtime` has the reason
        response.status_code = 200 if status in ("ready", "busy") else 503
        return response
