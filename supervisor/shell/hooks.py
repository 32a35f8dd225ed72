"""Tells the operator's commands and webhooks what happens to servers, without ever holding up a decision."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
import structlog

from supervisor.actions import Announce
from supervisor.config import HooksConfig
from supervisor.edge.hook import HookRun, run_hook
from supervisor.edge.webhook import Messenger
from supervisor.shell import clock
from supervisor.shell.environment import for_helpers
from supervisor.shell.guard import guarded, log_bug
from supervisor.smallfile import replace_bytes
from supervisor.snapshot import ServerSnapshot
from supervisor.threads import Threads

QUEUED_MAX = 64  # of one server; the oldest go first, and it is said how many
TRIES = 6
FIRST_PAUSE_S = 1.0
LAST_WORDS_S = 5.0
_KEEP_LIMIT_S = 5.0
PAUSE_FACTOR = 3.0
_FACETS = ("lifecycle", "verdict")
NO_HOOKS = HooksConfig()

log = structlog.get_logger()


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of a server, as a webhook gets it (JSON) and a command (environment)."""

    event: str
    server: str
    facet: str
    before: str
    after: str
    reason: str
    attempt: int
    at: str
    host: str
    pid: int = 0
    port: int = 0
    gpus: tuple[int, ...] = ()
    log_path: str = ""
    cause: str = ""
    remedy: str = ""


class Waiting(NamedTuple):
    """News on its way to one place."""

    hooks: HooksConfig
    news: News


def news_of(change: Announce, snapshot: ServerSnapshot, wall: float) -> News:
    """What is worth telling about a change."""
    diagnosis = snapshot.diagnosis
    return News(
        event=change.after,
        server=snapshot.name,
        facet=change.facet,
        before=change.before,
        after=change.after,
        reason=change.reason,
        attempt=change.attempt or snapshot.attempt,
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall)),
        host=os.uname().nodename,
        pid=snapshot.pid or 0,
        port=snapshot.port,
        gpus=tuple(snapshot.gpus),
        log_path=snapshot.log_path,
        cause=diagnosis.cause if diagnosis is not None else "",
        remedy=diagnosis.remedy if diagnosis is not None else "",
    )


def variables(news: News) -> dict[str, str]:
    """The environment of a command: SGLSUP_EVENT, SGLSUP_SERVER, SGLSUP_FROM, ... beside what helpers get."""
    told = {
        "EVENT": news.event, "SERVER": news.server, "FACET": news.facet, "FROM": news.before, "TO": news.after,
        "REASON": news.reason, "ATTEMPT": str(news.attempt), "AT": news.at, "PID": str(news.pid),
        "PORT": str(news.port), "GPUS": ",".join(map(str, news.gpus)), "LOG": news.log_path, "CAUSE": news.cause,
        "REMEDY": news.remedy,
    }  # fmt: skip
    return for_helpers(os.environ) | {f"SGLSUP_{name}": text.replace("\0", "?") for name, text in told.items()}


class Hooks:
    """One for the daemon. `changed` never waits; `run` tells, each server's news in order.

    `everywhere` are the hooks of all servers.
    """

    def __init__(
        self,
        directory: Path,
        messenger: Messenger,
        everywhere: HooksConfig = NO_HOOKS,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.outputs = Outputs(directory)
        self._messenger = messenger
        self._everywhere = everywhere
        self._first_pause_s = first_pause_s
        self._queues: dict[tuple[str, str], Queue] = {}
        self._new = anyio.Event()
        self._told = anyio.Event()

    def of(self, server: HooksConfig) -> tuple[HooksConfig, ...]:
        """Those of all servers, then the server's own."""
        return tuple(one for one in (self._everywhere, server) if one != NO_HOOKS)

    def changed(self, server: HooksConfig, change: Announce, snapshot: Callable[[], ServerSnapshot]) -> None:
        """Note a change for whoever wants to know of it."""
        if change.facet not in _FACETS:
            return
        wanted = [one for one in self.of(server) if change.after in one.events and (one.on_change or one.webhook)]
        if not wanted:
            return
        news = news_of(change, snapshot(), clock.now().wall)
        for one in wanted:
            # A webhook that does not answer must not keep the command from knowing.
            for way in (way for way, used in (("command", one.on_change), ("webhook", one.webhook)) if used):
                self._queues.setdefault((news.server, way), Queue(news.server, way)).put(Waiting(one, news))
        self._new.set()

    async def run(self) -> None:
        """Carry the news out until cancelled."""
        ways = {"command": self._command, "webhook": self._webhook}
        async with anyio.create_task_group() as tasks:
            while True:
                await self._new.wait()  # as long as nothing happens
                self._new = anyio.Event()
                for (server, way), queue in self._queues.items():
                    if not queue.working:
                        queue.working = True
                        tasks.start_soon(guarded, log_bug, f"{way} hooks of {server}", self._work, queue, ways[way])

    async def last_words(self, limit_s: float = LAST_WORDS_S) -> None:
        """The daemon ends: what has just happened may still be told, for a moment."""
        with anyio.move_on_after(limit_s):
            while any(queue.waiting or queue.working for queue in self._queues.values()):
                await self._told.wait()

    async def _work(self, queue: Queue, way: Callable[[Waiting], Awaitable[None]]) -> None:
        try:
            while queue.waiting:
                await way(queue.take())
        finally:
            queue.working = False
            self._told.set()
            self._told = anyio.Event()

    async def _command(self, waiting: Waiting) -> None:
        hooks, news = waiting
        run = await run_hook(hooks.on_change, variables(news), hooks.timeout_s)
        await self.outputs.keep(news.server, news.event, run)
        tell(news.server, news.event, run)

    async def _webhook(self, waiting: Waiting) -> None:
        hooks, news = waiting
        body, pause_s, tries = msgspec.json.encode(news), self._first_pause_s, 1
        while (sent := await self._messenger.send(hooks.webhook, hooks.headers, body)).again and tries < TRIES:
            await anyio.sleep(pause_s)
            pause_s, tries = pause_s * PAUSE_FACTOR, tries + 1
        if sent.problem:
            log.warning("webhook failed", server=news.server, about=news.event, problem=sent.problem, tries=tries)


class Queue:
    """What one way of one server has not told yet."""

    def __init__(self, server: str, way: str) -> None:
        self._server = server
        self._way = way
        self._waiting: deque[Waiting] = deque()
        self._lost = 0
        self.working = False

    @property
    def waiting(self) -> int:
        """How much there is to tell."""
        return len(self._waiting)

    def put(self, one: Waiting) -> None:
        """The newest news matter most: with too many the oldest are dropped."""
        if len(self._waiting) >= QUEUED_MAX:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(one)

    def take(self) -> Waiting:
        """The oldest."""
        if self._lost:
            log.warning("hooks are too slow", server=self._server, way=self._way, lost=self._lost)
            self._lost = 0
        return self._waiting.popleft()


class Outputs:
    """The last output of each hook of each server, in a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = Threads("the disk", 16)

    async def keep(self, server: str, event: str, run: HookRun) -> None:
        """Bounded by what `run_hook` keeps. A disk that is full or hangs costs the output and nothing else."""
        try:
            await self._disk.run(self._keep, server, event, run, limit_s=_KEEP_LIMIT_S, thing=server)
        except TimeoutError as problem:
            log.warning("hook output lost", server=server, problem=problem.strerror)

    def _keep(self, server: str, event: str, run: HookRun) -> None:
        place = self._directory / server
        ended = run.problem or f"exit status {run.status}"
        try:
            place.mkdir(mode=0o750, parents=True, exist_ok=True)
            text = f"{run.output}\n[{ended} after {run.took_s:.1f} s]\n"
            replace_bytes(place / f"{event}.out", text.encode(errors="replace"))
        except OSError as problem:
            log.warning("hook output lost", server=server, problem=problem.strerror)


def tell(server: str, event: str, run: HookRun) -> None:
    """One line a hook: how it ended."""
    if run.status == 0:
        log.info("hook", server=server, about=event, took_s=round(run.took_s, 3))
    else:
        log.warning("hook failed", server=server, about=event, status=run.status, said=run.last_line)


def start_variables(server: str, attempt: int, port: int, gpus: tuple[int, ...]) -> Mapping[str, str]:
    """The environment of a `before_start` hook."""
    news = News("before_start", server, "lifecycle", "", "starting", "", attempt, "", os.uname().nodename)
    return variables(msgspec.structs.replace(news, port=port, gpus=gpus))
