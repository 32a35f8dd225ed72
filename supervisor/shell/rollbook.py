"""Keeps what a rolling has come to: on disk for the next daemon, in the log, and told to whoever follows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from supervisor.core.rolling import (
    MemberState,
    Roll,
    RollKind,
    RollState,
    begin,
    cancelled,
    ended,
    noted,
    summary,
    waiting,
)
from supervisor.shell import clock
from supervisor.shell.writer import Change, StateWriter
from supervisor.smallfile import UnusableFileError, read_json, replace_json

_COST = "it ends with this daemon"

Tell = Callable[[str, str, str, str], None]  # of a server, or "" for the whole: before, after, reason

log = structlog.get_logger()


class RollBook:
    """One for the daemon: the rolling under way, else the last one. What it holds it has asked to be written."""

    def __init__(self, path: Path, boot_id: str, tell: Tell, writer: StateWriter) -> None:
        self._path = path
        self._boot_id = boot_id
        self._tell = tell
        self._writer = writer
        self._kept: Change | None = None
        self.roll: Roll | None = None
        self._take_up(self._read())  # a small file, before anybody is served: who asks first must be told of it

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self.roll is not None and self.roll.state is RollState.RUNNING

    @property
    def cancelled_by(self) -> str:
        """Who wants nobody to be begun with any more, "" when nobody does."""
        return self.roll.cancelled_by if self.roll is not None else ""

    def begin(self, kind: RollKind, names: Sequence[str], by: str, grace_s: float, reason: str) -> Roll:
        """Another one takes the place of the last."""
        roll = begin(kind, names, by, grace_s, clock.now().wall, reason, self._boot_id)
        self._keep(roll, "", "", "running", f"rolling {kind} of {', '.join(names) or 'nobody'} asked by {by}")
        return roll

    def cancel(self, by: str) -> None:
        """After the server under way nobody follows."""
        if self.roll is not None and self.running:
            self._keep(cancelled(self.roll, by), "", "running", "running", f"to be cancelled, asked by {by}")

    def note(self, name: str, state: MemberState, reason: str = "", attempt: int | None = None) -> None:
        """A server's news."""
        if self.roll is None:
            return
        before = next((one.state for one in self.roll.members if one.name == name), "")
        self._keep(noted(self.roll, name, state, reason, attempt), name, str(before), str(state), reason)

    def note_wait(self, name: str, start: str) -> None:
        """What the start of the server under way waits for; "" when it waits no more."""
        if self.roll is None or (roll := waiting(self.roll, name, start)) is self.roll:
            return
        state = str(MemberState.UNDER_WAY)
        self._keep(roll, name, state, state, f"its start {start}" if start else "its start waits no more")

    def end(self, state: RollState, note: str) -> None:
        """It is over, unless it was before."""
        if self.roll is None or not self.running:
            return
        over = ended(self.roll, state, clock.now().wall, note)
        self._keep(over, "", "running", str(state), summary(over))

    def _keep(self, roll: Roll, server: str, before: str, after: str, reason: str) -> None:
        self.roll = roll
        self._kept = self._writer.ask(self._path, partial(replace_json, self._path, roll), _COST)
        log.info("rolling", server=server, **{"from": before, "to": after}, reason=reason)
        self._tell(server, before, after, reason)

    async def written(self) -> str:
        """Wait for the disk, within its limit, before what was noted is done or answered. Why it is not there, else "".

        What was noted is done all the same: a disk that refuses, or does not answer, costs the next daemon its memory.
        """
        if self._kept is None:
            return ""
        try:
            await self._writer.made(self._kept)
        except OSError as problem:
            return f"cannot write {self._path}: {problem.strerror or problem}; {_COST}"
        return ""

    # --- across the daemon's own death ---------------------------------------------------------------------------

    def _read(self) -> Roll | None:
        try:
            return read_json(self._path, Roll)
        except UnusableFileError as problem:
            log.warning("rolling", problem=str(problem))
            return None

    def _take_up(self, roll: Roll | None) -> None:
        """A restart goes on; the old configurations that an update could go back to are gone."""
        self.roll = roll
        if roll is None or not self.running:
            return
        if roll.boot_id != self._boot_id:
            self.end(RollState.ABANDONED, "the host was restarted meanwhile")
        elif roll.kind is RollKind.UPDATE:
            self.end(RollState.ABANDONED, "the daemon ended meanwhile; the file as it is now is in force")
