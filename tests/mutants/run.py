"""Which small mistakes in the deciding core the tests notice: `python -m tests.mutants.run --each 20`.

pytest collects the core's tests once; then each mistake lives in a forked child alone, which runs the tests that run the
mistaken line, the likeliest first, some random histories of whole hosts among them, until one of them fails.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import msgspec
import pytest
from _pytest.runner import runtestprotocol

from tests.fleet.moves import moves
from tests.fleet.play import play
from tests.mutants.mutate import Mutant, mutants
from tests.mutants.reach import Lines, Reach, reach

_MODULES = """
attempt budgets claiming claims clues course desk diagnose draining endcause ending facets health lifecycle
maintenance mates memory patience probing progress rankorder ranks remedy requests restart rolling routing server
serving stopclock timers verdict vitals watching
lint.case lint.command lint.files lint.host lint.judge lint.memory lint.parallel lint.speculation lint.versions
fleet.ends fleet.forecast fleet.member fleet.needs fleet.starts fleet.view
gpus.attribution gpus.book gpus.device gpus.leases gpus.quarantine gpus.reclaim
log.figures log.grammar log.live log.patterns log.rules log.segments log.signatures log.skim log.stamps log.traceback
replay.comparison replay.page replay.rehearsal replay.relive replay.review
"""
MODULES = tuple(_MODULES.split())
TESTS = ("tests/core", "tests/test_replay.py")
_HISTORIES, _MOVES = 60, 40
_BESIDES_S = 10.0
"""A mistake that runs for so much longer than its tests do is noticed, too."""
_MEMORY_BYTES = 4 << 30


T = TypeVar("T")


class Test(msgspec.Struct, frozen=True):
    """Something that may fail: a test, or a history."""

    name: str
    fails: Callable[[], bool]
    reach: Reach

    @property
    def cost(self) -> tuple[bool, float]:
        """A history is long, and about nothing in particular."""
        return self.name.startswith("history"), self.reach.seconds


class Given(msgspec.Struct, frozen=True):
    """What was asked for."""

    modules: list[str]
    tests: list[str]
    each: int
    seed: int
    skip: int
    patience_s: float
    only: str
    known: Path | None
    until: float


def main() -> int:
    """The table, and every mistake that nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files or folders of tests")
    parser.add_argument("--each", type=int, default=0, help="that many of each module, drawn by the seed; 0 = all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="leave out what `--each SKIP` draws by the same seed")
    parser.add_argument("--patience", type=float, default=5.0, help="seconds of tests for one mistake")
    parser.add_argument("--only", default="", help="mistakes whose line, as it is printed, has this text in it")
    parser.add_argument(
        "--reach", type=Path, help="what tests run which lines: read from there, written if it is not there"
    )
    parser.add_argument("--minutes", type=float, default=600.0)
    told = parser.parse_args()
    until = time.monotonic() + told.minutes * 60
    asked = (list(told.modules), list(told.tests), told.each, told.seed, told.skip)
    given = Given(*asked, told.patience, told.only, told.reach, until)
    options = ("-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-s", "-W", "ignore")
    return int(pytest.main([*options, *given.tests], plugins=[Plugin(given)]))


class Plugin:
    """Takes the place of pytest's own loop over what it has collected."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        fails = {item.nodeid: _of(item) for item in session.items}
        fails |= {f"history {seed}": _history(seed) for seed in range(_HISTORIES)}
        reached = _recorded(fails, self._given.known)
        tests = [Test(name, fails[name], one) for name, one in reached.items() if name in fails]
        gc.collect()
        gc.freeze()  # nothing is copied in the children only because it was counted
        print(f"{len(tests)} tests of {sum(test.reach.seconds for test in tests):.0f} s", file=sys.stderr, flush=True)
        _table(self._given, tests)
        return True


def _of(item: pytest.Item) -> Callable[[], bool]:
    return lambda: any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _history(seed: int) -> Callable[[], bool]:
    return lambda: play(seed, moves(seed, _MOVES)) is not None


def _recorded(fails: dict[str, Callable[[], bool]], known: Path | None) -> dict[str, Reach]:
    """Each test once, in a child: nothing that a test has brought into a cache hides a mistake later on."""
    if known is not None and known.exists():
        said = known.read_bytes()
    else:
        child = _child(lambda: _record(fails), limit_s=3600)
        if not child.ended_well:
            raise SystemExit("cannot see which test runs what: the tests without any mistake have ended the run")
        said = child.said
        if known is not None:
            known.write_bytes(said)
    told = msgspec.msgpack.decode(said, type=dict[str, tuple[float, Lines]])
    return {name: Reach(seconds, lines) for name, (seconds, lines) in told.items()}


def _record(fails: dict[str, Callable[[], bool]]) -> bytes:
    """Without those that fail as it is, a test that looks for the processor's time perhaps."""
    found: dict[str, tuple[float, Lines]] = {}
    for name, fail in fails.items():
        wrong: list[bool] = []
        one = reach(lambda fail=fail, wrong=wrong: wrong.append(fail()))  # type: ignore[misc]
        if wrong == [False]:
            found[name] = (one.seconds, one.lines)
        else:
            print(f"fails without any mistake: {name}", file=sys.stderr)
    return msgspec.msgpack.encode(found)


def _table(given: Given, tests: list[Test]) -> None:
    print("| module | mistakes | tried | noticed |\n|---|---|---|---|", flush=True)
    sums = [0, 0, 0]
    for name in given.modules:
        sums = [one + other for one, other in zip(sums, _module(name, given, tests), strict=True)]
    print(f"| | {sums[0]} | {sums[1]} | {sums[2]} |")


def _module(name: str, given: Given, tests: list[Test]) -> tuple[int, int, int]:
    module = importlib.import_module(f"supervisor.core.{name}")
    every = list(mutants(Path(inspect.getfile(module)).read_text(), name))
    chosen = drawn(every, given.each, given.skip, f"{given.seed} {name}")
    tried, unnoticed, lucky = 0, [], dict[str, int]()
    for mutant in (one for one in chosen if given.only in str(one)):
        if time.monotonic() > given.until:
            break
        tried += 1
        asked = _asked(mutant, tests, lucky, given.patience_s)
        noticed = _noticed(module, mutant, asked)
        if noticed is None:
            unnoticed.append(mutant)
            print(f"  - {mutant}{'' if asked else ' (no test runs it)'}", file=sys.stderr, flush=True)
        else:
            lucky[noticed] = lucky.get(noticed, 0) + 1
    print(f"| {name} | {len(every)} | {tried} | {tried - len(unnoticed)} |", flush=True)
    for mutant in sorted(unnoticed, key=lambda one: one.line):
        print(f"  - {mutant}", flush=True)
    return len(every), tried, tried - len(unnoticed)


def drawn(every: Sequence[T], each: int, skip: int, seed: str) -> list[T]:
    """That many of them, and none of those that an earlier run with the same seed has drawn."""
    before = set(random.Random(seed).sample(range(len(every)), min(skip, len(every))))
    others = [number for number in range(len(every)) if number not in before]
    return [every[number] for number in random.Random(seed).sample(others, min(each or len(others), len(others)))]


def _asked(mutant: Mutant, tests: list[Test], lucky: dict[str, int], patience_s: float) -> list[Test]:
    """Those that run it: first who has noticed others of this module, then its own, the quickest, and histories."""
    own = f"test_{mutant.module.rsplit('.', 1)[-1]}.py"
    meeting = [test for test in tests if test.reach.meets(mutant.module, mutant.lines)]
    meeting.sort(key=lambda test: (-lucky.get(test.name, 0), own not in test.name, *test.cost))
    spent = 0.0
    asked = []
    for test in meeting:
        if spent + test.reach.seconds <= patience_s:
            spent += test.reach.seconds
            asked.append(test)
    return asked


def _noticed(module: ModuleType, mutant: Mutant, asked: list[Test]) -> str | None:
    """By whom."""
    if not asked:
        return None

    def tried() -> bytes:
        make(module, mutant)
        return next((test.name for test in asked if test.fails()), "").encode()

    child = _child(tried, limit_s=_BESIDES_S + 2 * sum(test.reach.seconds for test in asked))
    return child.said.decode() or None if child.ended_well else asked[0].name


def make(module: ModuleType, mutant: Mutant) -> None:
    """The mistake takes the place of the function's own code, for whoever has imported it."""
    *holder, name = mutant.function.split(".")
    place: Any = vars(getattr(module, holder[0]))[name] if holder else getattr(module, name)
    while not isinstance(place, FunctionType):
        inner = (getattr(place, attribute, None) for attribute in ("fget", "__func__", "func", "__wrapped__"))
        place = next(one for one in inner if one is not None)
    place.__code__ = mutant.code
    for called, one in vars(module).items():  # what tests had computed when they were collected
        if hasattr(one, "cache_clear"):
            one.cache_clear()
        elif called == "_KEPT":
            one.clear()


class Child(msgspec.Struct, frozen=True):
    """What a forked child has come to."""

    said: bytes
    ended_well: bool


def _child(work: Callable[[], bytes], *, limit_s: float) -> Child:
    """In a process of its own, which imports nothing anew and writes nowhere but into the pipe."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(out)
            _quiet(limit_s)
            said = work()
            with os.fdopen(into, "wb") as pipe:
                pipe.write(said)
            status = 0
        except Exception:  # noqa: BLE001 - nobody is above to hear of it
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read()
    return Child(said, os.waitpid(pid, 0)[1] == 0)


def _quiet(limit_s: float) -> None:
    """Ended by the kernel when it uses more of the processor, of memory, or, should it hang, far more time."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.alarm(int(limit_s) * 10)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
