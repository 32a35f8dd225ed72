"""The application as a whole: errors, limits, roles, description."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import pytest

from supervisor.api.access import Access
from supervisor.api.app import OPERATIONS
from tests.api.conftest import connected
from tests.api.fake import FakeControl, dialled, served, served_on_tcp, snapshot

NOBODY = Access(admin_uids=frozenset(), operator_gids=frozenset())


async def test_info_tells_the_daemon_and_the_callers_role(client: httpx.AsyncClient) -> None:
    info = (await client.get("/v1/info")).json()
    assert (info["version"], info["pid"], info["uptime_s"], info["role"]) == ("0.1.0", os.getpid(), 3600.0, "admin")


async def test_shutdown_is_passed_on(client: httpx.AsyncClient, control: FakeControl) -> None:
    assert (await client.post("/v1/shutdown")).status_code == 202
    (by,) = control.shutdown_by
    assert by.startswith(f"uid {os.getuid()} pid {os.getpid()} (")
    assert control.audited == [("", "shutDown", by)]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/v1/nope", 404), ("POST", "/v1/servers", 405), ("GET", "/v1/shutdown", 405)],
)
async def test_errors_are_json(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"force": "yes"}', b'{"other": 1}', b"\xff", b"[" * 100_000, b'{"force": 1}', b"null"]
)
async def test_a_malformed_body_is_refused(client: httpx.AsyncClient, control: FakeControl, body: bytes) -> None:
    answer = await client.post("/v1/servers/draft/start", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("cannot use the body: ")
    assert control.requests == []


async def test_a_body_for_an_operation_without_one_must_be_empty(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/servers/kimi/stop", json={})).status_code == 202
    assert (await client.post("/v1/servers/kimi/stop", json={"x": 1})).status_code == 400


async def test_a_large_body_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/servers/kimi/start", content=b" " * (2**20 + 1))
    assert (answer.status_code, answer.json()) == (413, {"error": "the body is larger than 1048576 bytes"})


async def test_an_endless_body_is_refused_before_it_ends(client: httpx.AsyncClient) -> None:
    sent = 0

    async def body() -> object:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 65536

    try:
        answer = await client.post("/v1/servers/kimi/start", content=body())
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # the daemon closed while we were still sending
    assert sent < 200


async def test_a_bug_is_a_500_that_names_its_kind(client: httpx.AsyncClient, control: FakeControl) -> None:
    control.broken = RuntimeError("the journal is gone\x1b[2J")
    answer = await client.get("/v1/events")
    assert answer.status_code == 500
    assert answer.json() == {"error": "this is a bug of the daemon: RuntimeError: the journal is gone?[2J"}
    assert (await client.get("/livez")).text == "ok\n"


async def test_who_has_no_role_is_refused(tmp_path: Path) -> None:
    async with served(FakeControl(snapshot()), tmp_path, NOBODY) as path, connected(path) as client:
        for operation in OPERATIONS:
            answer = await client.request(operation.method, operation.path.replace("{name}", "kimi"))
            assert answer.status_code == 403, operation.name
            assert "you have none" in answer.json()["error"]


async def test_a_reader_reads_and_changes_nothing(tmp_path: Path) -> None:
    control = FakeControl(snapshot())
    reader = msgspec.structs.replace(NOBODY, reader_uids=frozenset({os.getuid()}))
    async with served(control, tmp_path, reader) as path, connected(path) as client:
        assert (await client.get("/v1/servers")).status_code == 200
        answer = await client.post("/v1/servers/kimi/start")
        assert answer.json() == {"error": "startServer needs the role operate, you have read"}
        assert (await client.post("/v1/servers/none/start")).status_code == 403
    assert control.requests == []


async def test_an_operator_operates_and_does_not_shut_down(tmp_path: Path) -> None:
    control = FakeControl(snapshot())
    operator = msgspec.structs.replace(NOBODY, operator_gids=frozenset({os.getgid()}))
    async with served(control, tmp_path, operator) as path, connected(path) as client:
        assert (await client.post("/v1/servers/kimi/start")).status_code == 202
        assert (await client.post("/v1/shutdown")).status_code == 403
    assert control.shutdown_by == []


async def test_tcp_is_for_reading_states_only() -> None:
    control = FakeControl(snapshot("kimi", "running", log_path="/etc/hostname"))
    async with served_on_tcp(control) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/livez")).text == "ok\n"
        assert (await client.get("/v1/servers")).json()["servers"][0]["state"] == "RUNNING"
        assert (await client.get("/v1/servers/kimi")).status_code == 200
        for method, path in [
            ("POST", "/v1/servers/kimi/start"),
            ("POST", "/v1/shutdown"),
            ("GET", "/v1/servers/kimi/log"),
            ("GET", "/v1/events"),
            ("GET", "/v1/info"),
        ]:
            assert (await client.request(method, path)).status_code == 404
    assert control.requests == []


async def test_the_description_is_openapi_of_every_operation(client: httpx.AsyncClient) -> None:
    document = (await client.get("/v1/openapi.json")).json()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}

    assert document["openapi"] == "3.1.0"
    assert described == {(operation.method, operation.path) for operation in OPERATIONS}
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert _references(document) <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def _references(value: object) -> set[str]:
    match value:
        case dict():
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(_references, value.values()))
        case list():
            return set[str]().union(*map(_references, value))
        case _:
            return set()


async def test_an_answer_has_the_fields_that_are_described(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/v1/openapi.json")).json()["components"]["schemas"]
    server = (await client.get("/v1/servers/kimi")).json()
    assert set(server) == set(schemas["Server"]["properties"])


async def test_two_hundred_clients_are_served_beside_two_hundred_waiters(tmp_path: Path) -> None:
    control = FakeControl(snapshot("kimi", "running"), snapshot("draft"))
    async with served(control, tmp_path) as path, AsyncExitStack() as stack, asyncio.timeout(50):
        waiting = [await asked(stack, path, "/v1/servers/draft/wait") for _ in range(200)]
        await control.waiters(200)
        others = [await asked(stack, path, "/v1/servers/kimi") for _ in range(200)]
        for reader in others:
            assert b" 200 OK" in await reader.readline()
        await control.put(snapshot("draft", "running"))
        for reader in waiting:
            assert b" 200 OK" in await reader.readline()
            assert b'"outcome":"reached"' in await reader.readuntil(b'"reached"')


async def asked(stack: AsyncExitStack, path: str, target: str) -> asyncio.StreamReader:
    """A connection of its own on which this has been asked."""
    reader, writer = await stack.enter_async_context(dialled(path))
    writer.write(f"GET {target} HTTP/1.1\r\nHost: d\r\n\r\n".encode())
    return reader


async def test_an_upgrade_is_begun_or_refused_with_its_reason(client: httpx.AsyncClient, control: FakeControl) -> None:
    begun = await client.post("/v1/upgrade")
    assert (begun.status_code, begun.json()) == (202, {"before": "0.1.0", "after": "0.2.0", "upgrades": 0})
    info = (await client.get("/v1/info")).json()
    assert (info["version"], info["upgrades"], info["upgrade_problem"]) == ("0.2.0", 1, "")
    control.refusal = "cannot upgrade: the daemon ends"
    refused = await client.post("/v1/upgrade")
    assert (refused.status_code, refused.json()) == (409, {"error": "cannot upgrade: the daemon ends"})
