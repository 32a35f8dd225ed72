"""Carries one server's actions to the edges and brings their results back as events."""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from supervisor.actions import (
    AnyAction,
    AskCanary,
    CheckDevices,
    CountRequests,
    KeepEvidence,
    KillTree,
    LeaveRouters,
    Probe,
    Remember,
    SignalTree,
    Spawn,
)
from supervisor.config import EnvironmentRefusedError, ServerConfig, started_with
from supervisor.core.settings import Settings
from supervisor.edge.process import SpawnPlan, Tree, spawn
from supervisor.events import (
    AnyEvent,
    Exited,
    HostOomKilled,
    LogUnreadable,
    RequestsCounted,
    RoutersLeft,
    Spawned,
    SpawnFailed,
    TreeEmptied,
)
from supervisor.profile import CommandFacts, Profile, api_key
from supervisor.shell.asking import Asker
from supervisor.shell.dossier import Dossier
from supervisor.shell.gate import Gate
from supervisor.shell.guard import Report, guarded
from supervisor.shell.history import COST as LESSON_COST
from supervisor.shell.host import Host
from supervisor.shell.keeper import DECISION_LIMIT_S, EvidenceKeeper
from supervisor.shell.logfeed import LogFeed
from supervisor.shell.oomcount import OomCount
from supervisor.shell.plan import not_prepared, planned
from supervisor.shell.premises import Premises
from supervisor.shell.tidy import tidy
from supervisor.shell.trees import COST as NOTE_COST
from supervisor.shell.watch import ServerWatch
from supervisor.shell.writer import Change
from supervisor.snapshot import ServerSnapshot
from supervisor.threads import Threads

_EXIT_NEWS_S = 2.0
_KILL_LIMIT_S = 20.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGHUP)
_NOTE_LIMIT_S = 5.0  # for the disks that a start needs; its log's is asked with the same patience at the spawn
_FREEZE_LIMIT_S = 2.0  # one stuck in the kernel never freezes, and is killed all the same as far as it goes
_planning = Threads("the disk", 32)


class Effects:
    """One server's hands. Every result is posted; nothing here decides."""

    def __init__(
        self,
        config: ServerConfig,
        settings: Settings,
        profile: Profile,
        facts: CommandFacts,
        host: Host,
        tasks: TaskGroup,
        post: Callable[[AnyEvent], Awaitable[None]],
        snapshot: Callable[[], ServerSnapshot],
        report_bug: Report,
        *,
        decision_limit_s: float = DECISION_LIMIT_S,
    ) -> None:
        self._config = config
        self._settings = settings
        self._profile = profile
        self._facts = facts
        self._host = host
        self._tasks = tasks
        self._post = post
        self._snapshot = snapshot
        self._report_bug = report_bug
        self._tree: Tree | None = None
        self._spawning = 0  # the attempt whose tree is being made
        self._feed: LogFeed | None = None
        self._watch: ServerWatch | None = None
        self._dossier = Dossier(config, profile)
        self._keeper = EvidenceKeeper(config.name, host, self._dossier, post, snapshot, decision_limit_s)
        self._exit_posted = anyio.Event()
        self._asker = Asker(config, settings, profile, facts, host.prober)
        self._ooms = OomCount(host)
        self._premises = Premises(config, settings, facts, host)
        self._gate = Gate(config.name, host.hooks.of(config.hooks), host.hooks.outputs, tasks, report_bug)

    @property
    def tree(self) -> Tree | None:
        """The process tree of the present attempt, while there is one."""
        return self._tree

    @property
    def feed(self) -> LogFeed | None:
        """Who reads the present attempt's log, while there is one."""
        return self._feed

    @property
    def keeps_evidence(self) -> bool:
        """Whether evidence is being kept: a short while, and what is broken off is lost."""
        return self._keeper.busy

    def carry(self, action: AnyAction) -> None:
        """Begin what the action asks for. Never waits."""
        match action:
            case Spawn():
                self._begin(self._spawn, action)
            case SignalTree():
                self._signal(action)
            case KillTree():
                self._begin(self._kill, action)
            case Probe():
                self._begin(self._probe, action)
            case CheckDevices():
                self._begin(self._check, action)
            case KeepEvidence():
                self._keeper.asked()
                self._begin(self._keep_evidence, action)
            case Remember():
                self._begin(self._remember, action)
            case AskCanary():
                self._begin(self._ask_canary, action)
            case LeaveRouters():
                self._begin(self._leave_routers, action)
            case CountRequests():
                self._begin(self._count_requests, action)
            case _:
                pass  # announcements are the loop's affair

    def _begin(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """The core's deadline stands in for the answer of a task that fails by a bug of ours."""
        what = work.__name__.strip("_").replace("_", " ")
        name = f"{self._settings.name}: {what}"
        self._tasks.start_soon(guarded, self._report_bug, what, work, *arguments, name=name)

    # --- spawn ---------------------------------------------------------------------------------------------------

    async def _spawn(self, action: Spawn) -> None:
        self._spawning = action.attempt
        try:
            await self._make(action)
        finally:
            self._spawning = 0

    async def _make(self, action: Spawn) -> None:
        gpus = self._host.devices.leased(self._settings.name)
        try:
            plan = await self._plan(action.attempt, gpus)
            cgroup = self._host.cgroups.server(self._settings.name) if self._host.cgroups else None
            if cgroup:
                await anyio.to_thread.run_sync(cgroup.prepare)
            # Noted before it exists: a daemon that dies in between must not leave what the next one cannot find.
            note = Spawned(action.attempt, 0, cgroup=cgroup.path if cgroup else "", log_path=plan.log_path)
            await self._host.writer.made(self._note(plan.marker, note, gpus), _NOTE_LIMIT_S)
        except (EnvironmentRefusedError, OSError) as problem:
            self._forget_tree()  # a note that was refused, or not answered for, may be written yet
            await self._post(not_prepared(action.attempt, problem))
            return
        self._dossier.began(plan.environment)
        made = await spawn(plan, cgroup)
        if isinstance(made, SpawnFailed):
            self._forget_tree()
            await self._post(made)
            return
        recorder = made.recorder.pid if made.recorder is not None else 0
        # A full disk, or one that hangs: the note from before the spawn finds the tree as well.
        await self._host.writer.tried(self._note(plan.marker, made.spawned, gpus, recorder, started_with(self._config)))
        await self._post(made.spawned)
        self.take(made)

    async def _plan(self, attempt: int, gpus: tuple[int, ...]) -> SpawnPlan:
        make = partial(planned, self._config, self._host, attempt, gpus)
        try:
            return await _planning.run(make, limit_s=_NOTE_LIMIT_S, thing=f"start of {self._settings.name}")
        except TimeoutError as problem:
            where = str(self._host.log_path(self._settings.name, attempt))
            raise TimeoutError(errno.ETIMEDOUT, problem.strerror, where) from None

    def _note(self, marker: str, spawned: Spawned, *more: Any) -> Change:
        """Have it noted which tree lives, or is about to."""
        trees, name = self._host.trees, self._settings.name
        return self._host.writer.ask(trees.path(name), partial(trees.put, name, marker, spawned, *more), NOTE_COST)

    def _forget_tree(self) -> None:
        """No tree of this server lives, and none is about to."""
        trees, name = self._host.trees, self._settings.name
        self._host.writer.ask(trees.path(name), partial(trees.clear, name), NOTE_COST)

    def take(self, tree: Tree, offset: int = 0) -> None:
        """Have the tree's log read from `offset` on, its processes watched, its exit told."""
        self._premises.hold()
        self._ooms.begin(tree)
        self._host.household.add(tree)
        if tree.pidfd is not None and tree.recorder is None:  # how it ends is told by the kernel to who has its pidfd
            self._host.store.keep(tree.marker, tree.pidfd)
        self._tree, self._exit_posted = tree, anyio.Event()
        self._feed = LogFeed(tree.spawned.log_path, tree.attempt, self._profile, self._post, offset)
        self._begin(self._read_log, self._feed)
        self._begin(self._feed.pauses)
        self._watch = self._watch_of(tree)
        self._begin(self._watch.run)
        self._begin(self._watch_exit, tree, self._exit_posted)

    async def _read_log(self, feed: LogFeed) -> None:
        try:
            await feed.run(self._host.watcher)
        except Exception as bug:
            await self._post(LogUnreadable(feed.attempt, f"cannot read {feed.path}: {type(bug).__name__}: {bug}"))
            raise

    async def _watch_exit(self, tree: Tree, posted: anyio.Event) -> None:
        exited: Exited = await tree.exited()  # as long as the server lives
        await self._post(exited)
        posted.set()

    # --- signals and the end -------------------------------------------------------------------------------------

    def _signal(self, action: SignalTree) -> None:
        if self._tree is not None and self._tree.attempt == action.attempt:
            if self._watch is not None and action.signal in (self._settings.stop.signal, *_ENDING):
                self._watch.quiet()
            with contextlib.suppress(PermissionError):  # a setuid leader: the kill after the grace period tells
                self._tree.signal(action.signal)

    async def _leave_routers(self, action: LeaveRouters) -> None:
        problem = await self._host.routing.leave(self._settings.name, action.limit_s)
        await self._post(RoutersLeft(action.attempt, problem))

    async def _count_requests(self, action: CountRequests) -> None:
        if (watch := self._watching(action.attempt)) is not None:
            await watch.count(action)
        else:
            await self._post(RequestsCounted(action.attempt, None, "nobody watches it"))

    async def _kill(self, action: KillTree) -> None:
        tree = self._tree
        if self._spawning == action.attempt:
            return  # whatever comes of it is told, and killed then
        if tree is None or tree.attempt != action.attempt:
            await self._post(TreeEmptied(action.attempt))
            return
        if self._watch is not None:
            if (first := self._watch.first_death) is not None:
                await self._post(msgspec.structs.replace(first, with_leader=True))
            self._watch.stop()
        # Whatever fails around it, the tree is killed and its end is told: the server would never start again.
        await guarded(self._report_bug, "counting OOM kills", self._tell_oom, tree)
        await guarded(self._report_bug, "freezing the tree", self._freeze, tree)
        result = await tree.kill(_KILL_LIMIT_S)
        if isinstance(result, TreeEmptied):
            await guarded(self._report_bug, "closing the tree", self._close, tree)
            result = msgspec.structs.replace(result, kernel_heard=self._host.kernel_heard or self._ooms.counted)
        await self._post(result)

    async def tell(self, event: HostOomKilled) -> None:
        """News of the host that concern this server."""
        await self._post(event)

    async def _tell_oom(self, tree: Tree) -> None:
        if (news := self._ooms.news(tree)) is not None:
            await self._post(news)

    async def _freeze(self, tree: Tree) -> None:
        """Nobody forks away meanwhile; SIGKILL reaches the frozen, too."""
        if self._config.stop.freeze and tree.cgroup is not None and self._host.cgroups is not None:
            cgroup = self._host.cgroups.server(tree.server)
            await anyio.to_thread.run_sync(cgroup.freeze, True)
            await cgroup.frozen(_FREEZE_LIMIT_S)

    async def _close(self, tree: Tree) -> None:
        """The exit status and the log's last words come before the news that the tree is empty."""
        with anyio.move_on_after(_EXIT_NEWS_S):
            await self._exit_posted.wait()
        if self._feed is not None:
            await guarded(self._report_bug, "reading the log's last words", self._feed.drain)
        tree.close()
        if tree.cgroup:
            tree.cgroup.remove()
        self._forget_tree()
        self._host.store.forget(tree.marker)
        self._tree = self._feed = self._watch = None
        await tidy(self._profile.leftovers, self._config, tree.known_pids)

    # --- looking -------------------------------------------------------------------------------------------------

    async def _probe(self, action: Probe) -> None:
        probed = await self._asker.ask(action, self._tree)
        self._dossier.probed(probed)
        await self._post(probed)

    async def _check(self, action: CheckDevices) -> None:
        found = await self._premises.look(action)
        gpus = self._host.devices.leased(self._settings.name)
        judged = await self._gate.judge(found, start=action.start, port=self._settings.port, gpus=gpus)
        if judged is not found and judged.clean is False and not self._gate.busy:
            self._premises.hook_says_no()
        await self._post(judged)

    async def _remember(self, action: Remember) -> None:
        history, name = self._host.history, self._settings.name
        history.add(name, action.record)
        await self._host.writer.tried(
            self._host.writer.ask(history.path(name), partial(history.write, name), LESSON_COST)
        )

    # --- watching ------------------------------------------------------------------------------------------------

    def _watch_of(self, tree: Tree) -> ServerWatch:
        key = api_key(self._profile, self._config.command)
        return ServerWatch(
            tree, self._settings, self._profile, self._facts, key, self._host, self._post, self._snapshot
        )

    def _watching(self, attempt: int) -> ServerWatch | None:
        """Who watches this attempt, while it lives."""
        return self._watch if self._tree is not None and self._tree.attempt == attempt else None

    async def _ask_canary(self, action: AskCanary) -> None:
        if (watch := self._watching(action.attempt)) is not None:
            await watch.ask(action)

    async def _keep_evidence(self, action: KeepEvidence) -> None:
        pid = self._tree.pid if self._tree is not None else 0
        await self._keeper.keep(action, self._watching(action.attempt), pid)
