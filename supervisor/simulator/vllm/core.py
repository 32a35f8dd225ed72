"""Plays the engine core and its workers: they start in step, and later every token needs them all."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import NamedTuple, NoReturn

from supervisor.simulator.children import Child
from supervisor.simulator.clock import Clock
from supervisor.simulator.ending import exit_code
from supervisor.simulator.processes import ArgumentArea, die_with_parent, fork, kill_descendants, set_title
from supervisor.simulator.scenario import Kind, Scenario
from supervisor.simulator.vllm import script
from supervisor.simulator.vllm.failures import Where
from supervisor.simulator.vllm.options import Options
from supervisor.simulator.vllm.script import Who
from supervisor.simulator.vllm.words import BROADCAST_WAITS, Voice

_STDERR = 2
_WAIT_S = 60.0  # after so long the engine core complains that a worker takes nothing
_EXECUTE_TIMEOUT_S = 300.0  # VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
_BURST = 40  # tokens between two meetings
_TOKENS_PER_S = 90.0


def say(data: bytes) -> None:
    os.write(_STDERR, data)


class Worker:
    """One rank."""

    def __init__(self, options: Options, rank: int, link: socket.socket) -> None:
        self._options = options
        self._rank = rank
        self._link = link
        self._clock = Clock(options.speed)
        self._voice = Voice(script.worker_name(options, rank))

    def run(self, area: ArgumentArea) -> int:
        set_title(area, "VLLM::Worker")  # its rank comes once it has met the others
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the engine core tells it when to go
        for phase in self._options.phases:
            if phase not in ("launch", "warmup"):
                self._play(phase)
                set_title(area, f"VLLM::{self._voice.name}")
                self._link.send(b"D")
                self._link.recv(1)
        return self._serve()

    def _play(self, phase: str) -> None:
        seconds, struck = self._options.seconds(phase), script.strike(self._options, phase, self._rank)
        end = script.share(struck, seconds) if struck else 1.0
        begin = self._clock.now()
        mine = [one for one in script.lines(self._options, phase) if self._writes(one.who) and one.at <= end]
        for line in mine:
            self._until(begin, line.at * seconds)
            say(line.write(self._voice, self._rank))
        self._until(begin, end * seconds)
        if struck:
            self._meet(struck, starting=True)

    def _writes(self, who: Who) -> bool:
        return who is Who.ALL or (who is Who.FIRST and self._rank == 0)

    def _until(self, begin: float, seconds: float) -> None:
        time.sleep(max(0.0, begin + self._clock.real(seconds) - self._clock.now()))

    def _serve(self) -> int:
        struck = script.strike(self._options, "serving", self._rank)
        doom = self._clock.now() + self._clock.real(struck.after_s or 1.0) if struck else None
        watch = select.poll()
        watch.register(self._link, select.POLLIN)
        while True:
            left = None if doom is None else max(0.0, doom - self._clock.now()) * 1000
            if not watch.poll(left) and struck:
                self._meet(struck, starting=False)
            if not self._link.recv(16):
                return 0
            self._link.send(b"Y")

    def _meet(self, struck: Scenario, *, starting: bool) -> None:
        if struck.kind is Kind.STALL:
            while True:
                signal.pause()
        cause = script.cause_of(struck)
        if cause.where is Where.NATIVE:
            os.kill(os.getpid(), cause.signal_number)
        say(script.worker_error(self._voice, cause, starting))
        os._exit(1)


class Member(NamedTuple):
    """A worker as the engine core has it."""

    child: Child
    link: socket.socket


class Core:
    """`link` leads to the API server: `G id count` is answered with `T id count` … `A id`."""

    def __init__(self, options: Options, link: socket.socket) -> None:
        self._options = options
        self._link = link
        self._clock = Clock(options.speed)
        self._voice = Voice("EngineCore")
        self._members: list[Member] = []
        self._starting = True

    def run(self, area: ArgumentArea) -> int:
        set_title(area, "VLLM::EngineCore")
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._fork(area)
        own = script.crash_at(self._options, Where.CORE)
        for phase in self._options.phases:
            self._say(phase, early=True)
            if phase not in ("launch", "warmup"):
                self._gather(b"")
            self._say(phase, early=False)
            if own and own.phase == phase:
                self._fail(script.cause_of(own).error)
            if phase not in ("launch", "warmup"):
                self._tell(b"G")
        self._starting = False
        self._link.send(b"R")
        return self._serve()

    def _fork(self, area: ArgumentArea) -> None:
        for rank in range(self._options.tensor_parallel_size):
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            worker = Worker(self._options, rank, theirs)

            def body(worker: Worker = worker, mine: socket.socket = mine) -> int:
                mine.close()
                for member in self._members:
                    member.link.close()
                self._link.close()
                return worker.run(area)

            self._members.append(Member(Child(f"VllmWorker-{rank}", fork(body)), mine))
            theirs.close()

    def _say(self, phase: str, *, early: bool) -> None:
        for line in script.lines(self._options, phase):
            if line.who is Who.CORE and (line.at == 0.0) is early:
                say(line.write(self._voice))

    def _tell(self, message: bytes) -> None:
        for member in self._members:
            member.link.send(message)

    def _gather(self, question: bytes) -> None:
        """One word of every worker; a dead one is the end, a silent one is complained of each minute."""
        if question:
            self._tell(question)
        watch = select.poll()
        missing = {member.link.fileno(): member for member in self._members}
        for descriptor in missing:
            watch.register(descriptor, select.POLLIN)
        waited_s = 0.0
        while missing:
            ready = watch.poll(self._clock.real(_WAIT_S) * 1000)
            for descriptor, _ in ready:
                if not missing[descriptor].link.recv(16):
                    self._lose(missing[descriptor])
                watch.unregister(descriptor)
                del missing[descriptor]
            if not ready:
                waited_s += _WAIT_S
                say(self._voice.record("shm_broadcast.py:871", BROADCAST_WAITS))
                if not self._starting and waited_s >= _EXECUTE_TIMEOUT_S:
                    self._fail("TimeoutError: RPC call to execute_model timed out.")

    def _lose(self, member: Member) -> NoReturn:
        code = None
        until = self._clock.now() + 1.0
        while code is None and self._clock.now() < until:
            code = exit_code(member.child)
        if code != 1:
            text = f"Worker proc {member.child.name} died unexpectedly (exit code: {code}), shutting down executor."
            say(self._voice.record("multiproc_executor.py:315", text, "ERROR"))
        self._fail(script.WORKER_FAILED if self._starting else "RuntimeError: Executor failed.")

    def _fail(self, error: str) -> NoReturn:
        say(script.core_error(self._voice, error, self._starting))
        kill_descendants(os.getpid())
        os._exit(1)

    def _serve(self) -> int:
        watch = select.poll()
        watch.register(self._link, select.POLLIN)
        by_link = {member.link.fileno(): member for member in self._members}
        for descriptor in by_link:
            watch.register(descriptor, 0)  # only POLLHUP: a worker that died while nothing was asked
        while True:
            for descriptor, _ in watch.poll():
                if descriptor in by_link:
                    self._lose(by_link[descriptor])
                words = self._link.recv(4096).decode().split()
                if not words:
                    return 0
                self._generate(words[1], int(words[2]))

    def _generate(self, identity: str, left: int) -> None:
        while left > 0:
            burst = min(_BURST, left)
            self._gather(b"X")
            self._clock.sleep(burst / _TOKENS_PER_S)
            self._link.send(f"T {identity} {burst}".encode())
            left -= burst
        self._link.send(f"A {identity}".encode())
