"""Plays the launcher: start-up until every scheduler is ready, then serving, stopping and crashing by dialect."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Sequence

from supervisor.simulator import texts
from supervisor.simulator.children import Child, Family, start_family
from supervisor.simulator.clock import Clock, Log
from supervisor.simulator.dialect import DeathWatch
from supervisor.simulator.engine import Engine, Status
from supervisor.simulator.http import HttpServer
from supervisor.simulator.options import Options
from supervisor.simulator.processes import ArgumentArea, forbid_core_dumps, kill_descendants
from supervisor.simulator.scenario import Kind
from supervisor.simulator.script import Emission, Fate, FateKind, Plan, make_plan
from supervisor.simulator.warmup import warm_up, warm_up_somebody_else
from supervisor.simulator.wires import Wires

_LAUNCH_POLL_S = 5.0  # _wait_for_scheduler_ready, engine.py:2006@0.5.23
_WATCHDOG_POLL_S = 1.0  # SubprocessWatchdog, watchdog.py:166@0.5.23
_DRAIN_POLL_S = 5.0  # sigterm_watchdog, tokenizer_manager.py:3508@0.5.23
_DIAGNOSTICS_S = 5.0
_COREDUMP_WAIT_S = 60.0  # SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS
_SHORTEST_POLL_S = 0.05


class Exit(Exception):
    """The launcher ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


def run(options: Options) -> int:
    """Play the whole life of a server; returns its exit code unless it dies of a signal of its own."""
    plan = make_plan(options)
    forbid_core_dumps()
    launcher = Launcher(plan)
    try:
        launcher.start()
        launcher.serve()
    except Exit as end:
        return end.code
    return 0


class Signals:
    """Signals as readable bytes, so that one poll waits for them, for descriptors and for the clock."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(self._read, False)
        signal.set_wakeup_fd(write)
        self.poll = select.poll()
        self.poll.register(self._read, select.POLLIN)

    def take(self, number: signal.Signals) -> None:
        signal.signal(number, lambda *_: None)

    def wait(self, timeout_s: float | None) -> tuple[list[signal.Signals], list[int]]:
        """Signals that came and descriptors that are ready, after at most timeout_s (None: until something comes)."""
        ready = [fd for fd, _ in self.poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))]
        if self._read not in ready:
            return [], ready
        numbers = [signal.Signals(number) for number in os.read(self._read, 64)]
        return numbers, [fd for fd in ready if fd != self._read]


class Launcher:
    """The root process of the tree."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clock = Clock(plan.options.speed)
        self._log = Log(plan.options.log_level.lower() in ("warning", "error", "critical"))
        self._signals = Signals()
        self._wires = tuple(Wires(one.rank) for one in plan.ranks)
        self._family = Family((), None, None)
        self._dead: set[str] = set()
        self._engine: Engine | None = None
        self._server: HttpServer | None = None
        self._begin = self._clock.now()

    # --- start-up

    def start(self) -> None:
        """Until every scheduler has reported ready; SIGTERM keeps its default action all that time."""
        self._signals.take(signal.SIGINT)
        if self._has(Kind.IGNORE_TERM):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        early = [line for line in self._plan.main if line.at_s < self._plan.spawn_s - 0.2]
        self._say(early)
        if self._plan.main_fate and self._plan.main_fate.at_s < self._plan.spawn_s - 0.2:
            self._meet(self._plan.main_fate)
        self._signals.take(signal.SIGQUIT)
        area = ArgumentArea()
        self._family = start_family(self._plan, self._wires, self._log, area)
        self._say(self._plan.main[len(early) :])
        if self._plan.main_fate:
            self._meet(self._plan.main_fate)
        self._await_ready()

    def _say(self, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            self._pass_until(self._begin + self._clock.real(emission.at_s))
            self._log.emit(emission)

    def _pass_until(self, moment: float) -> None:
        while (left := moment - self._clock.now()) > 0:
            self._react_at_launch(self._signals.wait(left)[0])

    def _react_at_launch(self, numbers: Sequence[signal.Signals]) -> None:
        if signal.SIGQUIT in numbers:
            self._log.record(texts.SIGQUIT_AT_LAUNCH, loud=True)
            self._kill_tree_and_self()
        if signal.SIGINT in numbers:
            self._log.raw(texts.keyboard_interrupt())
            self._end_by(signal.SIGINT)

    def _meet(self, fate: Fate) -> None:
        self._pass_until(self._begin + self._clock.real(fate.at_s))
        for emission in fate.emissions:
            self._log.emit(emission)
        if fate.kind is FateKind.CRASH:
            self._end(fate.exit_code)
        while True:
            if fate.busy:
                _spin()
            self._react_at_launch(self._signals.wait(0.02 if fate.busy else None)[0])

    def _await_ready(self) -> None:
        """One message from each scheduler; how a death is noticed meanwhile depends on the dialect."""
        missing = {one.launcher_end.fileno(): one for one in self._wires}
        for descriptor in missing:
            self._signals.poll.register(descriptor, select.POLLIN)
        polls = self._plan.dialect.death_watch is DeathWatch.POLL_EVERY_5_S and not self._family.controller
        period = max(_SHORTEST_POLL_S, self._clock.real(_LAUNCH_POLL_S)) if polls else None
        next_poll = self._clock.now() + period if period else None
        while missing:
            timeout = None if next_poll is None else next_poll - self._clock.now()
            numbers, ready = self._signals.wait(timeout)
            self._react_at_launch(numbers)
            for descriptor in ready:
                self._hear(missing.pop(descriptor))
            if period and next_poll and self._clock.now() >= next_poll:
                next_poll += period
                self._raise_if_dead()

    def _hear(self, wires: Wires) -> None:
        self._signals.poll.unregister(wires.launcher_end.fileno())
        if wires.launcher_end.recv(64) == b"R":
            return
        if wires.rank.index == 0 and self._plan.dialect.death_watch is DeathWatch.PIPE_OF_RANK_0:
            if not self._family.controller:
                self._report_dead_rank_0()
        # Any other rank: polled and found dead by number, or (up to 0.5.9 and under a controller) never noticed.
        while True:
            period = max(_SHORTEST_POLL_S, self._clock.real(_LAUNCH_POLL_S))
            watching = self._plan.dialect.death_watch is DeathWatch.POLL_EVERY_5_S and not self._family.controller
            self._react_at_launch(self._signals.wait(period if watching else None)[0])
            if watching:
                self._raise_if_dead()

    def _report_dead_rank_0(self) -> None:
        self._clock.sleep(0.2)
        self._react_at_launch(self._signals.wait(0)[0])  # SIGQUIT of an exception comes before the end of file
        code = os.waitstatus_to_exitcode(os.waitpid(self._family.schedulers[0].pid, 0)[1])
        self._log.record(texts.dead_scheduler(0), loud=True)
        self._log.record(f"Exit code: {code}", loud=True)
        self._log.raw(texts.eof_traceback())
        self._end(1)

    def _raise_if_dead(self) -> None:
        for number, child in enumerate(self._family.schedulers):
            code = _exit_code(child)
            if code is not None:
                self._log.raw(texts.died_during_initialization(number, code))
                self._end(1)

    # --- serving

    def serve(self) -> None:
        """From readiness to the end of the process, which is an Exit or a signal."""
        engine = self._engine = Engine(self._plan, self._wires, self._clock, self._log)
        threading.Thread(target=engine.listen, name="answers", daemon=True).start()
        begin = self._clock.now()
        for emission in self._plan.bring_up:
            self._pass_until(begin + self._clock.real(emission.at_s))
            self._log.emit(emission._replace(text=emission.text.replace("{pid}", str(os.getpid()))))
        dummy = self._plan.options.node_rank > 0
        server = self._server = HttpServer(engine, dummy)
        try:
            server.bind()
        except OSError as error:
            self._lose_port(error)
        if not self._has(Kind.IGNORE_TERM):
            self._signals.take(signal.SIGTERM)
        server.start()
        self._announce(dummy)
        threading.Thread(target=warm_up, args=(engine, self._plan), name="warm-up", daemon=True).start()
        self._attend(engine)

    def _announce(self, dummy: bool) -> None:
        options = self._plan.options
        text = (texts.dummy_server if dummy else texts.uvicorn_running)(options.host, options.port)
        self._log.record(text)

    def _lose_port(self, error: OSError) -> None:
        """Errno 98 after the whole load: the process stays, silent and holding its GPUs; if whoever has the port
        answers like an engine, a false `fired up` appears and the end comes 3 s later."""
        options = self._plan.options
        self._log.record(texts.bind_error(options.host, options.port).replace("98", str(error.errno)), loud=True)
        self._log.record(texts.uvicorn("INFO", "Waiting for application shutdown."))
        assert self._engine is not None  # made before the bind
        fired = threading.Thread(target=warm_up_somebody_else, args=(self._engine,), daemon=True)
        fired.start()
        while True:
            self._react_while_serving(self._engine, self._signals.wait(_SHORTEST_POLL_S if fired.is_alive() else None)[0])
            if self._engine.status is Status.UP:
                self._clock.sleep(3.0)
                self._kill_tree_and_self()

    def _attend(self, engine: Engine) -> None:
        period = max(_SHORTEST_POLL_S, self._clock.real(_WATCHDOG_POLL_S))
        zombie_at = self._zombie_at()
        while True:
            waits = [period] if self._plan.dialect.watches_serving else []
            if zombie_at is not None:
                waits.append(max(0.0, zombie_at - self._clock.now()) + 0.001 if not engine.zombie else period)
            self._react_while_serving(engine, self._signals.wait(min(waits, default=None))[0])
            if zombie_at is not None and not engine.zombie and self._clock.now() >= zombie_at:
                engine.become_zombie(dead=any(s.dead for s in self._plan.serving))
            if self._plan.dialect.watches_serving and not engine.zombie:
                self._watch(engine)

    def _zombie_at(self) -> float | None:
        for scenario in self._plan.serving:
            if scenario.kind is Kind.ZOMBIE_200:
                after_s = self._plan.options.seconds("warmup") + (scenario.after_s or 0.0)
                return self._clock.now() + self._clock.real(after_s)
        return None

    def _watch(self, engine: Engine) -> None:
        """SubprocessWatchdog: exit code 0 is ignored, and with a controller it sees the controller alone."""
        for child in self._family.watched:
            code = None if child.name in self._dead else _exit_code(child)
            if code is None:
                continue
            self._dead.add(child.name)
            if code != 0:
                self._log.record(texts.crashed_subprocess(child.name, child.pid, code), loud=True)
                self._crash(engine)

    def _react_while_serving(self, engine: Engine, numbers: Sequence[signal.Signals]) -> None:
        if signal.SIGQUIT in numbers and not engine.zombie:
            self._crash(engine)
        if signal.SIGINT in numbers:
            self._finish_uvicorn()
            self._end(0)
        if signal.SIGTERM in numbers:
            self._terminate(engine)

    def _terminate(self, engine: Engine) -> None:
        node = self._plan.options.node_rank
        if node > 0 and self._plan.dialect.watches_serving:
            self._log.record(texts.sigterm_on_node(node), loud=True)
        elif node > 0 or not engine.handlers_installed:
            self._finish_uvicorn()
            self._end_by(signal.SIGTERM, children=False)
        elif not engine.draining:
            self._drain(engine)

    def _drain(self, engine: Engine) -> None:
        """No time limit and new requests are still served; only /health turns 503."""
        self._log.record(texts.SIGTERM, loud=True)
        engine.draining = True
        while True:
            self._rest(engine, _DRAIN_POLL_S)
            left = engine.running()
            text = self._plan.dialect.exit_line.format(count=len(left), rids=left)
            self._log.record(text)
            if not left:
                break
        if not self._plan.dialect.clean_exit:
            self._kill_tree_and_self()
        self._announce_kill(include_parent=False)
        kill_descendants(os.getpid())
        self._finish_uvicorn()
        self._end(0)

    def _rest(self, engine: Engine, seconds: float) -> None:
        """Let scaled seconds pass while signals still count."""
        end = self._clock.now() + self._clock.real(seconds)
        while (left := end - self._clock.now()) > 0:
            numbers = self._signals.wait(left)[0]
            self._react_while_serving(engine, [number for number in numbers if number is not signal.SIGTERM])

    def _crash(self, engine: Engine) -> None:
        """A child failed while serving. Up to 0.5.9 the tree is killed at once; later every endpoint hangs first for
        5 s, and for 60 s more while a scheduler is alive."""
        self._log.record(texts.SIGQUIT_WHILE_SERVING, loud=True)
        if self._plan.dialect.watches_serving:
            engine.freeze()
            self._log.record(texts.SLEEP_BEFORE_DIAGNOSTICS)
            self._clock.sleep(_DIAGNOSTICS_S)
            alive = [child.pid for child in self._family.schedulers if _exit_code(child) is None]
            if not alive:
                self._log.record(texts.NO_LIVE_SCHEDULERS)
            else:
                for text in texts.failed_dumps(alive):
                    self._log.record(text, loud=True)
                self._clock.sleep(_COREDUMP_WAIT_S)
        self._kill_tree_and_self()

    def _finish_uvicorn(self) -> None:
        if self._server:
            self._server.close()
        lines = ["Shutting down", "Waiting for application shutdown.", "Application shutdown complete."]
        for text in [*lines, f"Finished server process [{os.getpid()}]"]:
            self._log.record(texts.uvicorn("INFO", text))

    # --- ends

    def _has(self, kind: Kind) -> bool:
        return any(scenario.kind is kind for scenario in self._plan.options.scenarios)

    def _announce_kill(self, include_parent: bool) -> None:
        if self._plan.dialect.announces_kill:
            self._log.record(texts.kill_process_tree(os.getpid(), include_parent))

    def _end(self, code: int) -> None:
        """launch_server's `finally: kill_process_tree(include_parent=False)`."""
        if self._family.watched:
            self._announce_kill(include_parent=False)
        kill_descendants(os.getpid())
        raise Exit(code)

    def _end_by(self, number: signal.Signals, children: bool = True) -> None:
        if children:
            kill_descendants(os.getpid())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1.0)  # the signal is delivered before this returns

    def _kill_tree_and_self(self) -> None:
        self._announce_kill(include_parent=True)
        kill_descendants(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


def _exit_code(child: Child) -> int | None:
    """None while it lives; -9 once somebody else has collected it."""
    try:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if pid else None


def _spin() -> None:
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        pass
