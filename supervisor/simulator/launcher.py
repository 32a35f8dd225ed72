"""Plays the launcher from its first line until every scheduler has reported ready."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NoReturn

from supervisor.simulator import texts
from supervisor.simulator.children import Family, start_family
from supervisor.simulator.clock import SHORTEST_POLL_S, Clock, Log, is_quiet
from supervisor.simulator.dialect import DeathWatch
from supervisor.simulator.ending import Ending, ExitError, exit_code
from supervisor.simulator.options import Options
from supervisor.simulator.plan import Emission, Fate, FateKind, Plan
from supervisor.simulator.processes import ArgumentArea, forbid_core_dumps, kill_descendants
from supervisor.simulator.scenario import Kind
from supervisor.simulator.script import make_plan
from supervisor.simulator.service import Root, Service
from supervisor.simulator.signals import Signals
from supervisor.simulator.wires import Wires

_LAUNCH_POLL_S = 5.0  # _wait_for_scheduler_ready, engine.py:2006@0.5.23
_EXCEPTION_BEFORE_EOF_S = 0.2
_SPIN_S = 0.02


def run(options: Options) -> int:
    """Play the whole life of a server; returns its exit code unless it dies of a signal of its own."""
    plan = make_plan(options)
    forbid_core_dumps()
    try:
        Launcher(plan).start().serve()
    except ExitError as end:
        return end.code


class Launcher:
    """The root process of the tree while it starts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clock = Clock(plan.options.speed)
        self._log = Log(is_quiet(plan.options))
        self._signals = Signals()
        self._ending = Ending(plan, self._log)
        self._wires = tuple(Wires(one.rank) for one in plan.ranks)
        self._family = Family((), None, None)
        self._begin = self._clock.now()

    def start(self) -> Service:
        """Until every scheduler has reported ready; SIGTERM keeps its default action all that time."""
        self._signals.take(signal.SIGINT)
        if any(scenario.kind is Kind.IGNORE_TERM for scenario in self._plan.options.scenarios):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        early = [line for line in self._plan.main if line.at_s < self._plan.fork_s]
        self._say(early)
        fate = self._plan.main_fate
        if fate and fate.at_s < self._plan.fork_s:
            self._meet(fate)
        self._signals.take(signal.SIGQUIT)
        self._family = start_family(self._plan, self._wires, self._log, ArgumentArea())
        self._say(self._plan.main[len(early) :])
        if fate:
            self._meet(fate)
        self._await_ready()
        root = Root(self._clock, self._log, self._signals, self._ending)
        return Service(self._plan, self._family, self._wires, root)

    def _say(self, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            self._pass_until(self._begin + self._clock.real(emission.at_s))
            self._log.emit(emission)

    def _pass_until(self, moment: float) -> None:
        while (left := moment - self._clock.now()) > 0:
            self._react(self._signals.wait(left)[0])

    def _react(self, numbers: Sequence[signal.Signals]) -> None:
        if signal.SIGQUIT in numbers:
            self._log.record(texts.SIGQUIT_AT_LAUNCH, loud=True)
            self._ending.kill_tree_and_self()
        if signal.SIGINT in numbers:
            self._log.raw(texts.keyboard_interrupt())
            self._ending.announce_kill(include_parent=False)
            kill_descendants(os.getpid())
            self._ending.die_of(signal.SIGINT)

    def _meet(self, fate: Fate) -> NoReturn:
        self._pass_until(self._begin + self._clock.real(fate.at_s))
        for emission in fate.emissions:
            self._log.emit(emission)
        if fate.kind is FateKind.CRASH:
            raise ExitError(fate.exit_code)  # nobody has been started yet
        while True:
            if fate.busy:
                _spin()
            self._react(self._signals.wait(_SPIN_S if fate.busy else None)[0])

    def _await_ready(self) -> None:
        """One message from each scheduler; how a death is noticed meanwhile depends on the dialect."""
        missing = {one.launcher_end.fileno(): one for one in self._wires}
        for descriptor in missing:
            self._signals.poll.register(descriptor, select.POLLIN)
        while missing:
            for descriptor in self._wait_and_watch():
                if missing[descriptor].launcher_end.recv(64) != b"R":
                    self._lose(missing[descriptor])
                self._signals.poll.unregister(descriptor)
                del missing[descriptor]

    def _wait_and_watch(self) -> list[int]:
        """From 0.5.10 the schedulers are looked at every 5 s, but not those of a controller."""
        polls = self._plan.dialect.death_watch is DeathWatch.POLL_EVERY_5_S and not self._family.controller
        period_s = max(SHORTEST_POLL_S, self._clock.real(_LAUNCH_POLL_S)) if polls else None
        numbers, ready = self._signals.wait(period_s)
        self._react(numbers)
        if polls and not ready:
            self._raise_if_dead()
        return ready

    def _lose(self, wires: Wires) -> None:
        """A scheduler's end of the pipe is closed. Up to 0.5.9 only rank 0's is read while all load; a later launcher
        finds the dead by number; nobody notices a dead scheduler of a controller."""
        self._signals.poll.unregister(wires.launcher_end.fileno())
        one_by_one = self._plan.dialect.death_watch is DeathWatch.PIPE_OF_RANK_0
        if one_by_one and wires.rank.number == 0 and not self._family.controller:
            self._report_dead_rank_0()
        while True:
            for descriptor in self._wait_and_watch():
                self._signals.poll.unregister(descriptor)

    def _report_dead_rank_0(self) -> NoReturn:
        # The SIGQUIT of an exception comes before the end of file.
        self._pass_until(self._clock.now() + _EXCEPTION_BEFORE_EOF_S)
        code = exit_code(self._family.schedulers[0])
        self._log.record(texts.dead_scheduler(0), loud=True)
        self._log.record(f"Exit code: {code}", loud=True)
        self._log.raw(texts.eof_traceback())
        self._ending.leave(1)

    def _raise_if_dead(self) -> None:
        for number, child in enumerate(self._family.schedulers):
            code = exit_code(child)
            if code is not None:
                self._log.raw(texts.died_during_initialization(number, code))
                self._ending.leave(1)


def _spin() -> None:
    end = time.monotonic() + _SPIN_S
    while time.monotonic() < end:
        os.getpid()
