"""Who may do what to which server, and what of it is on record."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from supervisor.api.access import Access
from supervisor.config import Config, ServerConfig
from tests.api.conftest import connected
from tests.api.fake import FakeControl, served, snapshot

NOBODY = Access(admin_uids=frozenset(), operator_gids=frozenset())


def shared() -> FakeControl:
    """kimi is this user's to operate, draft is not."""
    control = FakeControl(snapshot("kimi", "running"), snapshot("draft"))
    mine = ServerConfig("kimi", ("engine",), operators=(str(os.getuid()),))
    control.configuration = Config(servers={"kimi": mine, "draft": ServerConfig("draft", ("engine",))})
    return control


async def test_a_servers_own_operator_operates_it_and_reads_about_all(tmp_path: Path) -> None:
    control = shared()
    async with served(control, tmp_path, NOBODY) as path, connected(path) as client:
        assert (await client.get("/v1/servers")).status_code == 200
        assert (await client.get("/v1/info")).json()["role"] == "read"
        assert (await client.post("/v1/servers/kimi/restart")).status_code == 202
        refused = await client.post("/v1/servers/draft/start")
        assert (refused.status_code, refused.json()["error"]) == (
            403,
            "startServer needs the role operate, you have read",
        )
        assert (await client.post("/v1/servers/kimi/remove")).status_code == 403
        assert (await client.post("/v1/shutdown")).status_code == 403
    assert [name for name, _ in control.requests] == ["kimi"]
    assert [(server, command) for server, command, _ in control.audited] == [("kimi", "restartServer")]


async def test_who_operates_nothing_sees_nothing(tmp_path: Path) -> None:
    control = FakeControl(snapshot("kimi"))
    async with served(control, tmp_path, NOBODY) as path, connected(path) as client:
        assert (await client.get("/v1/servers")).status_code == 403
        assert (await client.post("/v1/servers/kimi/start")).status_code == 403
    assert control.audited == []


async def test_every_change_is_on_record_with_what_was_given(client: httpx.AsyncClient, control: FakeControl) -> None:
    await client.post("/v1/servers/kimi/signal", json={"signal": "HUP"})
    await client.post("/v1/servers/kimi/restart", json={"reason": "new\x1b[2J weights"})
    await client.get("/v1/servers/kimi")
    assert [(server, command) for server, command, _ in control.audited] == [
        ("kimi", 'signalServer {"signal":"HUP"}'),
        ("kimi", 'restartServer {"reason":"new\\u001b[2J weights"}'),
    ]
    assert all(by.startswith(f"uid {os.getuid()} pid ") for *_, by in control.audited)


async def test_every_answer_is_counted_with_its_status_and_role(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    await client.get("/v1/servers")
    await client.get("/v1/servers/nobody")
    await client.get("/v1/nope")  # names no operation: anybody could make up thousands
    control.broken = RuntimeError("a bug")
    await client.get("/v1/events")
    assert control.answers == [
        ("listServers", "admin", 200),
        ("showServer", "admin", 404),
        ("listEvents", "admin", 500),
    ]


async def test_a_refusal_for_want_of_a_role_is_counted_too(tmp_path: Path) -> None:
    control = FakeControl(snapshot("kimi"))
    async with served(control, tmp_path, NOBODY) as path, connected(path) as client:
        await client.get("/v1/servers")
    assert control.answers == [("listServers", "none", 403)]
