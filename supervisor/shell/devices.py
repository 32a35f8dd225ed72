"""Keeps the book of the host's GPUs up to date from the feed, and answers whether a server's devices are free."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import anyio
import msgspec
import structlog

from supervisor import procstat
from supervisor.config import OnForeign, ServerConfig
from supervisor.core.gpus.attribution import FOREIGN, SERVER
from supervisor.core.gpus.book import Claim, Culprit, DeviceBook, Lease, LeaseRefused, Rules
from supervisor.core.gpus.views import GpusView
from supervisor.devices import DeviceRecord, GpuReport, GpuSample, QuarantineRecord, XidSeen
from supervisor.edge.gpu.feed import GpuFeed
from supervisor.events import DevicesChecked
from supervisor.shell import clock
from supervisor.shell.owners import LIMIT_S, Owners
from supervisor.shell.users import Users
from supervisor.shell.writer import StateWriter
from supervisor.smallfile import UnusableFileError, read_json, replace_bytes
from supervisor.snapshot import ServerSnapshot

log = structlog.get_logger()

_RELAX_AFTER_S = 15.0
_MOMENTS_S = 2.0
_LOOK_AGAIN_S = 0.1
_STORE_EVERY_S = 300.0  # error counts; a quarantine and a first baseline are stored at once


class Devices:
    """The only writer of the device book. Leases follow the servers' lifecycles."""

    def __init__(
        self,
        state_dir: Path,
        server_of: Callable[[int], str],
        changed: Callable[[], None],
        identify_limit_s: float = LIMIT_S,
        writer: StateWriter | None = None,
    ) -> None:
        self._path = state_dir / "devices.json"
        self._changed = changed
        self._writer = writer or StateWriter()
        self._book = DeviceBook(Rules(), wall_offset_s=time.time() - time.monotonic(), now=clock.monotonic())
        self._feed: GpuFeed | None = None
        self._asked_at = 0.0
        self._stored = b""
        self._store_now = anyio.Event()
        self._sight = ("", "")
        self._struck: set[tuple[int, int]] = set()
        self._users = Users()
        self._owners = Owners(server_of, identify_limit_s)
        self._baselines: frozenset[str] = frozenset()  # of which devices one is known
        self.killed: Counter[tuple[str, str]] = Counter()  # holders of memory that we killed, by server and kind
        self._restore()

    # --- the tasks of the daemon -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read the feed until cancelled, and keep on disk what the next daemon must know."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._store_for_ever, name="gpus: store")
                await self._read()
        finally:
            self._store()

    async def _read(self) -> None:
        async with GpuFeed() as feed:
            self._feed = feed
            async for report in feed:
                await self.take(report)
                if clock.monotonic() - self._asked_at > _RELAX_AFTER_S:
                    feed.relax()

    async def take(self, report: GpuReport) -> None:
        """One report: of the feed, or an Xid of the kernel's log."""
        pids = _pids(report) if isinstance(report, GpuSample) else ()
        owners = await self._owners.of(pids) if pids else ()
        if isinstance(report, XidSeen) and self._book.is_news(report):
            log.warning("xid", gpu=report.device, xid=report.xid)
        self._quarantined(self._book.observe(report, owners, clock.monotonic()))
        self._keep_baselines()
        self._tell_sight()
        self._changed()

    def device_at(self, pci: str) -> int:
        """The device of a PCI address, -1 when there is none."""
        return self._book.device_at(pci)

    # --- what people see and ask -------------------------------------------------------------------------------------

    def view(self) -> GpusView:
        """All devices for people."""
        return self._book.view()

    def release(self, device: int) -> bool:
        """An operator puts a quarantined device back into use; False when it was not quarantined."""
        released = self._book.release(device)
        if released:
            log.info("gpu released", gpu=device)
            self._store_now.set()
            self._changed()
        return released

    @property
    def reader_restarts(self) -> int:
        """How often the GPU reader was given up, for a driver call that hung among other reasons."""
        return self._feed.status.restarts if self._feed is not None else 0

    # --- what servers ask --------------------------------------------------------------------------------------------

    def leased(self, server: str) -> tuple[int, ...]:
        """The devices that the server has now."""
        return self._book.leased(server)

    def adopt(self, server: str, devices: tuple[int, ...]) -> None:
        """A server that already runs keeps the devices it has."""
        if devices:
            self._book.adopt(Lease(server, devices))

    def release_lease(self, server: str) -> None:
        """The server rests and its memory is back."""
        self._book.release_lease(server)

    async def settled(self, config: ServerConfig, attempt: int, after: float, *, start: bool) -> DevicesChecked:
        """As `check`, but what passes by itself within moments is waited for here: looks come ten times a second.

        Memory comes back some tenths of a second after its process's end: a period of the feed more would be the
        longest part of a restart.
        """
        if config.on_foreign is OnForeign.KILL_SAME_USER:
            await self._users.learn(config.user)
        until = clock.monotonic() + _MOMENTS_S
        while True:
            found = self.check(config, attempt, after, start=start)
            if not _passes(found) or clock.monotonic() >= until:
                return found
            await anyio.sleep(_LOOK_AGAIN_S)

    def check(self, config: ServerConfig, attempt: int, after: float, *, start: bool) -> DevicesChecked:
        """Whether the server's devices are free by looks from `after` on.

        For a start they are leased first; otherwise those that it has are looked at.
        """
        if not config.gpus.size:
            return DevicesChecked(attempt, True)
        self._hurry()
        lease = self._book.lease(config.name, config.gpus) if start else None
        if isinstance(lease, LeaseRefused):
            return _refusal(lease, attempt)
        devices = lease.devices if isinstance(lease, Lease) else self._book.leased(config.name)
        if not devices:
            return DevicesChecked(attempt, True)
        finding, records = self._book.check(
            _claim(config, self._users.uid(config.user), devices, after, start), clock.monotonic()
        )
        self._quarantined(records)
        for culprit in finding.kill:
            self._strike(config.name, culprit)
        return finding.event(attempt)

    def blame(self, server: ServerSnapshot) -> None:
        """The server has failed: count it against the devices that the failure points at, if it does."""
        if server.diagnosis is None:
            return
        cause = server.diagnosis.cause
        for device in self._book.suspects(server.name, cause, server.started or 0.0):
            log.warning("gpu blamed", gpu=device, server=server.name, cause=cause)
            record = self._book.blame(device, f"{server.name}: {cause}", clock.monotonic())
            self._quarantined((record,) if record else ())

    # --- inside ------------------------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        self._asked_at = clock.monotonic()
        if self._feed is not None:
            self._feed.hurry()

    def _quarantined(self, records: Iterable[QuarantineRecord]) -> None:
        for record in records:
            log.warning("gpu quarantined", gpu=record.device, uuid=record.uuid, kind=record.kind, reason=record.reason)
            self._store_now.set()

    def _keep_baselines(self) -> None:
        """A first baseline is stored at once: while a server has the device nobody can learn it anew."""
        known = frozenset(record.uuid for record in self._book.records() if record.baseline is not None)
        if known - self._baselines:
            self._store_now.set()
        self._baselines = known

    def _tell_sight(self) -> None:
        sight = self._book.sight
        if sight != self._sight[0]:
            reason = self._book.view().reason
            log.info("gpu feed", **{"from": self._sight[0], "to": sight}, reason=reason)
            self._sight = (sight, reason)

    def _strike(self, server: str, culprit: Culprit) -> None:
        """Asked for at every look until it is gone; it counts once."""
        if _kill(server, culprit) and (culprit.pid, culprit.start_ticks) not in self._struck:
            self._struck.add((culprit.pid, culprit.start_ticks))
            self.killed[server, culprit.kind] += 1

    # --- on disk -----------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        try:
            records = read_json(self._path, tuple[DeviceRecord, ...])
        except UnusableFileError as problem:
            log.warning("state", problem=str(problem))
            return
        if records is not None:
            self._book.restore(records)
            self._stored = msgspec.json.encode(records)

    def _records(self) -> bytes:
        return msgspec.json.encode(self._book.records())

    async def _store_for_ever(self) -> None:
        while True:
            with anyio.move_on_after(_STORE_EVERY_S):
                await self._store_now.wait()
            self._store_now = anyio.Event()
            self._store()

    def _store(self) -> None:
        """Have what the next daemon must know written down, when that is news."""
        if (records := self._records()) != self._stored:
            self._writer.ask(self._path, partial(self._write, records), "what is known of devices is in memory only")

    def _write(self, records: bytes) -> None:
        replace_bytes(self._path, records, durable=True)
        self._stored = records


def _passes(found: DevicesChecked) -> bool:
    """Whether nobody alive is in the way: a first look is missing, or one more, or memory of the dead is."""
    decided = found.refuse or found.quarantined or not found.devices
    others = any(holder.kind in (FOREIGN, SERVER) for holder in found.holders)
    return found.clean is False and not decided and not others


def _refusal(lease: LeaseRefused, attempt: int) -> DevicesChecked:
    waiting = not (lease.quarantined or lease.refuse)
    return DevicesChecked(
        attempt, False, lease.reason, quarantined=lease.quarantined, waiting=waiting, refuse=lease.refuse
    )


def _claim(config: ServerConfig, uid: int | None, devices: tuple[int, ...], after: float, start: bool) -> Claim:
    return Claim(
        config.name,
        devices,
        config.memory_tolerance_bytes,
        config.on_foreign,
        uid,
        after,
        rest=not start,
        limit_s=config.reclaim_limit_s,
    )


def _pids(report: GpuSample) -> tuple[int, ...]:
    return tuple(process.pid for gpu in report.devices for process in gpu.processes or () if process.alive)


def _kill(server: str, culprit: Culprit) -> bool:
    """Kill beyond mistaking: the descriptor is taken first, then the start time compared, then the signal sent."""
    try:
        descriptor = os.pidfd_open(culprit.pid)
    except OSError:
        return False  # gone already
    try:
        process = procstat.read(culprit.pid)
        if process is None or process.start_ticks != culprit.start_ticks:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError as problem:
        log.warning("memory holder lives", server=server, pid=culprit.pid, problem=str(problem))
        return False
    finally:
        os.close(descriptor)
    log.warning("memory holder killed", server=server, pid=culprit.pid, kind=culprit.kind, user=culprit.user)
    return True
