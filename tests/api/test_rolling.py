"""One server after another over the API: who may begin, whom it names, how it is followed and cancelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from supervisor.config import Config, GroupConfig, ServerConfig, load
from supervisor.core.rolling import MemberState, RollKind, RollState, begin, cancelled, ended, noted, waiting
from tests.api.fake import FakeControl, snapshot

ROLL = begin(RollKind.RESTART, ["a", "b"], "anna", 60.0, 1764420000.0)


@pytest.fixture
def control() -> FakeControl:
    made = FakeControl(snapshot("a", "running"), snapshot("b", "running"))
    servers = {name: ServerConfig(name) for name in ("a", "b")}
    made.configuration = Config(servers=servers, groups={"pair": GroupConfig("pair", ("b", "a"))})
    return made


async def post(client: httpx.AsyncClient, **body: object) -> tuple[int, Any]:
    answer = await client.post("/v1/rolling", json=body)
    return answer.status_code, answer.json()


async def test_a_rolling_restart_begins_and_is_shown(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/rolling")).json() == {"rolling": None, "problem": ""}
    status, begun = await post(client, kind="restart", names=["b", "a", "b"], grace_s=30, reason="new driver")
    assert status == 202
    assert begun == (await client.get("/v1/rolling")).json()
    shown = begun["rolling"]
    assert (shown["kind"], shown["state"], shown["grace_s"], shown["reason"]) == (
        "restart",
        "running",
        30,
        "new driver",
    )
    assert [one["name"] for one in shown["members"]] == ["b", "a"]
    assert shown["summary"] == "rolling restart running: 0 of 2 done"


@pytest.mark.parametrize(
    ("names", "expanded"), [(["g:pair"], ["b", "a"]), (["all"], ["a", "b"]), (["a", "g:pair"], ["a", "b"])]
)
async def test_groups_and_all_stand_for_servers(
    client: httpx.AsyncClient, control: FakeControl, names: list[str], expanded: list[str]
) -> None:
    await post(client, kind="restart", names=names)
    assert control.roll is not None
    assert [one.name for one in control.roll.members] == expanded


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"kind": "restart"}, 400, "cannot restart nobody: name servers, or all"),
        ({"kind": "restart", "names": ["c"]}, 404, "no such server: c"),
        ({"kind": "restart", "names": ["g:c"]}, 404, "no such server: g:c"),
        ({"kind": "replace", "names": ["a"]}, 400, "cannot use the body"),
        ({"kind": "restart", "names": ["a"], "grace_s": -1}, 400, "cannot use the body"),
        ({"kind": "restart", "names": ["a"], "grace": 1}, 400, "cannot use the body"),
    ],
)
async def test_what_cannot_be_is_refused(
    client: httpx.AsyncClient, body: dict[str, object], status: int, said: str
) -> None:
    found, answer = await post(client, **body)
    assert found == status
    assert answer["error"].startswith(said)


async def test_one_at_a_time(client: httpx.AsyncClient, control: FakeControl) -> None:
    control.refuses = "cannot begin: a rolling restart running"
    assert await post(client, kind="restart", names=["a"]) == (409, {"error": control.refuses})


async def test_it_is_cancelled_once_it_runs(client: httpx.AsyncClient, control: FakeControl) -> None:
    refused = await client.post("/v1/rolling/cancel")
    assert (refused.status_code, refused.json()) == (409, {"error": "cannot cancel: nothing is rolling"})
    control.roll = ROLL
    done = await client.post("/v1/rolling/cancel")
    assert (done.status_code, done.json()) == (202, {"ok": True, "problem": ""})


async def test_what_the_disk_has_not_taken_is_told_with_what_is_done(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    control.unwritten = "cannot write rolling.json: the disk has not answered within 1 s; it ends with this daemon"
    status, begun = await post(client, kind="restart", names=["a"])
    assert (status, begun["problem"], begun["rolling"]["state"]) == (202, control.unwritten, "running")
    assert (await client.post("/v1/rolling/cancel")).json()["problem"] == control.unwritten


async def test_what_a_start_waits_for_and_who_cancels_is_shown(client: httpx.AsyncClient, control: FakeControl) -> None:
    under_way = noted(ROLL, "a", MemberState.UNDER_WAY, attempt=3)
    control.roll = cancelled(waiting(under_way, "a", "waits: GPU 0 is held by c"), "ben")
    shown = (await client.get("/v1/rolling")).json()["rolling"]
    assert [(one["state"], one["waits"]) for one in shown["members"]] == [
        ("under-way", "waits: GPU 0 is held by c"),
        ("waiting", ""),
    ]
    assert shown["cancelled_by"] == "ben"
    assert shown["summary"].endswith("a under way, its start waits: GPU 0 is held by c, cancelled by ben")


async def test_a_look_waits_for_news(client: httpx.AsyncClient, control: FakeControl) -> None:
    control.roll = ROLL
    still = await client.get("/v1/rolling", params={"known": ROLL.version, "timeout_s": 0.05})
    assert still.json()["rolling"]["version"] == ROLL.version
    async with anyio.create_task_group() as tasks:

        async def look() -> None:
            answer = await client.get("/v1/rolling", params={"known": ROLL.version, "timeout_s": 30})
            member = answer.json()["rolling"]["members"][0]
            assert member == {"name": "a", "state": "failed", "reason": "status 1", "waits": ""}
            assert answer.json()["rolling"]["ended"] is not None

        tasks.start_soon(look)
        await control.waiters(1)
        control.roll = ended(noted(ROLL, "a", MemberState.FAILED, "status 1"), RollState.FAILED, 1764420009.0)
        await control.put(snapshot("a", "backoff"))


async def test_a_rolling_update_is_one_of_those_that_have_changed(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path
) -> None:
    path = tmp_path / "c.toml"
    head = f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n'
    servers = '[server.a]\ncommand = ["x"]\n[server.b]\nport = 30001\ncommand = ["y"]\n[server.c]\nport = 30002\ncommand = ["z"]\n'
    path.write_text(head + servers)
    control.config_path, control.configuration = str(path), load(path)
    path.write_text(head + servers.replace('"y"', '"y", "--new"').replace('"z"', '"z", "--new"'))

    await post(client, kind="update")
    assert control.roll is not None
    assert [one.name for one in control.roll.members] == ["b", "c"]
    await post(client, kind="update", names=["c", "a"])
    assert [one.name for one in control.roll.members] == ["c"]
    assert (await post(client, kind="update", names=["d"]))[0] == 404

    path.write_text(head + servers + "comand = 1\n")
    status, answer = await post(client, kind="update")
    assert (status, "unknown key" in answer["error"]) == (409, True)
