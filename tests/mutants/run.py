"""Which small mistakes in the deciding core the tests notice: `python -m tests.mutants.run --each 20`.

Each mistake lives in a forked child alone: some random histories of whole hosts first, then the core's own tests.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.fleet.moves import moves
from tests.fleet.play import play
from tests.mutants.mutate import Mutant, mutants

MODULES = (
    "timers",
    "claims",
    "claiming",
    "restart",
    "health",
    "ending",
    "maintenance",
    "watching",
    "requests",
    "course",
    "draining",
    "mates",
    "server",
    "memory",
)
_TESTS = ("timers", "restart", "health", "maintenance", "force", "draining", "mates", "memory", "server")
_HISTORIES, _MOVES = 40, 40
_LIMIT_S = 300
_PYTEST = (
    "-x",
    "-q",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore",
    *(f"tests/core/test_{name}.py" for name in _TESTS),
)


def main() -> int:
    """The table, and every mistake that nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--each", type=int, default=0, help="that many of each module, drawn by the seed; 0 = all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    given = parser.parse_args()
    if _noticed(lambda: None):
        print("the tests fail without any mistake", file=sys.stderr)
        return 1
    end = time.monotonic() + given.minutes * 60
    print("| module | mistakes | tried | noticed |\n|---|---|---|---|")
    unnoticed = [mutant for name in given.modules for mutant in _module(name, given.each, given.seed, end)]
    print("\n".join(f"- {mutant}" for mutant in unnoticed))
    return 0


def _module(name: str, each: int, seed: int, end: float) -> list[Mutant]:
    module = importlib.import_module(f"supervisor.core.{name}")
    every = list(mutants(Path(inspect.getfile(module)).read_text(), name))
    chosen = random.Random(f"{seed} {name}").sample(every, min(each or len(every), len(every)))
    tried, unnoticed = 0, []
    for mutant in chosen:
        if time.monotonic() > end:
            break
        tried += 1
        if not _noticed(lambda mutant=mutant: _make(module, mutant)):  # type: ignore[misc]
            unnoticed.append(mutant)
    print(f"| {name} | {len(every)} | {tried} | {tried - len(unnoticed)} |", flush=True)
    return unnoticed


def _make(module: ModuleType, mutant: Mutant) -> None:
    """The mistake takes the place of the function's own code, for whoever has imported it."""
    *holder, name = mutant.function.split(".")
    place = getattr(module, holder[0]).__dict__[name] if holder else getattr(module, name)
    function = place.fget if isinstance(place, property) else place
    function.__code__ = mutant.code


def _noticed(mistake: Callable[[], None]) -> bool:
    """In a child of its own, which imports nothing anew."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LIMIT_S)  # an endless loop is noticed, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        mistake()
        wrong = any(play(seed, moves(seed, _MOVES), replay=False) for seed in range(_HISTORIES))
        os._exit(1 if wrong else int(pytest.main(list(_PYTEST))))
    return os.waitpid(pid, 0)[1] != 0


if __name__ == "__main__":
    sys.exit(main())
