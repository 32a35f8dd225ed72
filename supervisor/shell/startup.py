"""Runs a daemon that may not be able to start: what it needs beforehand, and the one line that says what it lacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import anyio

from supervisor.config import Config
from supervisor.edge.statelock import StateLockProblem, state_lock

Ended = TypeVar("Ended")


class StartupProblem(Exception):  # noqa: N818 - a fact for the operator, not a bug
    """The daemon cannot start; the text is the one line that says why."""


def run_until_ended(work: Callable[[], Awaitable[Ended]]) -> Ended:
    """Run it, on an event loop of its own. StartupProblem, in no group, when it could not start."""
    try:
        return anyio.run(work)
    except BaseExceptionGroup as group:
        problems, bugs = group.split(StartupProblem)
        if bugs is not None or problems is None:
            raise
        raise _first(problems) from None


def _first(problem: BaseException) -> BaseException:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


@contextmanager
def places_held(config: Config) -> Iterator[None]:
    """The daemon's directories are there, and the one of its state is nobody else's."""
    for path in (config.daemon.state_dir, config.daemon.log_dir):
        try:
            Path(path).mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError as problem:
            raise StartupProblem(f"cannot make {path}: {problem.strerror}; nothing was started") from None
    with ExitStack() as stack:
        try:
            stack.enter_context(state_lock(Path(config.daemon.state_dir)))
        except StateLockProblem as problem:
            raise StartupProblem(f"{problem}; nothing was started") from None
        yield
