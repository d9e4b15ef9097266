"""`GET /v1/models` and `GET /v1/models/{id}`: the served model and what it can do."""

from datetime import UTC, datetime
from typing import Any, get_args
from urllib.parse import unquote

from quart import Quart, Response, jsonify

from models.conversation import Effort
from models.families.family import Capabilities, ThinkingKind
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
            "capabilities": _capabilities(
                self._core.family.capabilities, grammar=self._core.settings.grammar
            ),
        }


def _supported(value: bool) -> dict[str, bool]:
    return {"supported": value}


def _capabilities(can: Capabilities, *, grammar: bool) -> dict[str, Any]:
    """What is left out here is not there in this version, whatever the model."""
    no = _supported(False)
    return {
        "batch": _supported(True),
        "citations": no,
        "code_execution": no,
        "image_input": _supported(can.images),
        "pdf_input": no,
        "structured_outputs": _supported(can.structured_outputs and grammar),
        "effort": {
            "supported": bool(can.efforts),
            **{each: _supported(each in can.efforts) for each in get_args(Effort)},
        },
        "thinking": {
            "supported": bool(can.thinking),
            "types": {
                "disabled": _supported(True),
                **{each: _supported(each in can.thinking) for each in get_args(ThinkingKind)},
            },
        },
        "context_management": {
            "supported": True,
            "clear_tool_uses_20250919": _supported(True),
            "clear_thinking_20251015": _supported(True),
            "compact_20260112": no,
        },
        "compaction": {"supported": True, "summarize": _supported(True)},
        "server_tools": {"supported": False, "web_search": no, "code_execution": no},
    }
