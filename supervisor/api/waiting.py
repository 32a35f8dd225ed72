"""Waits for what a server becomes, for as long as the client is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import anyio
from starlette.requests import Request

from supervisor.api.control import Control
from supervisor.api.operation import RefusedError
from supervisor.core.lifecycle import GIVEN_UP
from supervisor.snapshot import ServerSnapshot

T = TypeVar("T")
Judge: TypeAlias = Callable[[ServerSnapshot], str]  # what the wait ends with, "" to go on


async def outcome(control: Control, name: str, judge: Judge) -> str:
    """What `judge` says of the server as soon as it says something; "removed" when the server goes away.

    It wakes with every change of any server, which is some a second at most; only cancellation ends it otherwise.
    """
    change = control.change()
    while True:
        snapshot = control.snapshot(name)
        if snapshot is None:
            return "removed"
        said = judge(snapshot)
        if said:
            return said
        change = await control.changed(change)


def healthy(snapshot: ServerSnapshot) -> str:
    """Reached, or given up: only an operator can change that."""
    if snapshot.healthy:
        return "reached"
    return "gave-up" if snapshot.lifecycle.value in GIVEN_UP else ""


def stopped(snapshot: ServerSnapshot) -> str:
    """Nothing is left of it; or it is quarantined, and only an operator can change that."""
    match snapshot.lifecycle.value:
        case "stopped" | "fatal":
            return "reached"
        case "quarantined":
            return "gave-up"
        case _:
            return ""


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client goes away.

    A handler of a plain answer is not told of that: without this an endless wait would stay for ever.
    """
    result: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_disconnect, request, tasks.cancel_scope, name="watch the waiting client")
        try:
            result.append(await work)
        except Exception as problem:  # noqa: BLE001 - passed on below, outside the group that would wrap it
            failure = problem
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not result:
        raise RefusedError(400, "the client went away")
    return result[0]


async def _cancel_on_disconnect(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
