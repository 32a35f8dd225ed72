"""supervisord's methods over our servers, called as exporters call them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, dumps, loads

import httpx
import msgspec
import pytest

from supervisor.api.access import Access
from supervisor.api.supervisord.methods import METHODS
from supervisor.config import Config, GroupConfig, ServerConfig, load
from supervisor.snapshot import ExitView, FacetView
from tests.api.conftest import connected
from tests.api.fake import FakeControl, dialled, served, snapshot

Rpc = Callable[..., Awaitable[Any]]


@pytest.fixture
def rpc(client: httpx.AsyncClient) -> Rpc:
    return lambda method, *parameters: called(client, method, *parameters)


async def called(client: httpx.AsyncClient, method: str, *parameters: Any) -> Any:
    answer = await client.post("/RPC2", content=dumps(parameters, method))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/xml")
    ((value,), _) = loads(answer.content)
    return value


async def fault_of(call: Awaitable[Any]) -> tuple[int, str]:
    with pytest.raises(Fault) as caught:
        await call
    return caught.value.faultCode, caught.value.faultString


async def test_the_daemon(rpc: Rpc) -> None:
    assert await rpc("supervisor.getAPIVersion") == "3.0"
    assert await rpc("supervisor.getVersion") == "3.0"
    assert await rpc("supervisor.getSupervisorVersion") == "0.1.0"
    assert await rpc("supervisor.getIdentification") == "supervisor"
    assert await rpc("supervisor.getState") == {"statecode": 1, "statename": "RUNNING"}
    assert await rpc("supervisor.getPID") == os.getpid()


async def test_process_information_has_supervisords_keys(rpc: Rpc, control: FakeControl) -> None:
    await control.put(snapshot("kimi", "running", started=100.0, exit=ExitView(1, 90.0, -9), log_path="/l/k"))
    assert await rpc("supervisor.getProcessInfo", "kimi") == {
        "name": "kimi",
        "group": "kimi",
        "start": 1764419940,
        "stop": 1764419930,
        "now": 1764420000,
        "state": 20,
        "statename": "RUNNING",
        "spawnerr": "",
        "exitstatus": -9,
        "logfile": "/l/k",
        "stdout_logfile": "/l/k",
        "stderr_logfile": "",
        "pid": 4242,
        "description": "pid 4242, uptime 0:01:00",
    }
    assert [info["name"] for info in await rpc("supervisor.getAllProcessInfo")] == ["kimi", "draft"]


async def test_configuration_information(rpc: Rpc, control: FakeControl) -> None:
    command = ("engine", "--api-key", "hidden", "--name", "a b")
    control.configuration = Config(servers={"kimi": ServerConfig("kimi", command, autostart=False)})
    (info,) = await rpc("supervisor.getAllConfigInfo")
    assert (info["name"], info["inuse"], info["autostart"]) == ("kimi", True, False)
    assert info["command"] == "engine --api-key '***' --name 'a b'"
    assert info["stopsignal"] == 15


@pytest.fixture
def file(control: FakeControl, tmp_path: Path) -> Path:
    """The file from which the configuration in force was read."""
    path = tmp_path / "c.toml"
    places = f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n'
    tables = (f'[server.{name}]\nport = {at}\ncommand = ["engine"]\n' for at, name in enumerate(control.servers, 1))
    path.write_text(places + "".join(tables))
    control.config_path = str(path)
    control.configuration = load(path)
    return path


async def test_reread_tells_added_changed_and_removed(rpc: Rpc, file: Path) -> None:
    assert await rpc("supervisor.reloadConfig") == [[[], [], []]]
    file.write_text(
        file.read_text().replace("server.draft", "server.other").replace("[server.other]", "nice = 1\n[server.other]")
    )
    assert await rpc("supervisor.reloadConfig") == [[["other"], ["kimi"], ["draft"]]]
    known = {info["name"]: info["inuse"] for info in await rpc("supervisor.getAllConfigInfo")}
    assert known == {"draft": True, "kimi": True, "other": False}
    file.write_text("[server.kimi]\ncomand = 1\n")
    code, text = await fault_of(rpc("supervisor.reloadConfig"))
    assert (code, "server.kimi.comand: unknown key" in text) == (92, True)


async def test_groups_are_added_and_removed(rpc: Rpc, control: FakeControl, file: Path) -> None:
    assert await fault_of(rpc("supervisor.addProcessGroup", "kimi")) == (90, "ALREADY_ADDED: kimi")
    assert (await fault_of(rpc("supervisor.addProcessGroup", "none")))[0] == 10
    assert await fault_of(rpc("supervisor.removeProcessGroup", "kimi")) == (91, "STILL_RUNNING: kimi")
    assert (await fault_of(rpc("supervisor.removeProcessGroup", "none")))[0] == 10
    assert await rpc("supervisor.removeProcessGroup", "draft") is True
    assert list(control.servers) == ["kimi"]
    assert await rpc("supervisor.addProcessGroup", "draft") is True
    assert list(control.servers) == ["kimi", "draft"]


async def test_restart_brings_the_file_into_force(rpc: Rpc, control: FakeControl, file: Path) -> None:
    file.write_text(file.read_text().replace("server.draft", "server.other"))
    assert await rpc("supervisor.restart") is True
    assert list(control.servers) == ["kimi", "other"]
    assert [command for _, command, _ in control.audited] == ["supervisor.restart"]


async def test_a_failed_server_tells_why(rpc: Rpc, control: FakeControl) -> None:
    await control.put(snapshot("kimi", "fatal", lifecycle=FacetView("fatal", 100.0, "no such file\x1b")))
    info = await rpc("supervisor.getProcessInfo", "kimi:kimi")
    assert (info["statename"], info["spawnerr"], info["description"]) == ("FATAL", "no such file?", "no such file?")


@pytest.mark.parametrize("name", ["none", "kimi:other", "none:*", "", "\x7f"])
async def test_an_unknown_name_is_bad_name(rpc: Rpc, name: str) -> None:
    for method in ("getProcessInfo", "startProcess", "stopProcess", "clearProcessLogs"):
        code, _ = await fault_of(rpc(f"supervisor.{method}", name))
        assert code == 10
    assert (await fault_of(rpc("supervisor.readProcessStdoutLog", name, 0, 0)))[0] == 10
    assert (await fault_of(rpc("supervisor.startProcessGroup", name)))[0] == 10


async def test_start_and_stop(rpc: Rpc, control: FakeControl) -> None:
    assert await rpc("supervisor.startProcess", "draft", False) is True
    assert await fault_of(rpc("supervisor.startProcess", "draft")) == (60, "ALREADY_STARTED: draft")
    assert await rpc("supervisor.stopProcess", "draft") is True
    assert await fault_of(rpc("supervisor.stopProcess", "draft")) == (70, "NOT_RUNNING: draft")
    assert [type(event).__name__ for _, event in control.requests] == ["StartRequested", "StopRequested"]


async def test_a_start_returns_when_it_runs_or_after_a_second(rpc: Rpc, control: FakeControl) -> None:
    starting = asyncio.create_task(rpc("supervisor.startProcess", "draft"))
    await control.waiters(1)
    await control.put(snapshot("draft", "running"))
    assert await starting is True


@pytest.mark.parametrize(
    ("ended", "fault"),
    [(None, (50, "SPAWN_ERROR: draft")), (ExitView(1, 120.0, 1), (40, "ABNORMAL_TERMINATION: draft"))],
)
@pytest.mark.parametrize("state", ["fatal", "backoff"])
async def test_a_start_that_fails_at_once_says_so(
    rpc: Rpc, control: FakeControl, state: str, ended: ExitView | None, fault: tuple[int, str]
) -> None:
    starting = asyncio.create_task(fault_of(rpc("supervisor.startProcess", "draft")))
    await control.waiters(1)
    await control.put(snapshot("draft", state, exit=ended))
    assert await starting == fault


async def test_a_stop_waits_for_the_end(rpc: Rpc, control: FakeControl) -> None:
    control.slow_stop = True
    stopping = asyncio.create_task(rpc("supervisor.stopProcess", "kimi"))
    await control.waiters(1)
    assert not stopping.done()
    await control.put(snapshot("kimi", "stopped"))
    assert await stopping is True


async def test_a_client_that_goes_away_ends_its_wait(control: FakeControl, client: object, tmp_path: Path) -> None:
    control.slow_stop = True
    body = dumps(("kimi",), "supervisor.stopProcess").encode()
    async with dialled(tmp_path / "s") as (_, writer):
        writer.write(b"POST /RPC2 HTTP/1.1\r\nHost: d\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await control.waiters(1)
    await control.waiters(0)


async def test_signals(rpc: Rpc, control: FakeControl) -> None:
    assert await rpc("supervisor.signalProcess", "kimi", "HUP") is True
    assert await fault_of(rpc("supervisor.signalProcess", "kimi", "NOPE")) == (11, "BAD_SIGNAL: NOPE")
    assert await fault_of(rpc("supervisor.signalProcess", "draft", "HUP")) == (70, "NOT_RUNNING: draft")
    assert len(control.requests) == 1


async def test_groups_and_all(rpc: Rpc) -> None:
    ok = {"status": 80, "description": "OK"}
    kimi, draft = {"name": "kimi", "group": "kimi"} | ok, {"name": "draft", "group": "draft"} | ok
    assert await rpc("supervisor.startAllProcesses", False) == [draft]
    assert await rpc("supervisor.signalAllProcesses", "HUP") == [kimi, draft]
    assert await rpc("supervisor.stopProcess", "kimi:*") == [kimi]
    assert await rpc("supervisor.stopProcessGroup", "kimi") == []
    assert await rpc("supervisor.stopAllProcesses") == [draft]
    assert await rpc("supervisor.clearAllProcessLogs") == [kimi, draft]


async def test_a_group_of_several(rpc: Rpc, control: FakeControl) -> None:
    """As supervisorctl asks for NAME:*; rows name the group, and stops go from the last member to the first."""
    pair = GroupConfig("pair", ("draft", "kimi"))
    control.configuration = msgspec.structs.replace(control.configuration, groups={"pair": pair})
    ok = {"status": 80, "description": "OK", "group": "pair"}
    kimi, draft = {"name": "kimi"} | ok, {"name": "draft"} | ok

    assert await rpc("supervisor.startProcessGroup", "pair", False) == [draft]
    assert await rpc("supervisor.startProcess", "pair:*", False) == []
    assert await rpc("supervisor.signalProcessGroup", "pair", "HUP") == [draft, kimi]
    control.requests.clear()
    assert await rpc("supervisor.stopProcess", "pair:*") == [kimi, draft]
    assert [name for name, _ in control.requests] == ["kimi", "draft"]
    assert await rpc("supervisor.stopProcessGroup", "pair", False) == []
    assert (await fault_of(rpc("supervisor.stopProcessGroup", "piar")))[0] == 10


@pytest.fixture
async def log(control: FakeControl, tmp_path: Path) -> Path:
    path = tmp_path / "kimi.log"
    await control.put(snapshot("kimi", "running", log_path=str(path)))
    path.write_bytes(b"0123456789")
    return path


@pytest.mark.parametrize(
    ("offset", "length", "text"),
    [(0, 0, "0123456789"), (2, 3, "234"), (-4, 0, "6789"), (-99, 0, "0123456789"), (99, 5, "")],
)
async def test_a_log_is_read(rpc: Rpc, log: Path, offset: int, length: int, text: str) -> None:
    for method in ("readProcessLog", "readProcessStdoutLog"):
        assert await rpc(f"supervisor.{method}", "kimi", offset, length) == text


@pytest.mark.parametrize(("offset", "length"), [(0, -1), (-4, 4)])
async def test_odd_ranges_are_bad_arguments(rpc: Rpc, log: Path, offset: int, length: int) -> None:
    assert (await fault_of(rpc("supervisor.readProcessStdoutLog", "kimi", offset, length)))[0] == 3


@pytest.mark.parametrize(
    ("offset", "length", "answer"),
    [
        (0, 10, ["0123456789", 10, False]),
        (0, 4, ["6789", 10, True]),
        (10, 5, ["", 10, False]),
        (0, 99, ["0123456789", 10, False]),
    ],
)
async def test_a_log_is_tailed(rpc: Rpc, log: Path, offset: int, length: int, answer: list[Any]) -> None:
    assert await rpc("supervisor.tailProcessStdoutLog", "kimi", offset, length) == answer


async def test_a_log_of_any_bytes_fits_into_xml(rpc: Rpc, log: Path) -> None:
    log.write_bytes(bytes(range(256)))
    text = await rpc("supervisor.readProcessStdoutLog", "kimi", 0, 0)
    assert "\x1b" not in text
    assert "<&>" not in text
    assert "ABC" in text


async def test_missing_logs(rpc: Rpc, log: Path) -> None:
    assert await fault_of(rpc("supervisor.readProcessStdoutLog", "draft", 0, 0)) == (20, "NO_FILE")
    assert (await fault_of(rpc("supervisor.readProcessStderrLog", "kimi", 0, 0)))[0] == 20
    assert await rpc("supervisor.tailProcessStdoutLog", "draft", 0, 5) == ["", 0, False]
    assert await rpc("supervisor.tailProcessStderrLog", "kimi", 0, 5) == ["", 0, False]
    assert (await fault_of(rpc("supervisor.readLog", 0, 0)))[0] == 20


async def test_clear(rpc: Rpc, log: Path) -> None:
    assert await rpc("supervisor.clearProcessLogs", "kimi") is True
    assert log.read_bytes() == b""
    assert await rpc("supervisor.clearProcessLog", "draft") is True


async def test_followed_logs(client: httpx.AsyncClient, log: Path) -> None:
    for path in ("/logtail/kimi/stdout", "/logtail/kimi:kimi", "/logtail/kimi"):
        async with client.stream("GET", path) as response:
            assert response.headers["content-type"].startswith("text/plain")
            assert await anext(response.aiter_bytes()) == b"0123456789"
    assert (await client.get("/logtail/kimi/stderr")).status_code == 404
    assert (await client.get("/logtail/none/stdout")).status_code == 404
    assert (await client.get("/logtail/draft/stdout")).status_code == 410
    assert (await client.get("/mainlogtail")).status_code == 410


async def test_introspection(rpc: Rpc) -> None:
    assert await rpc("system.listMethods") == sorted(METHODS)
    assert "supervisord" in await rpc("system.methodHelp", "supervisor.startProcess")
    assert await rpc("system.methodSignature", "supervisor.startProcess") == ["struct", "name", "wait"]
    assert (await fault_of(rpc("system.methodHelp", "none")))[0] == 1


async def test_multicall(rpc: Rpc) -> None:
    calls = [
        {"methodName": "supervisor.getPID", "params": []},
        {"methodName": "supervisor.getProcessInfo", "params": ["none"]},
        {"methodName": "system.multicall", "params": [[]]},
        {"methodName": "none"},
        "nonsense",
        {"params": 5},
    ]
    assert await rpc("system.multicall", calls) == [
        os.getpid(),
        {"faultCode": 10, "faultString": "BAD_NAME: none"},
        {"faultCode": 2, "faultString": "INCORRECT_PARAMETERS: Recursive system.multicall forbidden"},
        {"faultCode": 1, "faultString": "UNKNOWN_METHOD: none"},
        {"faultCode": 2, "faultString": "INCORRECT_PARAMETERS: expected methodName and params"},
        {"faultCode": 2, "faultString": "INCORRECT_PARAMETERS: expected methodName and params"},
    ]


@pytest.mark.parametrize(
    ("method", "parameters", "code"),
    [
        ("supervisor.none", (), 1),
        ("supervisor.__class__", (), 1),
        ("supervisor.getPID", (1,), 2),
        ("supervisor.getProcessInfo", (), 2),
        ("supervisor.getProcessInfo", (5,), 2),
        ("supervisor.getProcessInfo", ({},), 2),
        ("supervisor.readProcessStdoutLog", ("kimi", "0", 0), 2),
        ("supervisor.readProcessStdoutLog", ("kimi", True, 0), 2),
        ("system.multicall", (5,), 2),
    ],
)
async def test_wrong_calls_are_faults(rpc: Rpc, method: str, parameters: tuple[Any, ...], code: int) -> None:
    assert (await fault_of(rpc(method, *parameters)))[0] == code


@pytest.mark.parametrize("body", [b"", b"{}", b"<x/>", b'<!DOCTYPE a [<!ENTITY b "c">]><methodCall/>'])
async def test_what_is_no_call_is_400(client: httpx.AsyncClient, body: bytes) -> None:
    assert (await client.post("/RPC2", content=body)).status_code == 400


async def test_a_reader_may_not_change_anything(tmp_path: Path) -> None:
    control = FakeControl(snapshot("kimi", "running", log_path=str(tmp_path / "none")))
    reader = Access(admin_uids=frozenset(), operator_gids=frozenset(), reader_uids=frozenset({os.getuid()}))
    operator = msgspec.structs.replace(reader, operator_uids=frozenset({os.getuid()}))
    async with served(control, tmp_path, reader) as path, connected(path) as client:
        assert await called(client, "supervisor.getPID") == os.getpid()
        for method in ("startAllProcesses", "stopAllProcesses", "clearAllProcessLogs", "shutdown"):
            code, text = await fault_of(called(client, f"supervisor.{method}"))
            assert (code, "needs the role" in text) == (30, True)
        (row,) = await called(client, "system.multicall", [{"methodName": "supervisor.shutdown", "params": []}])
        assert row["faultCode"] == 30
    async with served(control, tmp_path, operator) as path, connected(path) as client:
        assert (await fault_of(called(client, "supervisor.shutdown")))[0] == 30
    assert (control.requests, control.shutdown_by) == ([], [])
