"""start, stop, restart, signal, wait and shutdown: supervisorctl's lines, exact exit codes."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.cli import changing
from supervisor.cli.connection import Client
from supervisor.events import RestartRequested, SignalRequested, StartRequested, StopRequested
from supervisor.snapshot import ServerSnapshot, StopView
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl


async def test_start_returns_at_once(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("start", "draft") == (0, "draft: started\n", "")
    assert control.servers["draft"].lifecycle.value == "starting"


async def test_start_of_a_started_server(sglctl: Sglctl) -> None:
    assert await sglctl("start", "kimi") == (0, "kimi: ERROR (already started)\n", "")


async def test_start_with_force(sglctl: Sglctl, control: FakeControl) -> None:
    await sglctl("start", "--force", "draft")
    ((_, event),) = control.requests
    assert isinstance(event, StartRequested)
    assert event.force


async def test_start_and_wait_returns_when_healthy(sglctl: Sglctl, control: FakeControl) -> None:
    starting = asyncio.create_task(sglctl("start", "--wait", "draft"))
    await control.waiters(1)
    assert not starting.done()
    await control.put(snapshot("draft", "running"))
    assert await starting == (0, "draft: started\n", "")


async def test_start_and_wait_says_who_gave_up(sglctl: Sglctl, control: FakeControl) -> None:
    starting = asyncio.create_task(sglctl("start", "--wait", "draft"))
    await control.waiters(1)
    await control.put(snapshot("draft", "fatal"))
    assert await starting == (1, "draft: ERROR (gave up: FATAL unknown error)\n", "")


async def test_start_and_wait_may_take_too_long(sglctl: Sglctl) -> None:
    outcome = await sglctl("start", "--wait", "--timeout", "10ms", "draft")
    assert outcome.code == 5
    assert outcome.out.startswith("draft: ERROR (not healthy in time: STARTING ")


async def test_stop_returns_when_it_is_gone(sglctl: Sglctl, control: FakeControl) -> None:
    control.slow_stop = True
    stopping = asyncio.create_task(sglctl("stop", "kimi"))
    await control.waiters(1)
    assert not stopping.done()
    await control.put(snapshot("kimi", "stopped"))
    assert await stopping == (0, "kimi: stopped\n", "")


async def test_stop_without_waiting(sglctl: Sglctl, control: FakeControl) -> None:
    control.slow_stop = True
    assert await sglctl("stop", "--no-wait", "kimi") == (0, "kimi: stopping\n", "")


async def test_stop_of_a_stopped_server(sglctl: Sglctl) -> None:
    assert await sglctl("stop", "draft") == (0, "draft: ERROR (not running)\n", "")


def _ended(exit_s: float, kill_s: float) -> ServerSnapshot:
    return replace(snapshot("kimi", "stopped"), stop=StopView("kill", exit_s=exit_s, kill_s=kill_s))


@pytest.mark.parametrize(
    ("exit_s", "kill_s", "code", "line"),
    [(42.0, 42.1, 0, "drained"), (60.1, 60.0, 5, "ERROR (stopped, but requests were cut off)")],
)
async def test_drain_tells_whether_requests_were_cut_off(
    sglctl: Sglctl, control: FakeControl, exit_s: float, kill_s: float, code: int, line: str
) -> None:
    control.slow_stop = True
    draining = asyncio.create_task(sglctl("drain", "--timeout", "1m", "kimi"))
    await control.waiters(1)
    ((_, event),) = control.requests
    assert isinstance(event, StopRequested)
    assert event.grace_s == 60.0
    await control.put(_ended(exit_s, kill_s))
    assert await draining == (code, f"kimi: {line}\n", "")


def _draft_requires_kimi(control: FakeControl) -> None:
    servers = control.configuration.servers
    draft = replace(servers["draft"], requires=("kimi",))
    control.configuration = replace(control.configuration, servers={**servers, "draft": draft})


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("stop", "draft: stopping, too: it requires kimi\nkimi: stopped\n"),
        ("drain", "draft: stopping, too: it requires kimi\nkimi: drained\n"),
        ("restart", "draft: restarting, too: it goes with kimi\nkimi: restarted\n"),
    ],
)
async def test_who_goes_along_is_told(sglctl: Sglctl, control: FakeControl, verb: str, line: str) -> None:
    _draft_requires_kimi(control)
    await control.put(snapshot("draft", "running"))
    assert await sglctl(verb, "kimi") == (0, line, "")
    assert "too" not in (await sglctl(verb, "kimi", "draft")).out


async def test_who_stays_down_is_told_at_a_start(sglctl: Sglctl, control: FakeControl) -> None:
    _draft_requires_kimi(control)
    await control.put(snapshot("kimi", "stopped"))
    out = "draft: still down: it requires kimi, which is started without it\nkimi: started\n"
    assert await sglctl("start", "kimi") == (0, out, "")
    await control.put(snapshot("kimi", "stopped"))
    assert await sglctl("start", "all") == (0, "kimi: started\ndraft: started\n", "")


async def test_drain_without_waiting_and_of_a_stopped_server(sglctl: Sglctl, control: FakeControl) -> None:
    control.slow_stop = True
    assert await sglctl("drain", "--no-wait", "kimi", "draft") == (
        0,
        "kimi: draining\ndraft: ERROR (not running)\n",
        "",
    )


async def test_restart(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("restart", "--reason", "new weights", "kimi") == (0, "kimi: restarted\n", "")
    ((_, event),) = control.requests
    assert isinstance(event, RestartRequested)
    assert event.reason == "new weights"


async def test_restart_and_wait(sglctl: Sglctl, control: FakeControl) -> None:
    restarting = asyncio.create_task(sglctl("restart", "--wait", "kimi"))
    await control.waiters(1)
    await control.put(snapshot("kimi", "running"))
    assert await restarting == (0, "kimi: restarted\n", "")


@pytest.mark.parametrize("name", ["HUP", "SIGHUP", "hup", "1"])
async def test_signal(sglctl: Sglctl, control: FakeControl, name: str) -> None:
    assert await sglctl("signal", name, "kimi") == (0, "kimi: signalled\n", "")
    ((_, event),) = control.requests
    assert isinstance(event, SignalRequested)
    assert event.signal == 1


async def test_signal_refusals(sglctl: Sglctl) -> None:
    outcome = await sglctl("signal", "NOPE", "kimi")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith('expected a signal such as "HUP" or "1", got \'NOPE\'\n')
    assert await sglctl("signal", "HUP", "draft") == (3, "draft: ERROR (not running)\n", "")


@pytest.mark.parametrize("verb", [["start"], ["stop"], ["restart"], ["signal", "HUP"]])
async def test_an_unknown_name_does_not_keep_the_others_from_being_served(
    sglctl: Sglctl, control: FakeControl, verb: list[str]
) -> None:
    outcome = await sglctl(*verb, "none", "kimi")
    assert outcome.code == 4
    assert outcome.out.splitlines()[0] == "none: ERROR (no such process)"
    assert [name for name, _ in control.requests] == ["kimi"]


async def test_all_is_everybody_once(sglctl: Sglctl, control: FakeControl) -> None:
    await sglctl("stop", "all", "kimi")
    assert [(name, type(event)) for name, event in control.requests] == [
        ("kimi", StopRequested),
        ("draft", StopRequested),
    ]


async def test_wait_for_a_healthy_server(sglctl: Sglctl) -> None:
    assert await sglctl("wait", "kimi") == (0, "kimi: healthy\n", "")


async def test_wait_returns_when_it_gave_up(sglctl: Sglctl, control: FakeControl) -> None:
    await control.put(snapshot("kimi", "quarantined"))
    outcome = await sglctl("wait", "kimi")
    assert (outcome.code, outcome.out) == (1, "kimi: ERROR (gave up: FATAL quarantined: unknown error)\n")


async def test_wait_has_a_time_limit_for_all_names_together(sglctl: Sglctl) -> None:
    outcome = await sglctl("wait", "--timeout", "20ms", "kimi", "draft")
    assert outcome.code == 5
    assert outcome.out == "kimi: healthy\ndraft: ERROR (not healthy in time: STOPPED Not started)\n"


class Recording(Client):
    """Notes what it asks."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    def get(self, target: str, timeout_s: float | None = None) -> Any:
        self.asked.append(target)
        return super().get(target, timeout_s)


@pytest.mark.parametrize("verb", [changing.start, changing.restart])
async def test_a_time_limit_is_for_all_names_together(
    socket_path: str, control: FakeControl, verb: Callable[..., int]
) -> None:
    client = Recording(socket_path)
    await control.put(snapshot("kimi", "starting"))
    options = Namespace(
        names=["kimi", "draft"], wait=True, timeout=0.05, force=False, until="healthy", reason="", rolling=False
    )
    assert await asyncio.to_thread(verb, client, options) == 5
    limits = [float(target.partition("timeout_s=")[2]) for target in client.asked if "timeout_s=" in target]
    assert limits[0] <= 0.05
    assert limits[-1] == 0.0


async def test_wait_for_the_end(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("wait", "--for", "stopped", "draft") == (0, "draft: stopped\n", "")
    await control.put(snapshot("draft", "fatal"))
    assert await sglctl("wait", "--for", "stopped", "draft") == (0, "draft: stopped (FATAL unknown error)\n", "")


@pytest.mark.parametrize("words", [("wait", "--for", "stopped"), ("stop",)])
async def test_what_is_quarantined_is_not_stopped(sglctl: Sglctl, control: FakeControl, words: tuple[str, ...]) -> None:
    control.slow_stop = True
    stopping = asyncio.create_task(sglctl(*words, "kimi"))
    await control.waiters(1)
    await control.put(snapshot("kimi", "quarantined"))
    assert await stopping == (1, "kimi: ERROR (gave up: FATAL quarantined: unknown error)\n", "")


async def test_wait_for_an_unknown_name(sglctl: Sglctl) -> None:
    assert (await sglctl("wait", "none")).code == 4


async def test_wait_as_json(sglctl: Sglctl) -> None:
    outcome = await sglctl("wait", "--json", "kimi")
    assert json.loads(outcome.out)["outcome"] == "reached"


async def test_clear(sglctl: Sglctl, control: FakeControl, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    await control.put(snapshot("kimi", "running", log_path=str(log)))
    assert await sglctl("clear", "kimi", "draft") == (0, "kimi: cleared\ndraft: cleared\n", "")
    assert log.read_text() == ""
    assert (await sglctl("clear", "none")).code == 4


async def test_shutdown(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("shutdown") == (0, "Shut down\n", "")
    assert len(control.shutdown_by) == 1


async def test_pause_and_resume(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("pause", "kimi") == (0, "kimi: paused\n", "")
    assert (await sglctl("pause", "kimi")).out == "kimi: already paused\n"
    assert (await sglctl("status", "kimi")).out.rstrip().endswith(", paused")
    why = (await sglctl("why", "kimi")).out
    assert "nothing is killed or started by itself until sglctl resume." in why
    assert "pause asked by uid " in why
    assert await sglctl("resume", "all") == (0, "kimi: resumed\ndraft: was not paused\n", "")
    assert "paused" not in (await sglctl("status", "kimi")).out
