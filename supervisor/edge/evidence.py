"""Writes one attempt's evidence bundle before it is killed: bounded in time and size, never in the way of the kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from supervisor.actions import KeepEvidence
from supervisor.events import EvidenceKept
from supervisor.lines import clean
from supervisor.snapshot import ServerSnapshot

LOG_TAIL_BYTES = 512 * 1024
STACK_BYTES = 256 * 1024
STACKS_AT_ONCE = 4
PROCESSES_MAX = 128
_PROC_FILES = ("stat", "status", "wchan", "stack", "io", "cmdline")


class Facts(msgspec.Struct, frozen=True):
    """What the bundle is about."""

    snapshot: ServerSnapshot
    reason: str
    log_path: str
    pids: tuple[int, ...]


async def keep(action: KeepEvidence, bundle: str, facts: Facts) -> EvidenceKept:
    """Write what can be written within the action's limit; what is missing is named, and nothing raises."""
    began = time.monotonic()
    collector = _Collector(Path(bundle), facts)
    with anyio.move_on_after(action.limit_s) as scope:
        await collector.collect()
    if scope.cancelled_caught:
        collector.missing.append(f"everything after {collector.step}: {action.limit_s:.0f} s were over")
    path = str(collector.path) if collector.written else ""
    return EvidenceKept(action.attempt, path, tuple(collector.missing), time.monotonic() - began)


class _Collector:
    """Cheap and certain parts first: the disk may fill, a stack may hang."""

    def __init__(self, path: Path, facts: Facts) -> None:
        self.path = _unused(path)
        self.missing: list[str] = []
        self.written = 0
        self.step = "nothing"
        self._facts = facts

    async def collect(self) -> None:
        await self._file("directory", self._make_directory)
        await self._file("facts.json", self._write_facts)
        await self._file("log-tail.txt", self._write_log_tail)
        await self._file("processes.txt", self._write_processes)
        await self._stacks()

    async def _file(self, name: str, write: Callable[[], None]) -> None:
        try:
            await anyio.to_thread.run_sync(write, abandon_on_cancel=True)
        except OSError as problem:
            self.missing.append(f"{name}: {problem.strerror}")
        else:
            self.step = name
            self.written += name != "directory"

    def _make_directory(self) -> None:
        self.path.mkdir(parents=True, mode=0o750)

    def _write_facts(self) -> None:
        facts = {"reason": self._facts.reason, "wall": time.time(), "snapshot": self._facts.snapshot}
        (self.path / "facts.json").write_bytes(msgspec.json.format(msgspec.json.encode(facts)))

    def _write_log_tail(self) -> None:
        with open(self._facts.log_path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_TAIL_BYTES))
            data = log.read(LOG_TAIL_BYTES)
        text = data.decode(errors="replace").replace("\r", "\n")
        (self.path / "log-tail.txt").write_text("\n".join(clean(line) for line in text.split("\n")))

    def _write_processes(self) -> None:
        with (self.path / "processes.txt").open("w") as out:
            for pid in self._facts.pids[:PROCESSES_MAX]:
                out.write(f"=== {pid}\n")
                for name in _PROC_FILES:
                    with contextlib.suppress(OSError):  # gone, or not readable for us
                        text = Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ")
                        out.write(f"--- {name}\n{text.decode(errors='replace').strip()}\n")

    async def _stacks(self) -> None:
        program = _py_spy()
        if program is None:
            self.missing.append("stacks: py-spy is not installed")
            return
        limiter = anyio.CapacityLimiter(STACKS_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for pid in self._facts.pids[:PROCESSES_MAX]:
                tasks.start_soon(self._stack, program, pid, limiter, name=f"stack of {pid}")

    async def _stack(self, program: str, pid: int, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            done = await _run([program, "dump", "--pid", str(pid)])
        if done is None or done.returncode != 0:
            why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] if done else ["no answer"]
            self.missing.append(f"stack of {pid}: {''.join(why)[:200]}")
            return
        with contextlib.suppress(OSError):
            await anyio.to_thread.run_sync((self.path / f"stack-{pid}.txt").write_bytes, done.stdout[:STACK_BYTES])
            self.written += 1


async def _run(command: list[str]) -> subprocess.CompletedProcess[bytes] | None:
    """A helper program in a thread of its own limit: asyncio's children would need its child watcher."""

    def work() -> subprocess.CompletedProcess[bytes] | None:
        try:
            return subprocess.run(command, capture_output=True, timeout=5, check=False, stdin=subprocess.DEVNULL)
        except (subprocess.TimeoutExpired, OSError):
            return None

    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _unused(path: Path) -> Path:
    """Never write over an earlier bundle."""
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
