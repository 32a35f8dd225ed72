"""Collects an attempt's evidence within the time that it is given: what hurts most to lose first, what is missing said.

The kill that follows waits for us: whatever hangs (a disk, py-spy, a document) is left behind, and the rest is kept.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

import anyio
import msgspec

from supervisor.actions import KeepEvidence
from supervisor.edge.evidence import machine
from supervisor.edge.evidence.bundle import BundleWriter, being_written
from supervisor.edge.evidence.processes import describe
from supervisor.edge.evidence.stacks import Stack, find_py_spy, native_stack, stack
from supervisor.events import EvidenceKept
from supervisor.threads import Threads

DESCRIBED_MAX = 256
STACKED_OTHERS_MAX = 32
STACKS_AT_ONCE = 4
STACK_LIMIT_S = 3.0
NATIVE_LIMIT_S = 4.0  # in all: a luxury, and somebody waits for the restart
STACK_BYTES = 512 * 2**10
CLOSING_S = 1.0  # of the time given, for the manifest

_disk = Threads("the disk", 32)

Texts: TypeAlias = Mapping[str, str]  # file name → content


class Subject(msgspec.Struct, frozen=True):
    """A process of the attempt; `title` may be a whole command line."""

    pid: int
    role: str = ""
    rank: str = ""
    title: str = ""
    leader: bool = False

    @property
    def name(self) -> str:
        """For a file's name."""
        words = "-".join(f"{self.role} {self.rank}".split()) or ("leader" if self.leader else "process")
        return f"{words}-{self.pid}"


class Part(msgspec.Struct, frozen=True):
    """Files that somebody else can make; `make` is called in a thread and may fail with an OSError or ValueError."""

    name: str
    make: Callable[[], Texts]


class Facts(msgspec.Struct, frozen=True):
    """What the bundle is about. `secrets` are words that appear in none of its files."""

    server: str
    subjects: tuple[Subject, ...] = ()
    parts: tuple[Part, ...] = ()
    secrets: tuple[str, ...] = ()


async def keep(
    action: KeepEvidence, place: str, facts: Facts, py_spy: Callable[[], str | None] = find_py_spy
) -> EvidenceKept:
    """Write what can be written at `place` within the action's limit. Nothing raises, and the answer comes in time."""
    began = time.monotonic()
    writer = BundleWriter(place, facts.server, action.attempt, action.reason, facts.secrets)
    try:
        with anyio.move_on_after(action.limit_s):
            if await _opened(writer):
                collector = _Collector(writer, facts, py_spy)
                with anyio.move_on_after(max(0.1, action.limit_s - CLOSING_S)) as scope:
                    await collector.collect()
                if scope.cancelled_caught:
                    collector.give_up(action.limit_s)
                await _closed(writer)
    finally:
        being_written.discard(writer.path)
    path = "" if writer.empty else writer.path
    return EvidenceKept(action.attempt, path, tuple(writer.missing), time.monotonic() - began)


async def _opened(writer: BundleWriter) -> bool:
    try:
        await _disk.run(writer.open, thing=f"evidence of {writer.server}", unwanted=lambda _: writer.drop())
    except OSError as problem:
        writer.lacks("everything", f"cannot make the directory: {problem.strerror}")
    return bool(writer.path)


async def _closed(writer: BundleWriter) -> None:
    try:
        await _disk.run(writer.close, thing=f"evidence of {writer.server}")
    except OSError as problem:
        writer.lacks("manifest.json", str(problem.strerror))


class _Collector:
    """States first, as nobody has touched them yet; then stacks, and beside them all that lies ready."""

    def __init__(self, writer: BundleWriter, facts: Facts, py_spy: Callable[[], str | None]) -> None:
        self._writer = writer
        self._facts = facts
        self._py_spy = py_spy
        self._documents = (
            *facts.parts,
            Part("kernel.txt", lambda: {"kernel.txt": machine.kernel_lines()}),
            Part("machine.txt", lambda: {"machine.txt": machine.figures()}),
        )
        self._pending = dict.fromkeys(["processes.txt", "stacks", *(one.name for one in self._documents)])
        self._hung = 0

    def give_up(self, limit_s: float) -> None:
        """The time is over: name what was under way or not even begun."""
        for name in self._pending:
            self._writer.lacks(name, f"{limit_s:g} s were over")

    async def collect(self) -> None:
        await self._part(Part("processes.txt", self._describe))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stacks, name="stacks")
            tasks.start_soon(self._parts, name="documents")

    # --- documents -----------------------------------------------------------------------------------------------

    async def _parts(self) -> None:
        for part in self._documents:
            await self._part(part)

    async def _part(self, part: Part) -> None:
        try:
            await _disk.run(self._make, part, thing=f"{part.name} of {self._facts.server}")
        except (OSError, ValueError) as problem:
            self._writer.lacks(part.name, (isinstance(problem, OSError) and problem.strerror) or str(problem))
        self._pending.pop(part.name)

    def _make(self, part: Part) -> None:
        for name, text in part.make().items():
            self._writer.write(name, text)

    def _describe(self) -> Texts:
        texts = [
            describe(one.pid, " ".join(f"{one.pid} {one.role} {one.rank} {one.title[:200]}".split()))
            for one in self._facts.subjects[:DESCRIBED_MAX]
        ]
        return {"processes.txt": "".join(texts) or "no process of the attempt is left\n"}

    # --- stacks --------------------------------------------------------------------------------------------------

    async def _stacks(self) -> None:
        """Everybody's Python stacks, those with a role first; then, in the time that is left, the native ones."""
        program, subjects = self._py_spy(), _worth_a_stack(self._facts.subjects)
        if program is None or not subjects:
            self._writer.lacks("stacks", "no process is left" if program else "py-spy is not installed")
            self._pending.pop("stacks")
            return
        self._pending.update((f"stack of {one.name}", None) for one in subjects)
        self._pending.pop("stacks")
        await self._each(subjects, lambda one: self._stack(program, one))
        with anyio.move_on_after(0 if self._hung else NATIVE_LIMIT_S):
            await self._each([one for one in subjects if one.role], lambda one: self._native(program, one))

    async def _each(self, subjects: Iterable[Subject], work: Callable[[Subject], Awaitable[None]]) -> None:
        limiter = anyio.CapacityLimiter(STACKS_AT_ONCE)

        async def bounded(one: Subject) -> None:
            async with limiter:
                await work(one)

        async with anyio.create_task_group() as tasks:
            for one in subjects:
                tasks.start_soon(bounded, one, name=f"stack of {one.name}")

    async def _stack(self, program: str, one: Subject) -> None:
        if self._hung < STACKS_AT_ONCE:
            made = await stack(program, one.pid, STACK_LIMIT_S)
            self._hung += made.hung
        else:
            made = Stack(problem="not tried: py-spy hangs")
        await self._keep_stack(f"stack-{one.name}.txt", made)
        if made.problem and (one.role or one.leader):  # not every helper is a Python program
            self._writer.lacks(f"stack of {one.name}", made.problem)
        self._pending.pop(f"stack of {one.name}")

    async def _native(self, program: str, one: Subject) -> None:
        """A luxury: what of it is missing is not worth a word."""
        await self._keep_stack(f"native-{one.name}.txt", await native_stack(program, one.pid, STACK_LIMIT_S))

    async def _keep_stack(self, name: str, made: Stack) -> None:
        if made.text:
            await _disk.run(
                self._writer.write, name, made.text, STACK_BYTES, thing=f"evidence of {self._writer.server}"
            )


def _worth_a_stack(subjects: tuple[Subject, ...]) -> list[Subject]:
    roles = [one for one in subjects if one.role]
    leader = [one for one in subjects if one.leader and not one.role]
    others = [one for one in subjects if not one.role and not one.leader]
    return [*roles, *leader, *others[:STACKED_OTHERS_MAX]]
