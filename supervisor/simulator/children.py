"""Starts the launcher's children in the order and with the relations of the real one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.simulator.clock import Clock, Log
from supervisor.simulator.plan import Plan
from supervisor.simulator.processes import (
    ArgumentArea,
    die_with_parent,
    fork,
    leave_orphan,
    look_like_resource_tracker,
    look_like_spawned,
    set_title,
)
from supervisor.simulator.scenario import DEFAULT_ORPHAN_LIFE_S, Kind
from supervisor.simulator.scheduler import Scheduler
from supervisor.simulator.wires import Wires, keep_nothing, keep_scheduler_side


class Child(NamedTuple):
    """A direct child of the launcher, by the name that SubprocessWatchdog gives it."""

    name: str
    pid: int


class Family(NamedTuple):
    """Who was started. With data parallelism the schedulers are the controller's children, not ours."""

    schedulers: tuple[Child, ...]
    controller: Child | None
    detokenizer: Child | None

    @property
    def watched(self) -> tuple[Child, ...]:
        others = tuple(child for child in (self.controller, self.detokenizer) if child)
        return self.schedulers + others


def start_family(plan: Plan, wires: Sequence[Wires], log: Log, area: ArgumentArea) -> Family:
    """Fork everybody; must run before the launcher has threads."""
    life_read, life_write = os.pipe()  # inherited by all but the tracker, which ends when the last of them is gone
    fork(lambda: _track_resources(area, wires, life_read, life_write))
    os.close(life_read)
    for scenario in plan.options.scenarios:
        if scenario.kind is Kind.ORPHANS:
            for _ in range(scenario.copies):
                leave_orphan(area, scenario.life_s)
    schedulers: tuple[Child, ...] = ()
    controller = None
    if plan.options.dp > 1:
        controller = Child("data_parallel_controller", fork(lambda: _control(plan, wires, log, area)))
    else:
        schedulers = _start_schedulers(plan, wires, area)
    detokenizer = None
    if plan.options.node_rank == 0:
        detokenizer = Child("detokenizer", fork(lambda: _detokenize(plan, wires, area)))
    for one in wires:
        one.keep_launcher_side()
    return Family(schedulers, controller, detokenizer)


def _start_schedulers(plan: Plan, wires: Sequence[Wires], area: ArgumentArea) -> tuple[Child, ...]:
    launcher = os.getpid()
    children = []
    for number, mine in enumerate(plan.ranks):

        def body(number: int = number) -> int:
            look_like_spawned(area, 7 + 2 * number)
            keep_scheduler_side(wires[number], wires)
            peers = [one for one in wires if one.rank.group == wires[number].rank.group]
            return Scheduler(plan, plan.ranks[number], wires[number], peers, launcher).run(area)

        children.append(Child(f"scheduler_{mine.rank.number}", fork(body)))
    return tuple(children)


def _control(plan: Plan, wires: Sequence[Wires], log: Log, area: ArgumentArea) -> int:
    """The data-parallel controller: without a handler for SIGQUIT, so a failing scheduler ends it with -3."""
    look_like_spawned(area, 31)
    Clock(plan.options.speed).sleep(1.0)
    for replica in range(plan.options.dp):
        log.record(f"Launch DP{replica} starting at GPU #{replica * plan.options.tp}.")
    _start_schedulers(plan, wires, area)
    keep_nothing(wires)
    _import(plan)
    set_title(area, "sglang::data_parallel_controller")
    die_with_parent()
    while True:
        signal.pause()


def _detokenize(plan: Plan, wires: Sequence[Wires], area: ArgumentArea) -> int:
    look_like_spawned(area, 29)
    keep_nothing(wires)
    launcher = os.getppid()
    _import(plan)
    set_title(area, "sglang::detokenizer")
    die_with_parent()
    if os.getppid() == launcher:
        while True:
            signal.pause()
    time.sleep(DEFAULT_ORPHAN_LIFE_S)  # the real one stays for ever: its parent died before prctl
    return 0


def _import(plan: Plan) -> None:
    """The orphan window: whoever loses its parent in these seconds outlives it."""
    Clock(plan.options.speed).sleep(plan.options.seconds("import"))


def _track_resources(area: ArgumentArea, wires: Sequence[Wires], life_read: int, life_write: int) -> int:
    look_like_resource_tracker(area)
    keep_nothing(wires)
    os.close(life_write)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # multiprocessing/resource_tracker.py does so, too
    os.read(life_read, 1)
    return 0
