"""Reads the configuration file while the daemon runs, and brings what it says into force, one server after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from supervisor.api.control import Applied, ChangeRefusedError
from supervisor.config import (
    Config,
    ConfigError,
    ConfigFile,
    Differences,
    GroupConfig,
    ServerChange,
    ServerConfig,
    differences,
    read_files,
    understand,
)
from supervisor.config.groups import Ties, ties
from supervisor.core.fleet.ends import by_need
from supervisor.shell.guard import guarded, log_bug
from supervisor.shell.roster import ChangeProblem, Roster
from supervisor.shell.routing import Routing
from supervisor.threads import Threads

READ_LIMIT_S = 10.0

log = structlog.get_logger()


class Changes:
    """One for the daemon. A broken file changes nothing."""

    def __init__(
        self,
        roster: Roster,
        running: Callable[[], Config],
        path: str,
        tasks: TaskGroup,
        ties: Callable[[], Mapping[str, Ties]],
        routing: Routing | None = None,
        told: Callable[[bool], None] = lambda _usable: None,
    ) -> None:
        self._roster = roster
        self._running = running
        self._path = path
        self._tasks = tasks
        self._ties = ties
        self._routing = routing or Routing()
        self._told = told  # of each reading, whether the file can be used
        self._read: Config | None = None
        self.files: tuple[ConfigFile, ...] = ()  # the text of what was last read and could be used
        self.groups: dict[str, GroupConfig] | None = None  # those in force since the file was applied; None: not yet
        self._lock = anyio.Lock()
        self._late: list[str] = []  # whose cores do not know of the routers in force yet
        self._disk = Threads("its disk")

    @property
    def available(self) -> Config:
        """The file as it was last read; what is in force before it was read again."""
        return self._read or self._running()

    @property
    def busy(self) -> bool:
        """Whether a change is under way: a server that was stopped for it is still to be started."""
        return self._lock.locked()

    async def hold(self) -> None:
        """Wait for what is under way; let nothing begin any more. The waiter bounds it."""
        await self._lock.acquire()

    async def reread(self) -> Differences:
        """What the file would change now. ConfigError when it cannot be used; what was read before still stands."""
        try:
            found = await self._reread()
        except ConfigError:
            self._told(False)
            raise
        self._told(True)
        return found

    async def _reread(self) -> Differences:
        if not self._path:
            raise ChangeRefusedError("there is no configuration file: the daemon runs without one")
        try:
            files = await self._disk.run(read_files, self._path, limit_s=READ_LIMIT_S, thing=self._path)
        except TimeoutError as problem:
            raise ChangeRefusedError(f"cannot read {self._path}: {problem.strerror}; nothing was changed") from None
        self._read, self.files = await anyio.to_thread.run_sync(understand, files), files
        return differences(self._running(), self._read)

    async def apply(self, names: Collection[str], by: str, *, free_only: bool = False) -> tuple[Applied, ...]:
        """Bring the file into force for these servers, for all when none is named. ConfigError as `reread`.

        `free_only`: what costs a restart is left as it is.
        """
        found = (await self.reread()).servers
        self.groups = self.available.groups
        self._routing.regroup(self.available)
        wanted = [change for change in found if not names or change.name in names]
        skipped = [change for change in wanted if free_only and costs(change)]
        applied = await self._carry_out([change for change in wanted if change not in skipped], by)
        return *applied, *(Applied(change.name, "skipped", "it costs a restart") for change in skipped)

    async def reroute(self, by: str, *, free_only: bool = False) -> tuple[Applied, ...]:
        """Bring the routers of the file into force. ConfigError as `reread`.

        `free_only`: one that the file has no more keeps its servers.
        """
        await self.reread()
        applied, done = list[Applied](), anyio.Event()
        self._tasks.start_soon(self._rerouted, by, free_only, applied, done, name="changes of routers")
        await done.wait()  # as long as routers take to answer and to let go, which their own limits bound
        return tuple(applied)

    async def _rerouted(self, by: str, free_only: bool, applied: list[Applied], done: anyio.Event) -> None:
        """In a task of the daemon, as other changes."""
        try:
            async with self._lock:
                file, routing = self.available, self._routing
                found = differences(self._running(), file).routers  # now: another change may have come before this one
                gone = [one for one in found if one.kind == "disappeared" and not routing.keeps(one.name, file)]
                kept = gone if free_only else []
                applied += await routing.change(file, [one for one in found if one not in kept])
                await self._heed_routers()
            applied += [Applied(one.name, "skipped") for one in kept]
            for one in applied:
                log.info("configuration applied", router=one.name, kind=one.kind, by=by, problem=one.problem)
        except Exception as bug:
            log.error("bug", where="changing routers", exc_info=bug)
            applied.append(Applied("", "failed", f"this is a bug of the daemon: {type(bug).__name__}: {bug}"))
        finally:
            done.set()

    async def _heed_routers(self) -> None:
        """All servers are to know of the routers in force: who is at something now, as soon as it is not."""
        before, self._late = self._late, await self._roster.heed_routers()
        if self._late and not before:
            self._tasks.start_soon(guarded, log_bug, "routers", self._heed_late, name="routers of who is at something")

    async def _heed_late(self) -> None:
        while self._late:
            await self._roster.one_is_calm(self._late)
            async with self._lock:
                self._late = await self._roster.heed_routers()

    async def add(self, name: str, by: str) -> None:
        """Add a server of the file as it was last read, and start it if it starts by itself."""
        known = name in self.available.servers
        if not known or self._roster.loop(name) is not None:
            raise ChangeRefusedError(f"cannot add {name}: it is {'in use' if known else 'not in the file'}")
        (applied,) = await self._carry_out([ServerChange(name, "available")], by)
        if applied.problem:
            raise ChangeRefusedError(applied.problem)

    async def remove(self, name: str, by: str) -> None:
        """Take a server out that is at rest. ChangeRefusedError when it is not."""
        async with self._lock:
            self._read = self.available  # a file that was not read again since the start still has it
            try:
                await self._roster.remove(name)
            except ChangeProblem as problem:
                raise ChangeRefusedError(str(problem)) from None
        log.info("removed", server=name, by=by)

    # --- one at a time, for a rolling update ---------------------------------------------------------------------

    def ending(self, name: str) -> ServerChange | None:
        """The change by which the file as it was last read has a server end that is up; None when it goes on."""
        found = differences(self._running(), self.available).servers
        change = next((one for one in found if one.name == name and costs(one)), None)
        up = self._roster.loop(name) is not None and self._roster.is_up(name)
        return change if up else None

    async def roll(self, name: str, by: str, grace_s: float) -> Applied:
        """Bring the file as it was last read into force for one server, which drains first."""
        async with self._lock:
            found = differences(self._running(), self.available).servers
            change = next((one for one in found if one.name == name), None)
            return Applied(name, "unchanged") if change is None else await self._apply(change, by, grace_s)

    async def put_back(self, configs: Sequence[ServerConfig], by: str) -> Applied:
        """Give a server the configuration again that it had before, and its mates theirs by the same restart."""
        name = configs[0].name
        async with self._lock:
            try:
                await self._restarted(configs, f"put back for {by}")
            except ChangeProblem as problem:
                return Applied(name, "failed", str(problem))
        log.info("configuration put back", server=name, by=by)
        return Applied(name, "restarted")

    # --- one after another ---------------------------------------------------------------------------------------

    async def _carry_out(self, changes: Sequence[ServerChange], by: str) -> list[Applied]:
        """In a task of the daemon: when the caller goes away, a server that was stopped for it is started again."""
        applied: list[Applied] = []
        done = anyio.Event()
        self._tasks.start_soon(self._in_order, changes, by, applied, done, name="configuration changes")
        await done.wait()  # as long as servers take to stop, which their own deadlines bound
        return applied

    async def _in_order(
        self, changes: Sequence[ServerChange], by: str, applied: list[Applied], done: anyio.Event
    ) -> None:
        try:
            async with self._lock:
                for change in changes:
                    if change.name not in {one.name for one in applied}:  # it may have gone with a mate of its group
                        along = self._along(change)
                        applied.append(await self._apply(change, by))
                        applied.extend(Applied(one, "restarted") for one in along if applied[-1].kind == "restarted")
                await self._heed_routers()  # groups may have been changed by the same file
        finally:
            done.set()

    async def _apply(self, change: ServerChange, by: str, grace_s: float | None = None) -> Applied:
        reason = f"update by {by}"
        try:
            kind = await self._brought_into_force(change, reason, grace_s)
        except ChangeProblem as problem:
            log.error("configuration", server=change.name, problem=str(problem))
            return Applied(change.name, "failed", str(problem))
        except Exception as bug:
            log.error("bug", where=f"changing {change.name}", exc_info=bug)
            return Applied(change.name, "failed", f"this is a bug of the daemon: {type(bug).__name__}: {bug}")
        log.info("configuration applied", server=change.name, kind=kind, by=by)
        return Applied(change.name, kind)

    async def _brought_into_force(self, change: ServerChange, reason: str, grace_s: float | None) -> str:
        name, roster = change.name, self._roster
        match change.kind:
            case "available":
                config = self.available.servers[name]
                await roster.add_again(config)
                if config.autostart:
                    await roster.start(name, reason)
                return "added"
            case "disappeared":
                if roster.is_up(name):
                    await roster.stop(name, reason, grace_s)
                await roster.remove(name)
                return "removed"
            case _ if change.restart_needed:
                configs = [self.available.servers[one] for one in (name, *self._along(change))]
                await self._restarted(configs, reason, grace_s)
                return "restarted" if roster.is_up(name) else "changed"
            case _:
                await roster.replace(self.available.servers[name])
                return "changed"

    def restarts(self, found: Differences) -> list[tuple[str, ...]]:
        """The restarts that bringing the file into force takes now: each one's first is who has changed."""
        known, up = ties(self.available), [name for name in self._roster.configs() if self._roster.is_wanted(name)]
        steps: list[tuple[str, ...]] = []
        for change in found.servers:
            name = change.name
            if change.restart_needed and name in up and not any(name in step for step in steps):
                steps.append((name, *(mate for mate in known.get(name, Ties()).mates if mate in up)))
        return steps

    # --- those that restart together -----------------------------------------------------------------------------

    def _up(self, name: str) -> list[str]:
        """Who restarts together with the server, as it does: a mate that nobody wants up is left alone."""
        mates = self._ties().get(name, Ties()).mates
        return [mate for mate in mates if self._roster.loop(mate) is not None and self._roster.is_wanted(mate)]

    def _along(self, change: ServerChange) -> list[str]:
        """Whose change comes into force by the same restart."""
        if change.kind != "changed" or not change.restart_needed or not self._roster.is_wanted(change.name):
            return []
        mates, found = self._up(change.name), differences(self._running(), self.available).servers
        return [one.name for one in found if one.name in mates and one.kind == "changed" and one.restart_needed]

    async def _restarted(self, configs: Sequence[ServerConfig], reason: str, grace_s: float | None = None) -> None:
        """Bring them into force, the first one's mates being restarted with it: the last one ends first."""
        first, roster = configs[0], self._roster
        mates = self._up(first.name) if roster.is_wanted(first.name) else []
        if not mates:
            await roster.replace_by_restart(first, reason, grace_s)
            for config in configs[1:]:  # of mates at rest
                await roster.replace(config)
            return
        everybody, ended = by_need(self._ties(), [first.name, *mates]), set[str]()
        with roster.coming_back(everybody):
            try:
                for one in reversed(everybody):
                    whose = reason if one == first.name else f"{reason}; it goes with {first.name}"
                    await roster.stop(one, whose, grace_s)
                    ended.add(one)
                for config in configs:
                    await roster.replace(config)
            finally:  # also when one of them cannot be ended: the others are wanted up
                for one in everybody:
                    if one in ended:
                        await roster.start_again(one, reason)


def costs(change: ServerChange) -> bool:
    """Whether bringing it into force stops or restarts the server."""
    return change.kind == "disappeared" or change.restart_needed
