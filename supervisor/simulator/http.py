"""Serves the engine's HTTP endpoints with plain sockets and threads: http.server alone costs 30 ms to import."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from supervisor.simulator import texts
from supervisor.simulator.engine import Engine, Status
from supervisor.simulator.metrics import metrics_page

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}
_MAX_HEAD = 64 * 1024
_NO_KEY = ("/health", "/health_generate", "/metrics", "/ready", "/ping")
_DEPRECATED = "Endpoint '{old}' is deprecated and will be removed in a future version. Please use '{new}' instead."


class Request(NamedTuple):
    """One parsed request."""

    client: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def data(self) -> dict[str, object]:
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise TypeError("the body is not a JSON object")
        return value


class Answer(NamedTuple):
    """A whole answer, or a stream of server-sent events when `chunks` is set."""

    status: int
    body: bytes = b""
    kind: str = "application/json"
    chunks: Iterator[bytes] | None = None


class HttpServer:
    """Binds when told to, never before: connections are refused while the engine loads."""

    def __init__(self, engine: Engine, dummy: bool = False) -> None:
        self._engine = engine
        self._routes = self._dummy_routes() if dummy else self._all_routes()
        self._listener: socket.socket | None = None

    def bind(self) -> None:
        """Raise OSError (EADDRINUSE) when somebody else has the port."""
        options = self._engine.options
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(128)
        self._listener = listener

    def start(self) -> None:
        """Accept connections from now on; bind() comes first."""
        threading.Thread(target=self._accept, args=(self._listener,), name="http", daemon=True).start()

    def close(self) -> None:
        if self._listener:
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return  # closed by the shutdown
            client = f"{address[0]}:{address[1]}"
            threading.Thread(target=self._converse, args=(connection, client), daemon=True).start()

    def _converse(self, connection: socket.socket, client: str) -> None:
        with connection, contextlib.suppress(ConnectionError):  # the client may leave at any time
            reader = connection.makefile("rb")
            while request := _read_request(reader.readline, reader.read, client):
                self._engine.hold_if_frozen()
                self._reply(connection, request, self._handle(request))
                if request.headers.get("connection", "").lower() == "close":
                    return

    def _handle(self, request: Request) -> Answer:
        route = self._routes.get(request.path.partition("?")[0])
        if route is None:
            return Answer(404, b'{"detail":"Not Found"}')
        key = self._engine.options.api_key
        if key and request.path not in _NO_KEY and request.headers.get("authorization") != f"Bearer {key}":
            return Answer(401, b'{"error":"Unauthorized"}')
        try:
            return route(request)
        except (ValueError, TypeError, AttributeError) as error:
            return Answer(400, json.dumps({"error": {"message": str(error)}}).encode())

    def _reply(self, connection: socket.socket, request: Request, answer: Answer) -> None:
        """The access line of a stream comes with its head, of anything else before the body is gone."""
        self._engine.hold_if_frozen()
        reason = _REASONS[answer.status]
        line = texts.access(request.client, request.method, request.path, answer.status, reason)
        self._engine.log.record(line, stdout=True)
        head = f"HTTP/1.1 {answer.status} {reason}\r\nserver: uvicorn\r\n"
        if answer.chunks is None:
            head += f"content-length: {len(answer.body)}\r\n"
            head += f"content-type: {answer.kind}\r\n" if answer.body else ""
            connection.sendall(head.encode() + b"\r\n" + answer.body)
            return
        head += "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for chunk in answer.chunks:
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        connection.sendall(b"0\r\n\r\n")

    def _dummy_routes(self) -> dict[str, Callable[[Request], Answer]]:
        """Nodes above 0 only say that their own ranks have loaded."""
        return {path: lambda _: Answer(200) for path in ("/health", "/health_generate", "/ping")}

    def _all_routes(self) -> dict[str, Callable[[Request], Answer]]:
        dialect = self._engine.plan.dialect
        routes: dict[str, Callable[[Request], Answer]] = {
            "/health": self._health, "/health_generate": self._health, "/get_model_info": self._old_model_info,
            "/get_server_info": self._server_info, "/v1/models": self._models, "/ping": lambda _: Answer(200),
            "/generate": self._generate, "/v1/completions": self._completions,
            "/v1/chat/completions": self._completions, "/flush_cache": lambda _: Answer(200),
        }  # fmt: skip
        if dialect.model_info_path == "/model_info":
            routes |= {"/model_info": self._model_info, "/server_info": self._server_info}
        if dialect.has_ready:
            routes["/ready"] = self._ready
        if self._engine.options.enable_metrics:
            routes["/metrics"] = self._metrics
        return routes

    # --- endpoints

    def _health(self, request: Request) -> Answer:
        engine = self._engine
        if engine.zombie:
            return Answer(200)
        if engine.draining:
            engine.log.record(texts.HEALTH_WHILE_DRAINING)
            return Answer(503)
        if engine.status is Status.STARTING:
            return Answer(503)
        if engine.probe() or engine.zombie:
            return Answer(200)
        engine.log.record(texts.health_failed(), loud=True)
        return Answer(503)

    def _ready(self, request: Request) -> Answer:
        up = self._engine.status is Status.UP and not self._engine.draining
        return Answer(200 if up else 503)

    def _old_model_info(self, request: Request) -> Answer:
        if self._engine.plan.dialect.model_info_path != request.path:
            new = self._engine.plan.dialect.model_info_path
            self._engine.log.record(_DEPRECATED.format(old=request.path, new=new), loud=True)
        return self._model_info(request)

    def _model_info(self, request: Request) -> Answer:
        options = self._engine.options
        info = {
            "model_path": options.model_path, "tokenizer_path": options.model_path, "is_generation": True,
            "served_model_name": options.model_name, "weight_version": "default", "preferred_sampling_params": None,
        }  # fmt: skip
        return Answer(200, json.dumps(info).encode())

    def _server_info(self, request: Request) -> Answer:
        engine = self._engine
        if not engine.zombie and not engine.ask_state():
            threading.Event().wait()
        info = texts.server_info(engine.options, engine.plan.dialect)
        return Answer(200, json.dumps(info).encode())

    def _models(self, request: Request) -> Answer:
        name = self._engine.options.model_name
        model = {"id": name, "object": "model", "owned_by": "sglang", "max_model_len": 131072}
        return Answer(200, json.dumps({"object": "list", "data": [model]}).encode())

    def _metrics(self, request: Request) -> Answer:
        return Answer(200, metrics_page(self._engine).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _generate(self, request: Request) -> Answer:
        data = request.data()
        sampling = data.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise TypeError("sampling_params is not an object")
        prompt = len(str(data.get("text", "")).split()) or 1
        new = int(sampling.get("max_new_tokens", 128))
        return self._run(prompt, new, bool(data.get("stream")), _generate_body)

    def _completions(self, request: Request) -> Answer:
        data = request.data()
        prompt = len(str(data.get("prompt") or data.get("messages") or "").split()) or 1
        new = int(str(data.get("max_tokens") or 128))
        return self._run(prompt, new, bool(data.get("stream")), _completion_body)

    def _run(self, prompt: int, new: int, stream: bool, body: Callable[[int, int], dict[str, object]]) -> Answer:
        counts = self._engine.generate(prompt, new)
        if not stream:
            return Answer(200, json.dumps(body(prompt, sum(counts))).encode())
        return Answer(200, chunks=_events(counts, prompt, body))


def _events(counts: Iterator[int], prompt: int, body: Callable[[int, int], dict[str, object]]) -> Iterator[bytes]:
    done = 0
    for count in counts:
        done += count
        yield b"data: " + json.dumps(body(prompt, done)).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _generate_body(prompt: int, done: int) -> dict[str, object]:
    meta = {"prompt_tokens": prompt, "completion_tokens": done, "finish_reason": {"type": "length", "length": done}}
    return {"text": " token" * done, "meta_info": meta}


def _completion_body(prompt: int, done: int) -> dict[str, object]:
    text = " token" * done
    choice = {"index": 0, "text": text, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    return {"object": "text_completion", "choices": [choice], "usage": {"completion_tokens": done}}


def _read_request(readline: Callable[[int], bytes], read: Callable[[int], bytes], client: str) -> Request | None:
    """None when the client has closed or does not speak HTTP."""
    words = readline(_MAX_HEAD).decode("latin-1").split()
    if len(words) != 3:
        return None
    headers: dict[str, str] = {}
    while line := readline(_MAX_HEAD).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = read(int(headers.get("content-length", "0")))
    return Request(client, words[0], words[1], headers, body)
