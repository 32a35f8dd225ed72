"""Plays the API server: the leader of the tree, which listens only once everything is loaded."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from queue import SimpleQueue
from typing import NoReturn

from supervisor.simulator.clock import Clock
from supervisor.simulator.http import Answer, HttpServer, Request, Route
from supervisor.simulator.processes import ArgumentArea, forbid_core_dumps, fork, kill_descendants
from supervisor.simulator.scenario import Kind
from supervisor.simulator.signals import Signals
from supervisor.simulator.vllm import script
from supervisor.simulator.vllm.core import Core, say
from supervisor.simulator.vllm.failures import Where
from supervisor.simulator.vllm.options import Options
from supervisor.simulator.vllm.script import Who
from supervisor.simulator.vllm.words import ENGINE_DEAD, SHUTDOWN, Voice, raw_traceback, uvicorn

_STATS_S = 10.0
_DONE = -1
_PORT_TAKEN = "OSError: [Errno 98] Address already in use"
_USAGE = "usage: vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ...\nvllm: error: "
_OUTPUT_FRAMES = (("v1/engine/async_llm.py", "output_handler"), ("v1/engine/core_client.py", "get_output_async"))


def run(options: Options) -> int:
    """The whole life of a server; returns its exit code."""
    forbid_core_dumps()
    return ApiServer(options).live()


class ApiServer:
    """What the endpoints and the main thread share: whether the engine is dead, requests in flight, counters."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._clock = Clock(options.speed)
        self._voice = Voice("APIServer")
        self._server = HttpServer(self, self._routes())
        self._signals = Signals()
        self._core: socket.socket | None = None
        self._lock = threading.Lock()
        self._waiting: dict[str, SimpleQueue[int]] = {}
        self._count = 0
        self._tokens = 0
        self._dead = False

    # --- what HttpServer wants

    @property
    def address(self) -> tuple[str, int]:
        return self._options.host, self._options.port

    @property
    def api_key(self) -> str:
        return self._options.api_key

    def hold_if_frozen(self) -> None:
        """It never freezes: what is dead answers 503 until the server ends."""

    def tell_access(self, line: str) -> None:
        say(f"{line}\n".encode())

    # --- life

    def live(self) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # seen: it starts to the end and serves all the same
        if (code := self._launch()) is not None:
            return code
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        area = ArgumentArea()

        def body() -> int:
            mine.close()
            return Core(self._options, theirs).run(area)

        fork(body)
        theirs.close()
        self._core = mine
        if mine.recv(16) != b"R":
            say(raw_traceback(script.START_FAILED, script.WAIT_FRAMES))
            return 1
        self._play("warmup")
        return self._serve(mine)

    def _launch(self) -> int | None:
        """The exit code when it comes to nothing."""
        if any(one.kind is Kind.EXIT_ON_CONFIG for one in self._options.scenarios):
            say(f"{_USAGE}unrecognized arguments: --no-such-option\n".encode())
            return 2
        try:
            self._server.bind()
        except OSError:
            say(raw_traceback(_PORT_TAKEN, (("entrypoints/launchers/launcher.py", "create_server_socket"),)))
            return 1
        self._play("launch")
        crash = script.crash_at(self._options, Where.API_SERVER)
        if crash:
            cause = script.cause_of(crash)
            say(raw_traceback(cause.error, cause.frames))
            return 1
        if any(one.kind is Kind.STALL and one.phase == "launch" for one in self._options.scenarios):
            self._hang()
        return None

    def _hang(self) -> NoReturn:
        while True:
            signal.pause()

    def _play(self, phase: str) -> None:
        begin, seconds = self._clock.now(), self._options.seconds(phase)
        for line in script.lines(self._options, phase):
            if line.who is Who.FRONT:
                left = begin + self._clock.real(line.at * seconds) - self._clock.now()
                self._signals.wait(max(0.0, left))
                if line.at == 1.0:
                    self._server.start()
                say(line.write(self._voice))
        left = begin + self._clock.real(seconds) - self._clock.now()
        self._signals.wait(max(0.0, left))

    def _serve(self, core: socket.socket) -> int:
        if not any(one.kind is Kind.IGNORE_TERM for one in self._options.scenarios):
            self._signals.take(signal.SIGTERM)
        self._signals.poll.register(core, select.POLLIN)
        while True:
            numbers, ready = self._signals.wait(self._clock.real(_STATS_S) if self._waiting else None)
            if signal.SIGTERM in numbers:
                return self._stop()
            if ready:
                message = core.recv(4096).decode().split()
                if not message:
                    return self._lose_engine()
                self._deliver(message)
            elif self._waiting:
                self._tell_stats()

    def _tell_stats(self) -> None:
        text = "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
        text += f"Running: {len(self._waiting)} reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%"
        say(self._voice.record("loggers.py:335", text))

    def _stop(self) -> int:
        say(self._voice.record("launcher.py:254", "[shutdown] API server: shutdown triggered"))
        say(self._voice.record("core_client.py:772", "[shutdown] MPClient: stopping engine manager"))
        kill_descendants(os.getpid())
        self._finish()
        return 0

    def _lose_engine(self) -> int:
        """Exit code 0, as in the real one: it is no success."""
        self._dead = True
        header = "AsyncLLM output_handler failed."
        say(self._voice.traceback("async_llm.py:906", header, ENGINE_DEAD, _OUTPUT_FRAMES))
        with self._lock:
            for queue in self._waiting.values():
                queue.put(_DONE)
        self._clock.sleep(1.0)  # its watchdog looks every five seconds
        kill_descendants(os.getpid())
        self._finish()
        return 0

    def _finish(self) -> None:
        self._server.close()
        for text in SHUTDOWN:
            say(uvicorn(text))

    # --- requests

    def _deliver(self, words: list[str]) -> None:
        with self._lock:
            queue = self._waiting.get(words[1])
        if queue is not None:
            queue.put(_DONE if words[0] == "A" else int(words[2]))

    def _routes(self) -> dict[str, Route]:
        return {
            "/health": lambda _: Answer(503 if self._dead else 200),
            "/ping": lambda _: Answer(503 if self._dead else 200),
            "/version": lambda _: Answer(200, b'{"version":"0.32.0"}'),
            "/v1/models": self._models, "/metrics": self._metrics,
            "/v1/completions": self._complete, "/v1/chat/completions": self._complete,
        }  # fmt: skip

    def _models(self, request: Request) -> Answer:
        name = self._options.served_model_name or self._options.model
        model = {"id": name, "object": "model", "owned_by": "vllm", "root": self._options.model}
        return Answer(200, json.dumps({"object": "list", "data": [model]}).encode())

    def _metrics(self, request: Request) -> Answer:
        values = {
            "num_requests_running": ("gauge", len(self._waiting)), "num_requests_waiting": ("gauge", 0),
            "prompt_tokens_total": ("counter", 4 * self._count), "generation_tokens_total": ("counter", self._tokens),
            "request_success_total": ("counter", self._count - len(self._waiting)),
        }  # fmt: skip
        labels = f'{{engine="0",model_name="{self._options.served_model_name or self._options.model}"}}'
        page = [f"# TYPE vllm:{name} {kind}\nvllm:{name}{labels} {value}.0\n" for name, (kind, value) in values.items()]
        return Answer(200, "".join(page).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _complete(self, request: Request) -> Answer:
        wanted = int(str(request.data().get("max_tokens") or 16))
        done = sum(self._ask(wanted))
        if self._dead:
            error = {"message": ENGINE_DEAD.partition(": ")[2], "type": "InternalServerError", "code": 500}
            return Answer(500, json.dumps({"error": error}).encode())
        choice = {"index": 0, "text": " token" * done, "finish_reason": "length"}
        usage = {"prompt_tokens": 4, "completion_tokens": done}
        return Answer(200, json.dumps({"object": "text_completion", "choices": [choice], "usage": usage}).encode())

    def _ask(self, wanted: int) -> list[int]:
        queue: SimpleQueue[int] = SimpleQueue()
        with self._lock:
            self._count += 1
            identity = str(self._count)
            self._waiting[identity] = queue
        try:
            if self._core is None or self._dead:
                return []
            self._core.send(f"G {identity} {wanted}".encode())
            counts = []
            while (count := queue.get()) != _DONE:
                counts.append(count)
                self._tokens += count
            return counts
        finally:
            with self._lock:
                del self._waiting[identity]
