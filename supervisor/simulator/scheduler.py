"""Plays one scheduler: its share of the start-up script, then its answers while serving."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Sequence

from supervisor.simulator import texts
from supervisor.simulator.clock import Clock, Log, is_quiet
from supervisor.simulator.dialect import Dialect
from supervisor.simulator.failures import LAUNCHER_GONE, PEER_RESET, Cause, scheduler_traceback
from supervisor.simulator.meeting import Meetings, PeerLostError
from supervisor.simulator.options import Options
from supervisor.simulator.plan import LOCAL_PHASES, Fate, FateKind, Plan, RankPlan, StepPlan
from supervisor.simulator.processes import ArgumentArea, die_with_parent, set_title
from supervisor.simulator.scenario import DEFAULT_ORPHAN_LIFE_S, Kind, Scenario
from supervisor.simulator.script import flood_emission, rank_fate
from supervisor.simulator.wires import Wires

_GIB = 1 << 30
_DECODE_LOG_INTERVAL = 40
_FINEST_TICK_S = 0.002
_AFTER_BARK_S = 5.0  # the watchdog lets its stack dumps be written before it sends SIGQUIT


class Generation:
    """One request that is being decoded."""

    def __init__(self, identity: str, left: int, rate: float) -> None:
        self.identity = identity
        self.left = left
        self.rate = rate
        self.done = 0


class Scheduler:
    """One rank. `launcher` is the pid that gets SIGQUIT when something is raised."""

    def __init__(self, plan: Plan, mine: RankPlan, wires: Wires, peers: Sequence[Wires], launcher: int) -> None:
        self._plan = plan
        self._mine = mine
        self._wires = wires
        self._launcher = launcher
        self._clock = Clock(plan.options.speed)
        self._log = Log(is_quiet(plan.options))
        self._meetings = Meetings(wires, peers, self._clock)
        self._running: list[Generation] = []
        self._held_gb = 0.0

    def run(self, area: ArgumentArea) -> int:
        """Exit code 0 even after an exception, as in the real one: it is no success."""
        try:
            for number, step in enumerate(self._mine.steps):
                self._play(step)
                if number == 0:
                    set_title(area, self._mine.rank.title)
                    die_with_parent()
                self._meetings.in_collective = self._dialect.watches_serving
                self._meetings.meet()
            self._wires.scheduler_end.send(b"R")
            self._serve()
        except PeerLostError:
            self._raise(PEER_RESET)
        except BrokenPipeError:
            self._raise(LAUNCHER_GONE)
        return 0

    # --- start-up

    def _play(self, step: StepPlan) -> None:
        begin = self._clock.now()
        self._hold_memory(step.held_gb)  # a model's tensors are allocated before they are filled
        self._meetings.in_collective = step.phase not in LOCAL_PHASES and self._dialect.watches_serving
        for emission in step.emissions:
            self._meetings.wait_until(begin + self._clock.real(emission.at_s - step.begin_s))
            self._log.emit(emission)
        if step.fate:
            self._meetings.wait_until(begin + self._clock.real(step.fate.at_s - step.begin_s))
            self._meet(step.fate)
        self._meetings.wait_until(begin + self._clock.real(step.end_s - step.begin_s))

    def _bark(self) -> None:
        """The scheduler's own watchdog: a batch is running and no forward pass has ended for --watchdog-timeout."""
        text = texts.watchdog_timeout(self._dialect, self._options.watchdog_timeout_s)
        self._log.record(text, self._mine.rank.prefix, loud=True)
        self._clock.sleep(_AFTER_BARK_S)
        self._tell_parent()

    def _hold_memory(self, held_gb: float) -> None:
        """Tell a fake NVML how much this rank has allocated; renamed into place so that nobody reads half a file."""
        directory = self._plan.options.gpu_dir
        if not directory or held_gb == self._held_gb:
            return
        self._held_gb = held_gb
        path, scratch = f"{directory}/{os.getpid()}", f"{directory}/.{os.getpid()}"
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump({"device": _physical(self._mine.rank.device), "bytes": int(held_gb * _GIB)}, file)
        os.rename(scratch, path)

    # --- fates

    def _meet(self, fate: Fate) -> None:
        for emission in fate.emissions:
            self._log.emit(emission)
        match fate.kind:
            case FateKind.STALL:
                self._hang(fate.busy)
            case FateKind.KILLED:
                signal.signal(fate.signal_number, signal.SIG_DFL) if fate.signal_number != signal.SIGKILL else None
                os.kill(os.getpid(), fate.signal_number)
            case FateKind.CRASH:
                self._tell_parent()
                os._exit(0)

    def _hang(self, busy: bool) -> None:
        """For ever, silently or on the CPU; without a launcher only for a bounded time, to litter no machine."""
        if busy:
            while os.getppid() != 1:
                end = time.monotonic() + 0.02
                while time.monotonic() < end:
                    pass
                time.sleep(0.02)
        watch = select.poll()
        watch.register(self._wires.scheduler_end, 0)  # only POLLHUP: the launcher is gone
        watch.poll()
        time.sleep(DEFAULT_ORPHAN_LIFE_S)
        os._exit(0)

    def _raise(self, cause: Cause) -> None:
        self._log.record(scheduler_traceback(cause), self._mine.rank.prefix, loud=True)
        self._tell_parent()

    def _tell_parent(self) -> None:
        """SIGQUIT to whoever is the parent now. The real one hits the adoptive parent of an orphan as well: here only
        when the scenario asks for it, because that may be the test runner or the login session."""
        wanted = any(scenario.kind is Kind.ORPHAN_SIGQUIT for scenario in self._options.scenarios)
        parent = os.getppid()
        if parent == self._launcher or (wanted and parent > 1):
            os.kill(parent, signal.SIGQUIT)

    # --- serving

    @property
    def _options(self) -> Options:
        return self._plan.options

    @property
    def _dialect(self) -> Dialect:
        return self._plan.dialect

    def _serve(self) -> None:
        """Answers `H id` (health) and `G id prompt new rate` (generation) with `A id` and `T id count`."""
        self._meetings.in_collective = True
        doom = self._doom()
        begin = self._clock.now()
        self._meetings.hear_launcher(True)
        while True:
            until = begin + self._clock.real(doom[0]) if doom else None
            if doom and until is not None and self._clock.now() >= until:
                self._meet_in_service(doom[1])
                doom = None
                continue
            if self._wires.scheduler_end.fileno() in self._meetings.look(self._patience(until)):
                message = self._wires.scheduler_end.recv(4096)
                if not message:
                    raise BrokenPipeError
                self._answer(message.decode().split())
            elif self._running:
                self._decode()

    def _patience(self, until: float | None) -> float | None:
        """An idle scheduler sleeps until it is asked (as with --sleep-on-idle)."""
        waits = [self._tick(self._running[0])] if self._running else []
        if until is not None:
            waits.append(max(0.0, until - self._clock.now()))
        return min(waits, default=None)

    def _tick(self, generation: Generation) -> float:
        """The real time of one decode step; at high speed timers are too coarse and tokens come in bursts."""
        return max(self._clock.real(1.0 / generation.rate), _FINEST_TICK_S)

    def _doom(self) -> tuple[float, Scenario] | None:
        for scenario in self._options.scenarios:
            wanted = scenario.rank or ("" if scenario.kind is Kind.STALL else "0")
            striking = scenario.kind in (Kind.STALL, Kind.CRASH, Kind.OOM_KILL, Kind.FLOOD)
            if striking and scenario.phase == "serving" and self._mine.rank.matches(wanted):
                return (1.0 if scenario.after_s is None else scenario.after_s), scenario
        return None

    def _meet_in_service(self, scenario: Scenario) -> None:
        if scenario.kind is Kind.FLOOD:
            self._log.emit(flood_emission(scenario, self._mine.rank, 0.0))
        else:
            self._meet(rank_fate(self._options, scenario, self._mine.rank, 0.0))

    def _answer(self, words: list[str]) -> None:
        match words:
            case ["H", identity]:
                self._prefill(1)
                self._send(f"A {identity}")
            case ["S", identity]:
                self._send(f"A {identity}")
            case ["G", identity, prompt, new, rate]:
                self._meet_peers()
                self._prefill(int(prompt))
                self._running.append(Generation(identity, int(new), float(rate)))
            case ["Z", "hang"]:
                self._hang(busy=False)
            case ["Z", "dead"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                raise ValueError(f"cannot understand the launcher's message {words!r}")

    def _meet_peers(self) -> None:
        """A forward pass needs every rank; meanwhile nothing else is heard, not even a health probe."""
        self._meetings.hear_launcher(False)
        self._meetings.meet(self._options.watchdog_timeout_s, self._bark)
        self._meetings.hear_launcher(True)

    def _prefill(self, tokens: int) -> None:
        if not self._mine.rank.leads_group:
            return
        text = texts.prefill_batch(self._dialect, tokens, len(self._running))
        self._log.record(text, self._mine.rank.prefix)

    def _decode(self) -> None:
        for generation in list(self._running):
            due = self._tick(generation) * generation.rate * self._options.speed
            burst = min(generation.left, max(1, round(due)))
            generation.left -= burst
            intervals = (generation.done + burst) // _DECODE_LOG_INTERVAL - generation.done // _DECODE_LOG_INTERVAL
            for _ in range(intervals):  # as many meetings on every rank, however its bursts fall
                self._meet_peers()
                self._log_decode(generation)
            generation.done += burst
            self._report(f"T {generation.identity} {burst}")
            if generation.left <= 0:
                self._running.remove(generation)
                self._report(f"A {generation.identity}")

    def _log_decode(self, generation: Generation) -> None:
        if not self._mine.rank.leads_group:
            return
        tokens = sum(one.done for one in self._running) + 7
        text = texts.decode_batch(
            self._dialect, len(self._running), tokens, generation.rate, self._options.speculative
        )  # fmt: skip
        self._log.record(text, self._mine.rank.prefix)

    def _report(self, message: str) -> None:
        """Tokens come from the first rank alone."""
        if self._mine.rank.leads_group:
            self._send(message)

    def _send(self, message: str) -> None:
        self._wires.scheduler_end.send(message.encode())


def _physical(device: int) -> int:
    """The driver's number of a device, where CUDA_VISIBLE_DEVICES hides or reorders them for the process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[device]) if device < len(visible) and visible[device].isdecimal() else device
