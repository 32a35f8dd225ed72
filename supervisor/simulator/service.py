"""Plays the launcher once every scheduler is ready: port, warm-up, watchdog, drain and crash."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from supervisor.simulator import texts
from supervisor.simulator.children import Family
from supervisor.simulator.clock import SHORTEST_POLL_S, Clock, Log
from supervisor.simulator.ending import Ending, exit_code
from supervisor.simulator.engine import Engine, Status
from supervisor.simulator.http import HttpServer
from supervisor.simulator.plan import Plan
from supervisor.simulator.processes import kill_descendants
from supervisor.simulator.routes import Routes, dummy_routes
from supervisor.simulator.scenario import Kind
from supervisor.simulator.signals import Signals
from supervisor.simulator.warmup import warm_up, warm_up_somebody_else
from supervisor.simulator.wires import Wires

_WATCHDOG_POLL_S = 1.0  # SubprocessWatchdog, watchdog.py:166@0.5.23
_DRAIN_POLL_S = 5.0  # sigterm_watchdog, tokenizer_manager.py:3508@0.5.23
_DIAGNOSTICS_S = 5.0
_COREDUMP_WAIT_S = 60.0  # SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS
_FALSE_READY_S = 3.0  # recorded: that long after the false `fired up` the second server of a port ends


class Root(NamedTuple):
    """What the root process has from its start on."""

    clock: Clock
    log: Log
    signals: Signals
    ending: Ending


class Service:
    """The root process of the tree while it serves."""

    def __init__(self, plan: Plan, family: Family, wires: Sequence[Wires], root: Root) -> None:
        self._plan = plan
        self._family = family
        self._clock, self._log, self._signals, self._ending = root
        self._engine = Engine(plan, wires, self._clock, self._log)
        routes = dummy_routes() if plan.options.node_rank > 0 else Routes(self._engine).table()
        self._server = HttpServer(self._engine, routes)
        self._dead: set[str] = set()

    def serve(self) -> NoReturn:
        """From readiness to the end of the process, which is an ExitError or a signal."""
        threading.Thread(target=self._engine.listen, name="answers", daemon=True).start()
        self._bring_up()
        try:
            self._server.bind()
        except OSError as error:
            self._lose_port(error)
        if not any(scenario.kind is Kind.IGNORE_TERM for scenario in self._plan.options.scenarios):
            self._signals.take(signal.SIGTERM)
        self._server.start()
        self._announce()
        give_up = self._ending.kill_tree_and_self
        threading.Thread(target=warm_up, args=(self._engine, self._plan, give_up), name="warm-up", daemon=True).start()
        self._attend()

    def _bring_up(self) -> None:
        begin = self._clock.now()
        for emission in self._plan.bring_up:
            self._pass_until(begin + self._clock.real(emission.at_s))
            self._log.emit(emission._replace(text=emission.text.replace("{pid}", str(os.getpid()))))

    def _announce(self) -> None:
        options = self._plan.options
        text = texts.dummy_server if options.node_rank > 0 else texts.uvicorn_running
        self._log.record(text(options.host, options.port))

    def _lose_port(self, error: OSError) -> NoReturn:
        """Errno 98 after the whole load: the process stays, silent and holding its GPUs; if whoever has the port
        answers like an engine, a false `fired up` appears and the end comes 3 s later."""
        options = self._plan.options
        self._log.record(texts.bind_error(options.host, options.port, error.errno or 0), loud=True)
        self._log.record(texts.uvicorn("INFO", "Waiting for application shutdown."))
        fired = threading.Thread(target=warm_up_somebody_else, args=(self._engine,), daemon=True)
        fired.start()
        while True:
            self._react(self._signals.wait(SHORTEST_POLL_S if fired.is_alive() else None)[0])
            if self._engine.status is Status.UP:
                self._clock.sleep(_FALSE_READY_S)
                self._ending.kill_tree_and_self()

    def _attend(self) -> NoReturn:
        """Sleep until a signal or the next look of the watchdog."""
        while True:
            self._react(self._signals.wait(self._watch_period())[0])
            self._watch()

    def _watch_period(self) -> float | None:
        if not self._plan.dialect.watches_serving:
            return None
        return max(SHORTEST_POLL_S, self._clock.real(_WATCHDOG_POLL_S))

    def _watch(self) -> None:
        """SubprocessWatchdog: exit code 0 is ignored, and with a controller it sees the controller alone."""
        if not self._plan.dialect.watches_serving or self._engine.zombie:
            return
        for child in self._family.watched:
            code = None if child.name in self._dead else exit_code(child)
            if code is None:
                continue
            self._dead.add(child.name)
            if code != 0:
                self._log.record(texts.crashed_subprocess(child.name, child.pid, code), loud=True)
                self._crash()

    # --- signals

    def _pass_until(self, moment: float) -> None:
        while (left := moment - self._clock.now()) > 0:
            self._react(self._signals.wait(left)[0])

    def _react(self, numbers: Sequence[signal.Signals]) -> None:
        if signal.SIGQUIT in numbers and not self._engine.zombie:
            self._crash()
        if signal.SIGINT in numbers:
            self._finish_uvicorn()
            self._ending.leave(0)
        if signal.SIGTERM in numbers:
            self._terminate()

    def _terminate(self) -> None:
        """SGLang's own handlers exist only once a request has been served (auto_create_handle_loop)."""
        node = self._plan.options.node_rank
        if node > 0 and self._plan.dialect.watches_serving:
            self._log.record(texts.sigterm_on_node(node), loud=True)
        elif node > 0 or not self._engine.handlers_installed:
            self._finish_uvicorn()
            self._ending.die_of(signal.SIGTERM)
        else:
            self._drain()

    def _drain(self) -> NoReturn:
        """No time limit and new requests are still served; only /health turns 503."""
        self._log.record(texts.SIGTERM, loud=True)
        self._engine.draining = True
        while True:
            self._rest(_DRAIN_POLL_S)
            left = self._engine.running()
            self._log.record(self._plan.dialect.exit_line.format(count=len(left), rids=left))
            if not left:
                break
        if not self._plan.dialect.clean_exit:
            self._ending.kill_tree_and_self()
        self._ending.announce_kill(include_parent=False)
        kill_descendants(os.getpid())
        self._finish_uvicorn()
        self._ending.leave(0)

    def _rest(self, seconds: float) -> None:
        """Between two looks of the drain the watchdog goes on; another SIGTERM changes nothing."""
        end = self._clock.now() + self._clock.real(seconds)
        while (left := end - self._clock.now()) > 0:
            period_s = self._watch_period()
            numbers = self._signals.wait(left if period_s is None else min(left, period_s))[0]
            self._react([number for number in numbers if number is not signal.SIGTERM])
            self._watch()

    def _crash(self) -> NoReturn:
        """A child failed while serving. Up to 0.5.9 the tree is killed at once; later every endpoint hangs first for
        5 s, and for 60 s more while a scheduler is alive."""
        self._log.record(texts.SIGQUIT_WHILE_SERVING, loud=True)
        if self._plan.dialect.watches_serving:
            self._engine.freeze()
            self._diagnose()
        self._ending.kill_tree_and_self()

    def _diagnose(self) -> None:
        self._log.record(texts.SLEEP_BEFORE_DIAGNOSTICS)
        self._clock.sleep(_DIAGNOSTICS_S)
        alive = [child.pid for child in self._family.schedulers if exit_code(child) is None]
        if not alive:
            self._log.record(texts.NO_LIVE_SCHEDULERS)
            return
        for text in texts.failed_dumps(alive):
            self._log.record(text, loud=True)
        self._clock.sleep(_COREDUMP_WAIT_S)

    def _finish_uvicorn(self) -> None:
        self._server.close()
        lines = ["Shutting down", "Waiting for application shutdown.", "Application shutdown complete."]
        for text in [*lines, f"Finished server process [{os.getpid()}]"]:
            self._log.record(texts.uvicorn("INFO", text))
