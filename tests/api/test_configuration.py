"""The configuration over the control socket: reread, update, add, remove."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from supervisor.config import load
from tests.api.fake import FakeControl, snapshot

PLACES = '[daemon]\nstate_dir = "{0}/st"\nlog_dir = "{0}/lg"\n'
TWO = '[server.kimi]\ncommand = ["engine"]\n[server.draft]\nport = 30001\ncommand = ["engine"]\n'


@pytest.fixture
def file(control: FakeControl, tmp_path: Path) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(PLACES.format(tmp_path) + TWO)
    control.config_path = str(path)
    control.configuration = load(path)
    return path


async def test_a_restart_is_priced_by_the_last_start(client: httpx.AsyncClient, file: Path) -> None:
    text = file.read_text().replace('["engine"]\n[', '["engine", "--tp", "8"]\n[')
    file.write_text(text + "autostart = false\n")
    read = (await client.get("/v1/config/reread")).json()
    assert read["last_start_s"] == {"kimi": 432.0}, "draft's change costs no restart"


async def test_an_update_tells_what_became_of_each(client: httpx.AsyncClient, control: FakeControl, file: Path) -> None:
    file.write_text(file.read_text().replace("server.draft", "server.other"))
    answer = (await client.post("/v1/config/update", json={})).json()
    assert [(one["name"], one["kind"]) for one in answer["servers"]] == [("draft", "removed"), ("other", "added")]
    ((names, by, free_only),) = control.updates
    assert (names, free_only) == ((), False)
    assert by.startswith("uid ")
    assert list(control.servers) == ["kimi", "other"]
    assert [(server, command) for server, command, _ in control.audited] == [("", "update")]


ROUTER = '[router.front]\nurl = "http://127.0.0.1:8000"\n'


async def test_routers_are_told_and_brought_into_force_before_the_servers(
    client: httpx.AsyncClient, control: FakeControl, file: Path
) -> None:
    file.write_text(file.read_text() + ROUTER)
    assert (await client.get("/v1/config/reread")).json()["differences"]["routers"] == [
        {"name": "front", "kind": "available", "keys": []}
    ]
    control.router_says = "nobody listens"
    answer = (await client.post("/v1/config/update", json={})).json()
    assert answer["routers"] == [{"name": "front", "kind": "added", "problem": "nobody listens"}]
    assert (len(control.rerouted), len(control.updates)) == (1, 1)


async def test_routers_alone_or_servers_alone(client: httpx.AsyncClient, control: FakeControl, file: Path) -> None:
    file.write_text(file.read_text() + ROUTER)
    answer = (await client.post("/v1/config/update", json={"names": ["kimi"]})).json()
    assert (answer["routers"], control.rerouted, len(control.updates)) == ([], [], 1)
    answer = (await client.post("/v1/config/update", json={"routers_only": True, "free_only": True})).json()
    assert [one["kind"] for one in answer["routers"]] == ["added"]
    assert ([free for _, free in control.rerouted], len(control.updates)) == ([True], 1)
    both = await client.post("/v1/config/update", json={"routers_only": True, "names": ["kimi"]})
    assert (both.status_code, both.json()["error"]) == (400, "cannot update routers alone and servers: name none")


async def test_restarts_are_counted_as_they_will_happen(
    client: httpx.AsyncClient, control: FakeControl, file: Path
) -> None:
    together = '[group.pair]\nmembers = ["kimi", "draft"]\ntogether = true\n'
    for name in ("kimi", "draft"):
        await control.put(snapshot(name, "running"))
    file.write_text(file.read_text().replace("command", "nice = 5\ncommand"))
    assert (await client.get("/v1/config/reread")).json()["restarts"] == [["draft"], ["kimi"]]
    file.write_text(file.read_text() + together)
    assert (await client.get("/v1/config/reread")).json()["restarts"] == [["draft", "kimi"]]


async def test_an_update_of_an_unknown_server_is_404(
    client: httpx.AsyncClient, control: FakeControl, file: Path
) -> None:
    answer = await client.post("/v1/config/update", json={"names": ["none"]})
    assert (answer.status_code, control.updates) == (404, [])


@pytest.mark.parametrize("path", ["/v1/config/update", "/v1/config/reread"])
async def test_a_broken_file_changes_nothing_and_says_where(
    client: httpx.AsyncClient, control: FakeControl, file: Path, path: str
) -> None:
    file.write_text(file.read_text() + "comand = 1\n")
    answer = await client.request("POST" if path.endswith("update") else "GET", path)
    assert answer.status_code == 409
    assert f"cannot use {file}: server.draft.comand: unknown key" in answer.json()["error"]
    assert control.updates == []


async def test_a_server_is_added_once(client: httpx.AsyncClient, control: FakeControl, file: Path) -> None:
    file.write_text(file.read_text() + '[server.third]\nport = 30002\ncommand = ["engine"]\n')
    assert (await client.post("/v1/config/add", json={"name": "third"})).status_code == 409, "not read yet"
    await client.get("/v1/config/reread")
    assert (await client.post("/v1/config/add", json={"name": "third"})).status_code == 200
    assert (await client.post("/v1/config/add", json={"name": "third"})).status_code == 409
    assert "third" in control.servers


async def test_only_a_server_at_rest_is_removed(client: httpx.AsyncClient, control: FakeControl) -> None:
    answer = await client.post("/v1/servers/kimi/remove")
    assert answer.status_code == 409
    assert answer.json() == {"error": "cannot remove kimi: it is still running; stop it first"}
    assert (await client.post("/v1/servers/draft/remove")).status_code == 200
    assert (await client.post("/v1/servers/draft/remove")).status_code == 404
    await control.put(snapshot("kimi"))
    assert list(control.servers) == ["kimi"]


@pytest.mark.parametrize("body", [{"names": "kimi"}, {"names": [1]}, {"x": 1}, {"names": ["a" * 65]}, []])
async def test_a_wrong_body_is_refused(client: httpx.AsyncClient, file: Path, body: object) -> None:
    assert (await client.post("/v1/config/update", json=body)).status_code == 400
