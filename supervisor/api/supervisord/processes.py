"""supervisord's methods on processes and groups: information, start, stop, signal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from supervisor.api import servers, waiting
from supervisor.api.operation import Call, RefusedError
from supervisor.api.supervisord.codec import FaultCode, FaultError, capped, xml_text
from supervisor.api.words import SIGNALABLE, UP, State, describe, state_of
from supervisor.config.groups import members
from supervisor.events import SignalRequested, StartRequested, StopRequested
from supervisor.snapshot import ServerSnapshot

START_SETTLE_S = 1.0  # supervisord's default startsecs: an end within it is told by the start itself


def find(call: Call, name: str) -> ServerSnapshot:
    """The server called NAME or NAME:NAME. Faults with BAD_NAME."""
    group, colon, process = name.partition(":")
    snapshot = call.control.snapshot(group)
    if snapshot is None or (colon and process != group):
        raise FaultError(FaultCode.BAD_NAME, name[:80])
    return snapshot


def find_group(call: Call, name: str) -> list[str]:
    """The members of a group in their order; a server is a group of its own name. Faults with BAD_NAME."""
    if call.control.snapshot(name) is not None:
        return [name]
    config = call.control.config()
    if name not in config.groups:
        raise FaultError(FaultCode.BAD_NAME, name[:80])
    return list(members(config, name))


def _is_group(name: str) -> bool:
    """NAME:* and NAME: mean the whole group."""
    return name.endswith((":*", ":"))


async def get_process_info(call: Call, name: str) -> dict[str, Any]:
    return _info(call, find(call, name))


async def get_all_process_info(call: Call) -> list[dict[str, Any]]:
    return [_info(call, snapshot) for snapshot in call.control.snapshots()]


def _info(call: Call, snapshot: ServerSnapshot) -> dict[str, Any]:
    clock, state = call.control.clock(), state_of(snapshot)
    ended = snapshot.exit
    return {
        "name": snapshot.name,
        "group": snapshot.name,
        "start": 0 if snapshot.started is None else capped(clock.wall_of(snapshot.started)),
        "stop": 0 if ended is None else capped(clock.wall_of(ended.at)),
        "now": capped(clock.wall),
        "state": state.value,
        "statename": state.name,
        "spawnerr": xml_text(snapshot.lifecycle.reason) if state in (State.BACKOFF, State.FATAL) else "",
        "exitstatus": 0 if ended is None or ended.code is None else ended.code,
        "logfile": snapshot.log_path,
        "stdout_logfile": snapshot.log_path,
        "stderr_logfile": "",
        "pid": snapshot.pid or 0,
        "description": xml_text(describe(snapshot, clock)),
    }


async def start_process(call: Call, name: str, wait: bool = True) -> Any:
    if _is_group(name):
        return await start_group(call, name.partition(":")[0], wait)
    snapshot = find(call, name)
    if state_of(snapshot) in UP:
        raise FaultError(FaultCode.ALREADY_STARTED, name)
    await call.control.request(snapshot.name, StartRequested(by=call.by))
    if wait:
        await _settle(call, snapshot)
    return True


async def _settle(call: Call, before: ServerSnapshot) -> None:
    """supervisord waits until the process has lived for startsecs; a load of minutes is not waited for."""
    with anyio.move_on_after(START_SETTLE_S):
        change = call.control.change()
        while True:
            now = find(call, before.name)
            if state_of(now) is State.RUNNING:
                return
            if state_of(now) not in UP or now.lifecycle.value == "backoff":
                ran = now.exit is not None and now.exit != before.exit
                raise FaultError(FaultCode.ABNORMAL_TERMINATION if ran else FaultCode.SPAWN_ERROR, before.name)
            change = await call.control.changed(change)


async def stop_process(call: Call, name: str, wait: bool = True) -> Any:
    if _is_group(name):
        return await stop_group(call, name.partition(":")[0], wait)
    snapshot = find(call, name)
    if state_of(snapshot) not in UP:
        raise FaultError(FaultCode.NOT_RUNNING, name)
    await call.control.request(snapshot.name, StopRequested(by=call.by))
    if wait:  # as long as the server's own deadlines allow; the client may go away at any time
        await _gone(call, snapshot.name)
    return True


async def _gone(call: Call, name: str) -> None:
    if await waiting.outcome(call.control, name, waiting.stopped) == "gave-up":
        raise FaultError(FaultCode.FAILED, name)


async def signal_process(call: Call, name: str, signal: str) -> Any:
    if _is_group(name):
        return await signal_group(call, name.partition(":")[0], signal)
    snapshot = find(call, name)
    try:
        number = servers.signal_number(signal)
    except RefusedError:
        raise FaultError(FaultCode.BAD_SIGNAL, str(signal)[:80]) from None
    if state_of(snapshot) not in SIGNALABLE or snapshot.pid is None:
        raise FaultError(FaultCode.NOT_RUNNING, name)
    await call.control.request(snapshot.name, SignalRequested(by=call.by, signal=number))
    return True


async def start_group(call: Call, name: str, wait: bool = True) -> list[dict[str, Any]]:
    return await each(
        find_group(call, name), lambda one: start_process(call, one, wait), (FaultCode.ALREADY_STARTED,), name
    )


async def stop_group(call: Call, name: str, wait: bool = True) -> list[dict[str, Any]]:
    """Asked one after another, the last member first: the daemon has each wait for those that were asked before it."""
    wanted = [one for one in reversed(find_group(call, name)) if state_of(find(call, one)) in UP]
    for one in wanted:
        await call.control.request(one, StopRequested(by=call.by))

    async def gone(one: str) -> None:
        if wait:
            await _gone(call, one)

    return await each(wanted, gone, group=name)


async def signal_group(call: Call, name: str, signal: str) -> list[dict[str, Any]]:
    return await each(
        find_group(call, name), lambda one: signal_process(call, one, signal), (FaultCode.NOT_RUNNING,), name
    )


async def start_all(call: Call, wait: bool = True) -> list[dict[str, Any]]:
    return await each(names_of(call), lambda one: start_process(call, one, wait), (FaultCode.ALREADY_STARTED,))


async def stop_all(call: Call, wait: bool = True) -> list[dict[str, Any]]:
    return await each(names_of(call), lambda one: stop_process(call, one, wait), (FaultCode.NOT_RUNNING,))


async def signal_all(call: Call, signal: str) -> list[dict[str, Any]]:
    return await each(names_of(call), lambda one: signal_process(call, one, signal), (FaultCode.NOT_RUNNING,))


def names_of(call: Call) -> list[str]:
    return [snapshot.name for snapshot in call.control.snapshots()]


async def each(
    names: list[str], one: Callable[[str], Awaitable[Any]], skip: tuple[FaultCode, ...] = (), group: str = ""
) -> list[dict[str, Any]]:
    """All at once, told in order of names; whom the request does not concern is left out, as supervisord does."""
    rows: dict[str, dict[str, Any]] = {}

    async def tell(name: str) -> None:
        try:
            await one(name)
            rows[name] = _row(name, FaultCode.SUCCESS, "OK", group)
        except FaultError as fault:
            if fault.code not in skip:
                rows[name] = _row(name, fault.code, str(fault), group)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(tell, name, name=f"{name}: asked by supervisorctl")
    return [rows[name] for name in names if name in rows]


def _row(name: str, status: FaultCode, description: str, group: str) -> dict[str, Any]:
    return {"name": name, "group": group or name, "status": int(status), "description": xml_text(description)}
