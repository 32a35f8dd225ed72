"""What the demo tells, and whether all that it promises came true: observations in, sentences out, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from supervisor.api import wire
from supervisor.demo.stage import DRAFTED, PLAIN, STALL_PHASE, STALL_S
from supervisor.shell.terminal import finished, steps
from supervisor.units import format_bytes, format_duration

DETECTION_SLACK_S = 3.0  # a loaded machine of two cores
_OVER = ("fatal", "quarantined", "stopped")


class Look(NamedTuple):
    """The demo's own look at the first attempt of the server that stalls, independent of the daemon's word."""

    processes: int
    memory_bytes: int
    evidence: tuple[str, ...] = ()  # names of the files in the evidence bundle
    odd_one_out: str = ""  # what the stacks in it tell


class Observation(NamedTuple):
    """One answer of the daemon: all servers at `at` (ISO 8601), and what has happened since the last answer."""

    at: str
    servers: tuple[wire.Server, ...]
    events: tuple[wire.Event, ...]


class Telling(NamedTuple):
    """One thing to tell: whom it concerns, the words, and when (None: it goes on about the one before).

    `minor`: a live view shows it anyway.
    """

    at_s: float | None
    server: str
    text: str
    style: str = ""
    minor: bool = False


class Story:
    """Follows both servers to the end. `began` is the demo's start in seconds of the epoch."""

    def __init__(self, began: float, default_stall_s: float) -> None:
        self.problems: list[str] = []
        self.done = False
        self._began = began
        self._default_stall_s = default_stall_s
        self._ready: dict[str, float] = {}
        self._launched = self._stalled = self._emptied = 0.0
        self._last_progress = 0.0
        self._before = Look(0, 0)
        self._explained = False
        self._last_steps: dict[str, float] = {}

    def observe(self, seen: Observation, look: Look) -> Iterator[Telling]:
        """Take one observation in; what is new to tell."""
        stalling = next((server for server in seen.servers if server.name == DRAFTED and server.attempt == 1), None)
        if stalling is not None and look.memory_bytes >= self._before.memory_bytes:
            self._before = look
        for event in seen.events:
            if stalling is not None and _is_end(event):
                yield from self._explain(stalling, seen.at, look)
            yield from self._event(event, look)
        if stalling is not None and stalling.evidence_path:
            yield from self._explain(stalling, seen.at, look)
        self.problems += [
            f"{server.name} is {server.lifecycle.value}: {server.lifecycle.reason}"
            for server in seen.servers
            if server.goal == "up" and server.lifecycle.value in _OVER and server.attempt
        ]
        self._remember(seen)
        self.done = bool(self.problems) or (PLAIN in self._ready and DRAFTED in self._ready)

    def _remember(self, seen: Observation) -> None:
        for server in seen.servers:
            if server.name == DRAFTED and server.start is not None:
                self._last_steps = {step.phase: step.seconds for step in steps(server.start)}

    # --- what happened -----------------------------------------------------------------------------------------------

    def _event(self, event: wire.Event, look: Look) -> Iterator[Telling]:
        at_s = self._seconds(event.at)
        match event.facet, event.after:
            case "phase", phase if phase:
                yield Telling(at_s, event.server, f"phase {phase}", minor=True)
            case "lifecycle", "starting":
                self._launched = at_s
                again = " again" if event.attempt > 1 else ""
                yield Telling(at_s, event.server, f"starts{again} (attempt {event.attempt})")
            case "lifecycle", "running":
                yield self._healthy(event, at_s)
            case "lifecycle", "stopping":
                yield self._condemned(event, at_s)
            case "lifecycle", "reclaiming" if event.before == "stopping" and event.server == DRAFTED:
                yield self._empty(at_s, look)
            case "lifecycle", "backoff":
                yield Telling(at_s, event.server, "waits before the next start, longer after each failure", minor=True)
            case _:
                pass

    def _healthy(self, event: wire.Event, at_s: float) -> Telling:
        self._ready[event.server] = at_s
        if event.server == DRAFTED and not self._emptied:
            self.problems.append(f"{DRAFTED} became healthy in attempt {event.attempt} without having stalled")
        return Telling(at_s, event.server, event.reason, "bold green")

    def _condemned(self, event: wire.Event, at_s: float) -> Telling:
        if event.server != DRAFTED or self._stalled:
            self.problems.append(f"{event.server} was stopped though nothing was wrong with it: {event.reason}")
        elif STALL_PHASE not in event.reason:
            self.problems.append(f"{DRAFTED} was to stall in {STALL_PHASE}, but: {event.reason}")
        self._stalled = at_s
        return Telling(at_s, event.server, event.reason, "bold red")

    def _empty(self, at_s: float, look: Look) -> Telling:
        self._emptied = at_s
        if not self._before.processes:
            self.problems.append(f"no process of {DRAFTED}'s first attempt was seen")
        if look.processes or look.memory_bytes:
            left = f"{look.processes} processes and {format_bytes(look.memory_bytes)} of GPU memory"
            self.problems.append(f"{left} of {DRAFTED} were left when the daemon called its tree empty")
        text = f"killed, proven empty {at_s - self._stalled:.1f} s after the verdict: {self._held()}"
        return Telling(at_s, DRAFTED, text, "bold yellow")

    def _held(self) -> str:
        memory = format_bytes(self._before.memory_bytes)
        return f"{self._before.processes} processes, {memory} of make-believe GPU memory"

    # --- why ---------------------------------------------------------------------------------------------------------

    def _explain(self, server: wire.Server, at: str, look: Look) -> Iterator[Telling]:
        if self._explained or not self._stalled:
            return
        self._explained = True
        self._last_progress = self._seconds(at) - (server.last_progress_ago_s or 0.0)
        for sentence in self._why(server, look):
            yield Telling(None, server.name, sentence, "italic")

    def _why(self, server: wire.Server, look: Look) -> Iterator[str]:
        if server.start is not None:
            yield _where(server.start)
        if look.odd_one_out:
            yield f"the stacks tell who holds them up: {look.odd_one_out}"
        silent_s = self._stalled - self._last_progress
        if silent_s > STALL_S + DETECTION_SLACK_S:
            self.problems.append(f"the stall was found only after {silent_s:.1f} s, the limit being {STALL_S:.0f} s")
        usual = format_duration(self._default_stall_s)
        yield f"silent for {silent_s:.1f} s; {STALL_S:.0f} s are allowed in this demo, {usual} unless configured"
        yield f"{self._before.processes} living processes, port still closed: to a health poller just a slow start"
        if look.evidence:
            stacks = sum(name.startswith("stack-") for name in look.evidence)
            others = len(look.evidence) - stacks
            yield f"evidence kept before the kill: {stacks} stacks and {others} more files in {server.evidence_path}"
        else:
            self.problems.append(f"no evidence of {DRAFTED}'s stall was kept")

    # --- the end -----------------------------------------------------------------------------------------------------

    def summary(self) -> list[tuple[str, str]]:
        """What took how long, as (what, how long)."""
        found_s, empty_s = self._stalled - self._last_progress, self._emptied - self._stalled
        again_s = self._ready.get(DRAFTED, 0.0) - self._launched
        phase_s = self._last_steps.get(STALL_PHASE, 0.0)
        return [
            ("stall found", f"{found_s:.1f} s after the last progress ({STALL_S:.0f} s are allowed)"),
            ("tree empty", f"{empty_s:.1f} s after that, the evidence being kept meanwhile"),
            ("second start", f"{again_s:.1f} s until healthy, {phase_s:.1f} s of them in {STALL_PHASE}"),
        ]

    def _seconds(self, at: str) -> float:
        return datetime.fromisoformat(at).timestamp() - self._began


def _is_end(event: wire.Event) -> bool:
    """The tree is empty: the last moment to explain what was in it."""
    return event.server == DRAFTED and event.facet == "lifecycle" and event.after == "reclaiming" and event.attempt == 1


def _where(start: wire.Startup) -> str:
    """Where the ranks are; those that are through with the phase are the measure of what is usual."""
    done = finished(start)
    late = [rank.rank for rank in start.ranks if rank.rank not in done]
    if done and late:
        took_s = sorted(done.values())[len(done) // 2]
        return f"{', '.join(late)} never left {start.phase}; {len(done)} others took {took_s:.1f} s for it and wait"
    bars = [rank.progress for rank in start.ranks if rank.phase == start.phase and rank.progress is not None]
    bar = f"; the bar stands at {bars[0].done} of {bars[0].total} {bars[0].unit}" if bars else ""
    return f"none of its {len(start.ranks)} ranks has left {start.phase}{bar}"
