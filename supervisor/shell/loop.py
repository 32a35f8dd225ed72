"""One server's loop: takes events from its mailbox, ticks at its deadline, journals, carries its actions out."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import msgspec
import structlog

from supervisor.actions import Announce, AnyAction
from supervisor.api.control import Clock
from supervisor.core.lifecycle import RESTING
from supervisor.core.server import Server
from supervisor.events import AnyEvent, DevicesChecked, EvidenceKept, Exited, LogGrew, Spawned, StopRequested, Ticked
from supervisor.shell import clock
from supervisor.shell.host import Host
from supervisor.snapshot import ServerSnapshot

MAILBOX_EVENTS = 1024
_BUG_PAUSE_S = 1.0  # between two ticks that raise

# What the next daemon must know of at once.
# A stop of what is down already, too: the record may say that it is to be started again.
_SAVED_AFTER = (Spawned, Exited, EvidenceKept, DevicesChecked, StopRequested)
_SAVED_WITH = ("goal", "lifecycle", "maintenance")

log = structlog.get_logger()


async def _nothing_to_save(_: Server) -> None:
    pass


def to_be_saved(event: AnyEvent, actions: list[AnyAction]) -> bool:
    """Whether the server's record is written before the actions are carried out."""
    return isinstance(event, _SAVED_AFTER) or any(
        isinstance(action, Announce) and action.facet in _SAVED_WITH for action in actions
    )


class ServerLoop:
    """The only task that writes this server's state. Others `post` events; the mailbox is bounded, so they wait."""

    def __init__(
        self,
        server: Server,
        host: Host,
        announce: Callable[[str, Announce], None],
        save: Callable[[Server], Awaitable[None]] = _nothing_to_save,
    ) -> None:
        self.server = server
        self.name = server.settings.name
        self._host = host
        self._announce = announce
        self._save = save
        self._carry: Callable[[AnyAction], None] = lambda _: None
        self._send, self._receive = anyio.create_memory_object_stream[tuple[AnyEvent, anyio.Event | None]](
            MAILBOX_EVENTS
        )
        self._snapshot: ServerSnapshot | None = None
        self._no_tick_before = 0.0
        self._before_tick: int | None = None  # events that are still handled before a tick that is due
        self.settled = True  # all that was decided has been carried out, as far as it can be at once

    def snapshot(self) -> ServerSnapshot:
        """The facts as of the last event; made when asked for, kept until the next event."""
        if self._snapshot is None:
            findings = self._host.findings.get(self.name, ())
            self._snapshot = msgspec.structs.replace(self.server.snapshot(), findings=findings)
        return self._snapshot

    @property
    def rests(self) -> bool:
        """Whether the server is at rest, and all has been told that led to it."""
        return self.settled and self.server.state in RESTING

    def overdue_s(self) -> float:
        """For how long the loop has left something due undone."""
        deadline = self._deadline()
        return max(0.0, clock.monotonic() - deadline) if deadline is not None else 0.0

    def _deadline(self) -> float | None:
        deadline = self.server.deadline()
        return None if deadline is None else max(deadline, self._no_tick_before)

    async def post(self, event: AnyEvent) -> None:
        """Put an event into the mailbox; waits while it is full, which holds up the sender and nobody else."""
        await self._put(event, None)

    async def ask(self, event: AnyEvent) -> None:
        """Put an event into the mailbox and wait until it has been handled."""
        handled = anyio.Event()
        if await self._put(event, handled):
            await handled.wait()  # bounded by the loop itself, which waits for nothing but a save, for its limit

    async def _put(self, event: AnyEvent, handled: anyio.Event | None) -> bool:
        """False when the loop has ended: so does the daemon, and nobody takes events any more."""
        try:
            await self._send.send((event, handled))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def run(self, carry: Callable[[AnyAction], None]) -> None:
        """Turn until cancelled. A bug costs one event or action, is told, and leaves the other servers alone."""
        self._carry = carry
        with self._send, self._receive:
            try:
                while True:
                    await self._turn()
            finally:
                self._dismiss()

    def _dismiss(self) -> None:
        """Who waits for an event to be handled does not wait for ever when the loop ends."""
        while self._receive.statistics().current_buffer_used:
            _, handled = self._receive.receive_nowait()
            if handled is not None:
                handled.set()

    async def _turn(self) -> None:
        event, handled = await self._next()
        self.settled = False
        try:
            await self._handle(event)
        except Exception as bug:  # noqa: BLE001 - whatever it is, all servers depend on this loop and its siblings
            self.report_bug(f"handling {type(event).__name__}", bug)
            if isinstance(event, Ticked):  # it stays due; no other event may put off what is due
                self._no_tick_before = clock.monotonic() + _BUG_PAUSE_S  # from now: the telling takes its time, too
        self.settled = True
        if handled is not None:
            handled.set()

    def report_bug(self, where: str, bug: Exception) -> None:
        """An error of ours, no failure of the server: into the log with its traceback, and among the events."""
        log.error("bug", server=self.name, where=where, exc_info=bug)
        what = f"error of the supervisor itself, {where}: {type(bug).__name__}: {bug}"[:500]
        self._announce(self.name, Announce("supervisor", "", "bug", what))
        self._host.hub.publish()

    async def _next(self) -> tuple[AnyEvent, anyio.Event | None]:
        """The next event, or a tick when the deadline comes first.

        What has arrived by the deadline goes before it; what arrives later does not: a flood must not stop the clock.
        """
        now = clock.monotonic()
        deadline = self._deadline()
        waiting = self._receive.statistics().current_buffer_used
        if deadline is None or deadline > now:
            self._before_tick = None
        elif self._before_tick is None:
            self._before_tick = waiting  # what had arrived by then may hold the progress that moves the deadline
        if self._before_tick == 0:
            self._before_tick = None
            await anyio.lowlevel.checkpoint()
            return Ticked(), None
        if waiting:
            self._before_tick = None if self._before_tick is None else self._before_tick - 1
            return await self._receive.receive()
        with anyio.move_on_after(max(0.0, deadline - now) if deadline is not None else math.inf):
            return await self._receive.receive()
        return Ticked(), None

    async def _handle(self, event: AnyEvent) -> None:
        moment = clock.now()
        actions = self.server.handle(event, moment.monotonic)
        self._snapshot = None
        if not isinstance(event, LogGrew) and (actions or not isinstance(event, Ticked)):
            self._record("event", event, moment)
        if saved := to_be_saved(event, actions):
            with anyio.CancelScope(shield=True):  # what was decided is carried out; bounded by shell/writer.py
                await self._save(self.server)  # before anything is carried out: see shell/states.py
        self._perform_all(actions, moment)
        if saved and not actions:
            self._host.hub.publish()  # somebody may wait for `settled`
        self._host.heard(self.name, event)  # last: a bug in counting must cost no action

    def _perform_all(self, actions: list[AnyAction], moment: Clock) -> None:
        for action in actions:
            self._perform(action, moment)
        if actions:
            self._host.hub.publish()

    def resume(self, actions: list[AnyAction], carry: Callable[[AnyAction], None]) -> None:
        """Carry out what a restored server asks for, before the loop turns."""
        self._carry = carry
        self._perform_all(actions, clock.now())

    def _perform(self, action: AnyAction, moment: Clock) -> None:
        """One action that cannot be begun must not cost the others."""
        try:
            self._record("action", action, moment)
            if isinstance(action, Announce):
                self._announce(self.name, action)
            else:
                self._carry(action)
            self._host.heard(self.name, action)
        except Exception as bug:  # noqa: BLE001 - as in `run`
            self.report_bug(f"beginning {type(action).__name__}", bug)

    def _record(self, kind: str, what: AnyEvent | AnyAction, moment: Clock) -> None:
        payload = msgspec.json.encode(what)
        attempt = getattr(what, "attempt", 0)
        self._host.journal.append(kind, self.name, attempt, moment.monotonic, moment.wall, payload)
