"""`GET /v1/models` and `GET /v1/models/{id}`: the served model and what it can do."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from quart import Quart, Response, jsonify

from service.core import Core


class ModelRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def mount(self, app: Quart) -> None:
        app.add_url_rule("/v1/models", view_func=self.list_models)
        # A path, since a model's id may hold a slash.
        app.add_url_rule("/v1/models/<path:model_id>", view_func=self.show_model)

    async def list_models(self) -> Response:
        model = self._describe()
        return jsonify(
            {"data": [model], "has_more": False, "first_id": model["id"], "last_id": model["id"]}
        )

    async def show_model(self, model_id: str) -> Response:
        self._core.preparation.check_model(unquote(model_id))
        return jsonify(self._describe())

    def _describe(self) -> dict[str, Any]:
        checkpoint = self._core.checkpoint
        return {
            "type": "model",
            "id": checkpoint.id,
            "display_name": checkpoint.display_name,
            "created_at": datetime.fromtimestamp(checkpoint.created_at, UTC).isoformat(),
            "lifecycle": "active",
            "deprecated_at": None,
            "retires_at": None,
            "line": None,
            "max_input_tokens": self._core.context_tokens,
            "max_tokens": self._core.max_output_tokens,
            "capabilities": _CAPABILITIES,
        }


_NO = {"supported": False}
_YES = {"supported": True}

# What this version can do with text alone; families add to it as they are built.
_CAPABILITIES: dict[str, Any] = {
    "batch": _YES,
    "citations": _NO,
    "code_execution": _NO,
    "image_input": _NO,
    "pdf_input": _NO,
    "structured_outputs": _NO,
    "effort": {
        "supported": False,
        "low": _NO,
        "medium": _NO,
        "high": _NO,
        "xhigh": _NO,
        "max": _NO,
    },
    "thinking": {
        "supported": False,
        "types": {"adaptive": _NO, "between_tools": _NO, "disabled": _YES, "enabled": _NO},
    },
    "context_management": {
        "supported": False,
        "clear_tool_uses_20250919": _NO,
        "clear_thinking_20251015": _NO,
        "compact_20260112": _NO,
    },
    "server_tools": {"supported": False, "web_search": _NO, "code_execution": _NO},
}
