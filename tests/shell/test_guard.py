"""A bug in one task is told and goes no further."""

import anyio
import pytest

from supervisor.shell.guard import guarded


async def test_a_bug_is_reported_and_its_siblings_go_on() -> None:
    told: list[tuple[str, str]] = []
    done = anyio.Event()

    async def buggy(name: str) -> None:
        raise KeyError(name)

    async def healthy() -> None:
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(guarded, lambda what, bug: told.append((what, repr(bug))), "probe", buggy, "x")
        tasks.start_soon(guarded, lambda what, bug: told.append((what, repr(bug))), "check", healthy)
        with anyio.fail_after(5):
            await done.wait()
    assert told == [("probe", "KeyError('x')")]


async def test_cancellation_is_no_bug() -> None:
    told: list[str] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await guarded(lambda what, _: told.append(what), "wait", anyio.sleep_forever)
    assert scope.cancelled_caught
    assert told == []


async def test_the_end_of_the_process_is_no_bug() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await guarded(lambda *_: None, "leave", leave)
