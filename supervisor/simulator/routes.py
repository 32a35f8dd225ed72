"""Answers the engine's endpoints, in the words of its generation."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

from supervisor.simulator import texts
from supervisor.simulator.engine import Engine, Status
from supervisor.simulator.http import Answer, Request, Route
from supervisor.simulator.metrics import metrics_page

_DEPRECATED = "Endpoint '{old}' is deprecated and will be removed in a future version. Please use '{new}' instead."


def dummy_routes() -> dict[str, Route]:
    """Nodes above 0 only say that their own ranks have loaded."""
    return {path: lambda _: Answer(200) for path in ("/health", "/health_generate", "/ping")}


class Routes:
    """The endpoints of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def table(self) -> dict[str, Route]:
        """Each path with what answers it."""
        dialect = self._engine.plan.dialect
        routes: dict[str, Route] = {
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
