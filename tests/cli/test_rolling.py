"""restart --rolling, update --rolling, rolling, routers: a line a server, and what the daemon goes on with."""

from __future__ import annotations

import asyncio
import json

import pytest

from supervisor.api.control import RouterFacts
from supervisor.config import Config, GroupConfig, ServerConfig
from supervisor.core.rolling import MemberState, Roll, RollKind, RollState, begin, cancelled, ended, noted, waiting
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl


@pytest.fixture
def control() -> FakeControl:
    made = FakeControl(snapshot("a", "running"), snapshot("b", "running"))
    servers = {name: ServerConfig(name) for name in ("a", "b")}
    made.configuration = Config(servers=servers, groups={"pair": GroupConfig("pair", ("a", "b"))})
    return made


async def becomes(control: FakeControl, roll: Roll) -> Roll:
    """The daemon has got so far."""
    await control.waiters(1)
    control.roll = roll
    await control.put(snapshot("a", "running"))
    await control.waiters(0)
    return roll


async def test_a_rolling_restart_is_followed_to_its_end(sglctl: Sglctl, control: FakeControl) -> None:
    asked = asyncio.create_task(sglctl("restart", "--rolling", "g:pair", "--grace", "30s", "--reason", "driver"))
    await control.waiters(1)
    assert control.roll is not None
    assert (control.roll.kind, control.roll.grace_s, control.roll.reason) == (RollKind.RESTART, 30.0, "driver")
    roll = await becomes(control, noted(control.roll, "a", MemberState.UNDER_WAY))
    roll = await becomes(control, noted(roll, "a", MemberState.DONE))
    roll = await becomes(control, noted(roll, "b", MemberState.SKIPPED, "it is not wanted up"))
    await becomes(control, ended(roll, RollState.DONE, 1.0))
    assert await asked == (
        0,
        "a: leaves its routers, ends, starts again\na: serves again\nb: skipped (it is not wanted up)\n",
        "",
    )


async def test_a_failure_is_told_with_what_was_left_alone(sglctl: Sglctl, control: FakeControl) -> None:
    asked = asyncio.create_task(sglctl("restart", "--rolling", "a", "b"))
    await control.waiters(1)
    assert control.roll is not None
    roll = noted(control.roll, "a", MemberState.FAILED, "its start failed: exited with status 1")
    await becomes(control, ended(roll, RollState.FAILED, 1.0, "a: its start failed: exited with status 1"))
    assert await asked == (
        1,
        "a: ERROR (its start failed: exited with status 1)\nb: left alone\n",
        "error: rolling restart failed: 0 of 2 done, failed a, untouched b; a: its start failed: exited with status 1\n",
    )


async def test_an_update_says_what_was_done_where_that_is_no_restart(sglctl: Sglctl, control: FakeControl) -> None:
    roll = begin(RollKind.UPDATE, ["a", "b", "c", "d"], "anna", 60.0, 0.0)
    for name, reason in (("a", "changed"), ("b", "added"), ("c", "unchanged")):
        roll = noted(roll, name, MemberState.DONE, reason)
    control.roll = noted(roll, "d", MemberState.UNDER_WAY, "it is removed")
    asked = asyncio.create_task(sglctl("rolling", "--follow"))
    await control.waiters(1)
    roll = await becomes(control, noted(control.roll, "d", MemberState.DONE, "removed"))
    await becomes(control, ended(roll, RollState.DONE, 1.0))
    assert (await asked).out.splitlines() == [
        "a: changed, without a restart",
        "b: added",
        "c: left as it is: nothing has changed",
        "d: leaves its routers, ends (it is removed)",
        "d: removed",
    ]


async def test_what_a_start_waits_for_is_shown(sglctl: Sglctl, control: FakeControl) -> None:
    roll = noted(begin(RollKind.RESTART, ["a", "b"], "anna", 60.0, 0.0), "a", MemberState.UNDER_WAY)
    control.roll = waiting(roll, "a", "waits: GPU 0 is held by c")
    shown = await sglctl("rolling")
    assert shown.out.splitlines() == [
        "rolling restart running: 0 of 2 done, a under way, its start waits: GPU 0 is held by c",
        "  a: under-way, its start waits: GPU 0 is held by c",
        "  b: waiting",
    ]


async def test_what_a_start_waits_for_is_told_once(sglctl: Sglctl, control: FakeControl) -> None:
    asked = asyncio.create_task(sglctl("restart", "--rolling", "a", "b"))
    await control.waiters(1)
    assert control.roll is not None
    roll = await becomes(control, noted(control.roll, "a", MemberState.UNDER_WAY))
    roll = await becomes(control, waiting(roll, "a", "waits: GPU 0 is held by c"))
    roll = await becomes(control, waiting(roll, "a", ""))
    roll = await becomes(control, waiting(roll, "a", "waits for c, which starts"))
    roll = noted(roll, "a", MemberState.LEFT_WAITING, "its start waits for c, which starts")
    await becomes(control, ended(cancelled(roll, "ben"), RollState.CANCELLED, 1.0, "cancelled by ben"))
    done = await asked
    assert (done.code, done.out.splitlines()) == (
        1,
        [
            "a: leaves its routers, ends, starts again",
            "a: its start waits: GPU 0 is held by c",
            "a: its start waits for c, which starts",
            "a: not waited for (its start waits for c, which starts)",
            "b: left alone",
        ],
    )


async def test_a_disk_that_has_not_taken_it_is_a_warning(sglctl: Sglctl, control: FakeControl) -> None:
    control.unwritten = "cannot write rolling.json: no space left on device; it ends with this daemon"
    begun = await sglctl("restart", "--rolling", "--no-wait", "all")
    assert (begun.code, begun.err) == (0, f"warning: {control.unwritten}\n")
    done = await sglctl("rolling", "--cancel")
    assert done == (
        0,
        "cancelled: the server under way comes back, unless its start waits; nobody follows\n",
        f"warning: {control.unwritten}\n",
    )


async def test_it_returns_at_once_when_told_to(sglctl: Sglctl) -> None:
    assert await sglctl("restart", "--rolling", "--no-wait", "all") == (0, "rolling restart running: 0 of 2 done\n", "")


async def test_unknown_names_and_a_second_one_are_refused(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("restart", "--rolling", "c") == (4, "", "error: no such server: c; there are a, b, g:pair\n")
    control.refuses = "cannot begin: a rolling restart running"
    assert await sglctl("restart", "--rolling", "a") == (1, "", "error: cannot begin: a rolling restart running\n")
    assert (await sglctl("restart", "--rolling", "a", "--grace", "soon")).code == 2


async def test_an_update_without_a_file_is_refused(sglctl: Sglctl, control: FakeControl) -> None:
    control.config_path = ""
    done = await sglctl("update", "--rolling")
    assert done == (1, "", "error: there is no configuration file: the daemon runs without one\n")


async def test_what_rolls_is_shown_and_cancelled(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("rolling") == (0, "nothing rolls, and nothing has\n", "")
    refused = await sglctl("rolling", "--cancel")
    assert (refused.code, refused.err) == (1, "error: cannot cancel: nothing is rolling\n")
    control.roll = noted(begin(RollKind.RESTART, ["a", "b"], "anna", 60.0, 0.0), "a", MemberState.UNDER_WAY)
    shown = await sglctl("rolling")
    assert shown == (0, "rolling restart running: 0 of 2 done, a under way\n  a: under-way\n  b: waiting\n", "")
    assert (await sglctl("rolling", "--cancel")).code == 0
    control.roll = ended(control.roll, RollState.CANCELLED, 1.0, "cancelled by anna")
    assert (await sglctl("rolling", "--json")).code == 1
    assert json.loads((await sglctl("rolling", "--json")).out)["rolling"]["state"] == "cancelled"
    followed = await sglctl("rolling", "--follow")
    assert (followed.code, followed.err.startswith("error: rolling restart cancelled")) == (1, True)


async def test_routers_are_a_line_each(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("routers") == (0, "no routers are configured\n", "")
    control.routers = (RouterFacts("front", "gateway", True, "", 2), RouterFacts("lb", "nginx", None))
    assert await sglctl("routers") == (
        0,
        "front (gateway): reachable, 2 servers\nlb (nginx): not asked yet, 0 servers\n",
        "",
    )
    control.routers = (RouterFacts("front", "gateway", False, "nobody\x1b[31m listens", 1),)
    done = await sglctl("routers")
    assert (done.code, done.out) == (1, "front (gateway): unreachable, 1 server: nobody?[31m listens\n")
    assert json.loads((await sglctl("routers", "--json")).out)["routers"][0]["name"] == "front"


async def test_a_drain_takes_its_grace_by_either_name(sglctl: Sglctl, control: FakeControl) -> None:
    for option in ("--grace", "--timeout"):
        assert (await sglctl("drain", option, "30s", "a")).code == 0
        await control.put(snapshot("a", "running"))
    assert [event.grace_s for _, event in control.requests] == [30.0, 30.0]  # type: ignore[union-attr]
