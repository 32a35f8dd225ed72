"""Keeps the books behind the metrics: the tally, on disk across daemons; how late the loop is, how full the disks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
import structlog

from supervisor.actions import AnyAction
from supervisor.api.pulse import Disk, Pulse, Stored
from supervisor.config import ServerConfig
from supervisor.core.gpus.views import GpusView
from supervisor.core.tally import SavedTally, Tally
from supervisor.core.traffic import HostTraffic
from supervisor.edge.journal import JournalState
from supervisor.events import AnyEvent
from supervisor.shell import clock
from supervisor.shell.dossier import engine_version
from supervisor.shell.writer import Change, StateWriter
from supervisor.smallfile import UnusableFileError, read_json, replace_bytes
from supervisor.snapshot import ServerSnapshot
from supervisor.threads import Hanging, Threads, hanging
from supervisor.units import format_duration

log = structlog.get_logger()

PERIOD_S = 5.0
LOST_S = 5.0  # a call that has not come back for so long hangs; who asked for a piece of a log may just have left
DISK_EVERY = 12  # periods
STORE_EVERY = 3  # periods, while time is being lost or logs grow; starts and ends are stored within a second
_NO_JOURNAL = JournalState("", 0, 0, 0, "")
_WORST_KEPT = 0.5  # of the worst lag remains after a period without one: a scrape every 15 s still sees it


class Reader(Protocol):
    """How far one attempt's log has been read."""

    path: str
    offset: int


class PulseKeeper:
    """One for the daemon. Its file costs precision of counters when it is lost, never a server.

    What is shown is what is on disk: a counter that fell back after a crash would be taken for one that began anew, and
    all that it had ever counted would be counted again.
    """

    def __init__(
        self,
        state_dir: Path,
        log_dir: Path,
        overdue_s: Callable[[], float],
        host: Callable[[], HostTraffic] = HostTraffic,
        writer: StateWriter | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._path = state_dir / "tally.json"
        self._state_dir, self._log_dir = state_dir, log_dir
        self._writer = writer or StateWriter()
        self._looks = Threads("the disk", 2)
        self._period_s = period_s
        self._overdue_s, self._host, self._host_stored = overdue_s, host, HostTraffic()
        self._shown = self._restored()
        self._tally = Tally(msgspec.convert(msgspec.to_builtins(self._shown), SavedTally))
        self._counted = anyio.Event()
        self._lag_s = 0.0
        self._config_wall, self._config_ok = clock.now().wall, True
        self._watchdog_wall: float | None = None
        self._disks: tuple[Disk, ...] = ()
        self._stored: dict[str, Stored] = {}
        self._lags: dict[str, int] = {}
        self._journal: Callable[[], JournalState] = lambda: _NO_JOURNAL
        self._told = ""  # of the journal

    # --- what the daemon tells -----------------------------------------------------------------------------------

    def observe(self, snapshot: ServerSnapshot) -> None:
        """A facet of the server has changed."""
        self._tally.observe(snapshot, clock.monotonic())
        self._counted.set()

    def hear(self, name: str, what: AnyEvent | AnyAction) -> None:
        """Something has passed through a server's mailbox: a probe, a piece of log, a step of an end."""
        self._tally.hear(name, what)

    def fed_watchdog(self) -> None:
        """systemd was told that we live."""
        self._watchdog_wall = clock.now().wall

    def read_config(self, *, usable: bool) -> None:
        """The file was read again."""
        self._config_ok = usable
        if usable:
            self._config_wall = clock.now().wall

    # --- what readers ask ----------------------------------------------------------------------------------------

    @property
    def state_problem(self) -> str:
        """Why not all that the next daemon must know is on disk."""
        return self._writer.problem

    @property
    def hangs(self) -> str:
        """What does not come back now, in words; "" for nothing."""
        return _unanswered(hanging())

    def pulse(self, names: Collection[str]) -> Pulse:
        """Everything, of the servers that are configured; counters as of the last store."""
        lost = [one for one in hanging() if clock.monotonic() - one.since >= LOST_S]
        return Pulse(
            overdue_s=self._overdue_s(),
            lag_s=self._lag_s,
            config_loaded_wall=self._config_wall,
            config_ok=self._config_ok,
            watchdog_wall=self._watchdog_wall,
            disks=self._disks,
            stored=self._stored,
            accounts={name: account for name, account in self._shown.servers.items() if name in names},
            xids=self._shown.xids,
            host=self._shown.host,
            state_problem=self.state_problem,
            processes=self._tally.processes(),
            log_lag_bytes=self._lags,
            hanging=len(lost),
            unanswered=_unanswered(lost),
            journal_lost=self._journal().lost,
            journal_problem=self._journal().problem,
        )

    # --- the task ------------------------------------------------------------------------------------------------

    async def run(
        self,
        configs: Callable[[], Mapping[str, ServerConfig]],
        gpus: Callable[[], GpusView],
        readers: Callable[[], Mapping[str, Reader]] = dict,
        journal: Callable[[], JournalState] = lambda: _NO_JOURNAL,
    ) -> None:
        """Until cancelled; the last counts are stored then."""
        self._journal = journal
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._store_counts, name="pulse: store")
                await self._beat(configs, gpus, readers)
        finally:
            self._show(self._store()[1])

    async def _beat(
        self,
        configs: Callable[[], Mapping[str, ServerConfig]],
        gpus: Callable[[], GpusView],
        readers: Callable[[], Mapping[str, Reader]],
    ) -> None:
        beats = 0
        while True:
            if beats % DISK_EVERY == 0:
                await self._look_at_disks(configs())
            await self._look_at_logs(dict(readers()))
            due = clock.monotonic() + self._period_s
            await anyio.sleep(self._period_s)
            self._lag_s = max(clock.monotonic() - due, self._lag_s * _WORST_KEPT)
            self._tell_of_journal(self._journal())
            self._tally.observe_gpus(gpus())
            self._tally.keep_only(configs())
            beats += 1
            news = self._tally.losing or self._tally.stirred or self._host() != self._host_stored
            if beats % STORE_EVERY == 0 and news:
                self._counted.set()

    def _tell_of_journal(self, state: JournalState) -> None:
        if bool(state.problem) != bool(self._told):
            say = log.warning if state.problem else log.info
            say("journal", problem=state.problem, waiting=state.waiting, lost=state.lost)
        self._told = state.problem

    async def _look_at_disks(self, configs: Mapping[str, ServerConfig]) -> None:
        """What does not answer is unknown: yesterday's free space is no figure of today. Sizes stay as measured."""
        look, take = self._measure, self._take  # late as well: a slow disk is no dead one
        try:
            take(await self._looks.run(look, configs, limit_s=PERIOD_S, thing="space", unwanted=take))
        except TimeoutError:
            self._disks = ()

    def _take(self, measured: tuple[tuple[Disk, ...], dict[str, Stored]]) -> None:
        self._disks, self._stored = measured

    async def _look_at_logs(self, readers: Mapping[str, Reader]) -> None:
        try:
            self._lags = await self._looks.run(_behind, readers, limit_s=PERIOD_S, thing="logs")
        except TimeoutError:
            self._lags = {}

    async def _store_counts(self) -> None:
        while True:
            await self._counted.wait()  # as long as nothing happens
            await anyio.sleep(1.0)  # a burst of changes costs one write
            self._counted = anyio.Event()
            change, saved = self._store()
            await self._writer.tried(change)
            self._show(saved)  # on a disk that cannot be written it is shown all the same: that is the lesser evil

    def _show(self, saved: bytes) -> None:
        """What has not changed is the same object as before, so that a scrape need not compare it."""
        new, old = msgspec.json.decode(saved, type=SavedTally), self._shown.servers
        same = {name: old[name] if old.get(name) == account else account for name, account in new.servers.items()}
        self._shown = msgspec.structs.replace(new, servers=same)

    # --- on disk -------------------------------------------------------------------------------------------------

    def _saved(self) -> bytes:
        self._tally.settle(clock.monotonic())
        self._host_stored = self._host()
        return msgspec.json.encode(self._tally.save(self._host_stored))

    def _restored(self) -> SavedTally:
        try:
            return read_json(self._path, SavedTally) or SavedTally()
        except UnusableFileError as problem:
            log.warning("tally", problem=f"{problem}; counters begin at 0")
            return SavedTally()

    def _store(self) -> tuple[Change, bytes]:
        """Have the counts written down; what may be shown once they are."""
        saved = self._saved()
        write = partial(replace_bytes, self._path, saved, durable=True)
        return self._writer.ask(self._path, write, "counters are in memory only"), saved

    def _measure(self, configs: Mapping[str, ServerConfig]) -> tuple[tuple[Disk, ...], dict[str, Stored]]:
        disks = [_disk("log", self._log_dir), _disk("state", self._state_dir)]
        stored = {name: self._stored_of(name, config) for name, config in configs.items()}
        return tuple(disk for disk in disks if disk is not None), stored

    def _stored_of(self, name: str, config: ServerConfig) -> Stored:
        evidence = self._state_dir / "evidence" / name
        bundles = _entries(evidence)
        return Stored(
            log_bytes=_bytes_in(self._log_dir / name),
            evidence_bytes=sum(_bytes_in(Path(bundle.path)) for bundle in bundles),
            evidence_bundles=len(bundles),
            engine_version=engine_version(config.command, config.engine),
        )


def _unanswered(lost: Sequence[Hanging]) -> str:
    """Why something is unknown."""
    if not lost:
        return ""
    hung = format_duration(clock.monotonic() - lost[0].since)
    others = f"; {len(lost) - 1} more do not come back either" if lost[1:] else ""
    return f"{lost[0].what} has not answered for {hung}{others}"


def _disk(use: str, directory: Path) -> Disk | None:
    """What is left for a daemon that is not root; None when it cannot be asked."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return Disk(use, status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def _behind(readers: Mapping[str, Reader]) -> dict[str, int]:
    """Bytes of each log that nobody has read yet."""
    lags = {}
    for name, reader in readers.items():
        with contextlib.suppress(OSError):  # gone, or not made yet
            lags[name] = max(0, os.stat(reader.path).st_size - reader.offset)
    return lags


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:  # not made yet, or taken away while we looked
        return []


def _bytes_in(directory: Path) -> int:
    """What its files really occupy: a log with a punched hole is smaller than it is long."""
    total = 0
    for entry in _entries(directory):
        with contextlib.suppress(OSError):
            total += 512 * entry.stat(follow_symlinks=False).st_blocks
    return total
