"""A daemon that cannot start says so in one line, whatever groups of exceptions it comes in; a bug stays a bug."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.config import Config, DaemonConfig
from supervisor.shell.startup import StartupProblem, places_held, run_until_ended

# They run an event loop of their own.


def test_what_it_returns_is_returned() -> None:
    async def work() -> int:
        return 7

    assert run_until_ended(work) == 7


def test_a_problem_comes_out_of_its_groups() -> None:
    async def refuse() -> None:
        raise StartupProblem("cannot start: the port is taken")

    async def work() -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep_forever)
            inner.start_soon(refuse)

    with pytest.raises(StartupProblem, match="the port is taken"):
        run_until_ended(work)


def test_a_bug_is_not_taken_for_a_problem() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    with pytest.raises(BaseExceptionGroup) as raised:
        run_until_ended(work)
    assert raised.group_contains(ZeroDivisionError)


def test_a_state_directory_is_one_daemons(tmp_path: Path) -> None:
    config = Config(daemon=DaemonConfig(state_dir=str(tmp_path / "state"), log_dir=str(tmp_path / "log")))
    with places_held(config):
        assert (tmp_path / "log").is_dir()
        with pytest.raises(StartupProblem, match="nothing was started"), places_held(config):
            pass
    with places_held(config):
        pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = Config(daemon=DaemonConfig(state_dir=str(tmp_path / "file" / "state"), log_dir=str(tmp_path / "log")))
    told = r"cannot make .*/file/state: Not a directory; nothing was started"
    with pytest.raises(StartupProblem, match=told), places_held(config):
        pass
