"""Holds what the HTTP threads and the launcher share: status, requests in flight, answers of the schedulers."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from queue import Empty, SimpleQueue

from supervisor.simulator.clock import Clock, Log
from supervisor.simulator.options import Options
from supervisor.simulator.plan import Plan
from supervisor.simulator.wires import Wires

HEALTH_TIMEOUT_S = 20.0  # SGLANG_HEALTH_CHECK_TIMEOUT
SHORTEST_HEALTH_S = 1.0  # the probe looks for its answer once a second
TOKENS_PER_S = 90.0
_DONE = -1


class Status(Enum):
    """ServerStatus of the real one."""

    STARTING = "starting"
    UP = "up"
    UNHEALTHY = "unhealthy"


class Totals:
    """Counters behind /metrics."""

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0


class Engine:
    """The TokenizerManager's part: sends requests to the schedulers and waits for what comes back."""

    def __init__(self, plan: Plan, wires: Sequence[Wires], clock: Clock, log: Log) -> None:
        self.plan = plan
        self.log = log
        self.clock = clock
        self.status = Status.STARTING
        self.draining = False
        self.zombie = False
        self.handlers_installed = False
        self.frozen = threading.Event()
        self.totals = Totals()
        self.detokenizer_dead = False
        self._wires = wires
        self._groups = sorted({one.rank.group for one in wires})
        self._turn = 0
        self._lock = threading.Lock()
        self._waiting: dict[str, SimpleQueue[int]] = {}
        self._running: set[str] = set()
        self._next = 0

    @property
    def options(self) -> Options:
        return self.plan.options

    @property
    def address(self) -> tuple[str, int]:
        return self.options.host, self.options.port

    @property
    def api_key(self) -> str:
        return self.options.api_key

    def tell_access(self, line: str) -> None:
        self.log.record(line, stdout=True)

    def running(self) -> list[str]:
        """Requests that a drain has to wait for."""
        with self._lock:
            return sorted(self._running)

    def freeze(self) -> None:
        """From now on connections are accepted and never answered: the crash path sleeps on the event loop."""
        self.frozen.set()

    def hold_if_frozen(self) -> None:
        """Block the calling request for ever once the engine is frozen; the process's end releases it."""
        if self.frozen.is_set():
            threading.Event().wait()

    def listen(self) -> None:
        """Thread body: hand the schedulers' answers to the requests that wait for them."""
        poll = select.poll()
        sockets = {one.launcher_end.fileno(): one for one in self._wires}
        for descriptor in sockets:
            poll.register(descriptor, select.POLLIN)
        while sockets:
            for descriptor, _ in poll.poll():
                try:
                    message = sockets[descriptor].launcher_end.recv(4096)
                except ConnectionResetError:
                    message = b""  # died with questions unread
                if message:
                    self._deliver(message.decode().split())
                else:
                    poll.unregister(descriptor)
                    del sockets[descriptor]

    def _deliver(self, words: list[str]) -> None:
        with self._lock:
            queue = self._waiting.get(words[1]) if len(words) > 1 else None
        if queue is not None:
            queue.put(_DONE if words[0] == "A" else int(words[2]))

    def probe(self) -> bool:
        """The one-token health probe: true once every rank of one replica has answered within 20 s."""
        self.handlers_installed = True
        started = self.clock.now()
        healthy = self._ask("H", HEALTH_TIMEOUT_S) and not self.detokenizer_dead
        rest = HEALTH_TIMEOUT_S if not healthy else SHORTEST_HEALTH_S
        self.clock.sleep(max(0.0, rest - (self.clock.now() - started) * self.options.speed))
        self.status = Status.UP if healthy else Status.UNHEALTHY
        return healthy

    def ask_state(self) -> bool:
        """/server_info goes through the scheduler and has no time-out of its own."""
        return self._ask("S", None)

    def _ask(self, letter: str, timeout_s: float | None) -> bool:
        """Each question reaches one replica only, in turn: one dead replica of two answers every other time."""
        identity, queue = self._open()
        members = self._members()
        try:
            if not self._tell(members, f"{letter} {identity}"):
                return timeout_s is None
            end = None if timeout_s is None else self.clock.now() + self.clock.real(timeout_s)
            for _ in members:
                queue.get(timeout=None if end is None else max(0.0, end - self.clock.now()))
            return True
        except Empty:
            return False
        finally:
            self._close(identity)

    def generate(self, prompt_tokens: int, new_tokens: int) -> Iterator[int]:
        """Yield counts of new tokens as the replica decodes them; ends early when the replica dies."""
        self.handlers_installed = True
        identity, queue = self._open(running=True)
        self.totals.requests += 1
        self.totals.prompt_tokens += prompt_tokens
        try:
            members = self._members()
            message = f"G {identity} {prompt_tokens} {new_tokens} {TOKENS_PER_S}"
            if not self._tell(members, message):
                threading.Event().wait()  # nobody will ever answer, as in the real one
            while (count := queue.get()) != _DONE:
                self.totals.generation_tokens += count
                yield count
        finally:
            self._close(identity)

    def become_zombie(self, dead: bool) -> None:
        """Schedulers hang or die, and this engine goes on to say that all is well."""
        self.zombie = True
        self._tell(self._wires, "Z dead" if dead else "Z hang")

    def _members(self) -> list[Wires]:
        with self._lock:
            group = self._groups[self._turn % len(self._groups)]
            self._turn += 1
        return [one for one in self._wires if one.rank.group == group]

    def _tell(self, members: Sequence[Wires], message: str) -> bool:
        told = True
        for one in members:
            try:
                one.launcher_end.send(message.encode())
            except (BrokenPipeError, ConnectionResetError):
                told = False  # that scheduler is dead; the caller decides what it means
        return told

    def _open(self, running: bool = False) -> tuple[str, SimpleQueue[int]]:
        queue: SimpleQueue[int] = SimpleQueue()
        with self._lock:
            self._next += 1
            identity = f"{self._next:x}"
            self._waiting[identity] = queue
            if running:
                self._running.add(identity)
        return identity, queue

    def _close(self, identity: str) -> None:
        with self._lock:
            self._waiting.pop(identity, None)
            self._running.discard(identity)
