"""A Messages server of the plainest kind, in this process, which can be told what to do wrong."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = {
    "type": "model",
    "id": "plain",
    "display_name": "plain",
    "created_at": "2026-01-01T00:00:00Z",
    "lifecycle": "active",
    "deprecated_at": None,
    "retires_at": None,
    "line": None,
    "max_input_tokens": 32_768,
    "max_tokens": 4096,
    "capabilities": None,
}
Blocks = list[dict[str, Any]]


class MessagesServer:
    """What `answers` makes of a request is what it says. `faults` are any of those below, each
    named where it does something; `dies_after` so many messages it is gone."""

    def __init__(self, answers: Callable[[dict[str, Any]], Blocks]) -> None:
        self.answers = answers
        self.faults: set[str] = set()
        self.dies_after: int | None = None
        self.models: str | None = None  # what it says instead of its models
        self.speed = 1  # what it tells in usage for each token: who is faster has more to tell
        self.requests: list[dict[str, Any]] = []  # for messages
        self._ids = itertools.count(1)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if server.models is not None:
                    self.begin(200, "text/html" if "<" in server.models else "application/json")
                    self.wfile.write(server.models.encode())
                    return None
                if self.path == "/v1/models":
                    ids = {"first_id": MODEL["id"], "last_id": MODEL["id"]}
                    return self.say(200, {"data": [MODEL], "has_more": False, **ids})
                if self.path == f"/v1/models/{MODEL['id']}":
                    return self.say(200, MODEL)
                return self.refuse(404, "not_found_error", "no such model")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                try:
                    request = json.loads(body)
                except ValueError:
                    return self.refuse(400, "invalid_request_error", "the body is no JSON")
                if "no documents" in server.faults and '"document"' in str(body):
                    return self.refuse(400, "invalid_request_error", "no documents")
                if self.path.endswith("count_tokens"):
                    more = "wrong count" in server.faults
                    return self.say(200, {"input_tokens": _tokens(request) + more})
                server.requests.append(request)
                if len(server.requests) == server.dies_after:
                    threading.Thread(target=server._http.shutdown).start()
                    server._http.socket.close()
                    return None  # and the connection ends
                if "no tools" in server.faults and request.get("tools"):
                    return self.refuse(400, "invalid_request_error", "tools are not supported")
                if "accepts anything" not in server.faults:
                    if request["max_tokens"] < 0 or request["messages"][0]["role"] == "nobody":
                        return self.refuse(400, "invalid_request_error", "wrong")
                    if request["model"] != "plain":
                        return self.refuse(404, "not_found_error", "no such model")
                message = server._message(request)
                if not request.get("stream"):
                    return self.say(200, message)
                self.begin(200, "text/event-stream")
                for event in _events(message, server.faults):
                    self.wfile.write(f"event: {event['type']}\n".encode())
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                return None

            def refuse(self, status: int, kind: str, why: str) -> None:
                self.say(status, {"type": "error", "error": {"type": kind, "message": why}})

            def say(self, status: int, body: dict[str, Any]) -> None:
                self.begin(status, "application/json")
                self.wfile.write(json.dumps(body).encode())

            def begin(self, status: int, kind: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                if "no request ids" not in server.faults:
                    self.send_header("request-id", f"req_{next(server._ids)}")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def _message(self, request: dict[str, Any]) -> dict[str, Any]:
        blocks = self.answers(request)
        called = any(each["type"] == "tool_use" for each in blocks)
        return {
            "type": "message",
            "id": "msg_1" if "same ids" in self.faults else f"msg_{next(self._ids)}",
            "role": "assistant",
            "model": "plain",
            "content": blocks,
            "stop_reason": "tool_use" if called else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": _tokens(request) * self.speed,
                "output_tokens": 3 * self.speed,
            },
        }


@contextmanager
def messages_server(answers: Callable[[dict[str, Any]], Blocks]) -> Iterator[MessagesServer]:
    server = MessagesServer(answers)
    try:
        yield server
    finally:
        server.close()


def said(text: str) -> Blocks:
    return [{"type": "text", "text": text}]


def called(name: str, **arguments: Any) -> Blocks:
    return [{"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}]


def _tokens(request: dict[str, Any]) -> int:
    """As many as what it says has characters."""
    prompt = [request.get(key) for key in ("messages", "system", "tools")]
    return len(json.dumps(prompt))


def _events(message: dict[str, Any], faults: set[str]) -> Iterator[dict[str, Any]]:
    empty = {**message, "content": [], "stop_reason": None}
    if "no start" not in faults:
        yield {"type": "message_start", "message": empty}
    for place, block in enumerate(message["content"]):
        index = place + ("wrong index" in faults)
        if block["type"] == "text":
            begun, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            text = json.dumps(block["input"])
            begun, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": text}
        begin = {"index": index, "content_block": block | begun}
        yield {"type": "content_block_start", **begin}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": message["usage"]}
    if "no stop" not in faults:
        yield {"type": "message_stop"}
