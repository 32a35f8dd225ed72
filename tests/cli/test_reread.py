"""reread and avail say what the configuration file would change, and change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from supervisor.cli import configuration
from supervisor.config import load, model
from supervisor.core.fleet.view import FleetView
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl


@pytest.fixture
def file(control: FakeControl, tmp_path: Path) -> Path:
    """The file from which the daemon's configuration was read."""
    path = tmp_path / "c.toml"
    path.write_text(
        f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n'
        '[server.kimi]\ncommand = ["engine"]\n[server.draft]\nport = 30001\ncommand = ["engine"]\nautostart = false\n'
    )
    control.config_path = str(path)
    control.configuration = load(path)
    return path


async def test_nothing_has_changed(sglctl: Sglctl, file: Path) -> None:
    assert await sglctl("reread") == (0, "No config updates to processes\n", "")


async def test_changes_are_told_with_their_price(sglctl: Sglctl, file: Path, control: FakeControl) -> None:
    text = file.read_text().replace("[server.kimi]", "listen = ''\n[server.kimi]\nnice = 5\nrestart = {budget = 9}")
    file.write_text(text.replace("server.draft", "server.other"))
    outcome = await sglctl("reread")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "draft: disappeared (update removes it)",
        "kimi: changed (restart needed, last start took 7 m 12 s)",
        "  nice: 0 -> 5 (restart needed)",
        "  restart.budget: 5 -> 9 (live)",
        "other: available",
        '  daemon.listen: "127.0.0.1:9877" -> "" (with sglctl upgrade, or the next start of the daemon)',
    ]
    assert control.requests == []
    body = json.loads((await sglctl("reread", "--json")).out)
    assert [server["kind"] for server in body["differences"]["servers"]] == ["disappeared", "changed", "available"]


async def test_a_server_that_runs_and_is_gone_from_the_file_costs_its_end(
    sglctl: Sglctl, file: Path, control: FakeControl
) -> None:
    file.write_text(file.read_text().replace("server.kimi", "server.other"))
    for lifecycle, price in (("running", "stops and removes"), ("backoff", "stops and removes"), ("fatal", "removes")):
        await control.put(snapshot("kimi", lifecycle))
        assert (await sglctl("reread")).out == f"kimi: disappeared (update {price} it)\nother: available\n"


async def test_of_several_that_restart_it_is_told_how(sglctl: Sglctl, file: Path, control: FakeControl) -> None:
    """By update they are down together, as a start lasts longer than an end."""
    told = "update waits for none of them to serve again before it restarts the next; update --rolling does"
    file.write_text(file.read_text().replace("command", "nice = 5\ncommand"))
    for lifecycle, several in (("running", True), ("stopped", False)):  # one alone is restarted, the other is at rest
        await control.put(snapshot("kimi", "running"))
        await control.put(snapshot("draft", lifecycle))
        lines = (await sglctl("reread")).out.splitlines()
        assert (told in lines) is several
        assert [line for line in lines if line.startswith(("kimi", "draft"))] == [
            "draft: changed (restart needed)",
            "kimi: changed (restart needed, last start took 7 m 12 s)",
        ]


async def test_those_that_restart_together_are_one_restart(sglctl: Sglctl, file: Path, control: FakeControl) -> None:
    together = '[group.pair]\nmembers = ["kimi", "draft"]\ntogether = true\n'
    file.write_text(file.read_text().replace("[server.draft]", "[server.draft]\nnice = 5") + together)
    for name in ("kimi", "draft"):
        await control.put(snapshot(name, "running"))
    outcome = await sglctl("reread")
    assert outcome.out.splitlines()[:3] == [
        "draft: changed (restart needed)",
        "  nice: 0 -> 5 (restart needed)",
        "draft restarts together with kimi",
    ]
    assert "update --rolling" not in outcome.out


async def test_routers_are_told_like_servers(sglctl: Sglctl, file: Path, control: FakeControl) -> None:
    table = '[router.{}]\nurl = "http://127.0.0.1:{}"\n'
    file.write_text(file.read_text() + table.format("back", 1) + table.format("front", 2))
    control.configuration = load(file)
    text = file.read_text().replace("router.back", "router.lb").replace(":2", ":3")
    file.write_text(text + 'headers = {X = "SECRET"}\n')
    assert (await sglctl("reread")).out.splitlines() == [
        "No config updates to processes",
        "router back: disappeared (update takes its servers out of it)",
        "router front: changed (live)",
        '  headers: null -> "***" (live)',
        '  url: "http://127.0.0.1:2" -> "http://127.0.0.1:3" (live)',
        "router lb: available (live)",
    ]


async def test_changes_are_told_in_units(sglctl: Sglctl, file: Path) -> None:
    more = 'restart = {backoff = "9s"}\nserving = {stall = "10m"}\nlog = {size = "512MiB"}\nmemory_tolerance = "1KB"\n'
    file.write_text(file.read_text().replace("[server.draft]", f"{more}[server.draft]"))
    lines = (await sglctl("reread")).out.splitlines()
    assert [line.strip().partition(" (")[0] for line in lines[1:]] == [
        "log.size: 10 GB -> 512 MiB",
        "memory_tolerance: 64 MiB -> 1000 B",
        "restart.backoff: 5 s -> 9 s",
        "serving.stall: 5 m -> 10 m",
    ]


async def test_of_a_long_command_only_the_change_is_told(sglctl: Sglctl, control: FakeControl, file: Path) -> None:
    words = ["engine", "--model", "m" * 100, "--tp", "4", "--port", "30000"]
    server = msgspec.structs.replace(control.configuration.servers["kimi"], command=tuple(words))
    control.configuration = msgspec.structs.replace(control.configuration, servers={"kimi": server})
    for command, told in (
        ([*words[:4], "8", *words[5:]], '[..., "--tp", "4", ...] -> [..., "--tp", "8", ...]'),
        ([*words, "--x"], '[..., "30000"] -> [..., "30000", "--x"]'),
        (["other", *words[1:]], '["engine", ...] -> ["other", ...]'),
        ([*words[:3], *words[5:]], f'[..., "{words[2]}", "--tp", "4", ...] -> [..., "{words[2]}", ...]'),
    ):
        file.write_text(f"[server.kimi]\ncommand = {json.dumps(command)}\n")
        assert f"  command: {told} (restart needed)\n" in (await sglctl("reread")).out


def test_the_units_are_those_of_the_configuration() -> None:
    """The client imports the standard library alone, so it names the keys that have a unit."""
    structs = [one for one in vars(model).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    keys = [(field.encode_name, str(field.type)) for one in structs for field in msgspec.structs.fields(one)]
    durations, sizes = ({key for key, kind in keys if f"'written': '{unit}'" in kind} for unit in ("duration", "size"))
    assert (durations, sizes) == (set(configuration._DURATIONS), set(configuration._SIZES))
    without = {key for key, kind in keys if "'written'" not in kind}
    assert (durations | sizes) & without == {"canary"}, "a detector's mode is a word, which has no unit either way"


async def test_a_broken_file_is_told_line_by_line(sglctl: Sglctl, file: Path) -> None:
    file.write_text("[server.kimi]\ncomand = 1\n[other]\n")
    outcome = await sglctl("reread")
    assert (outcome.code, outcome.out) == (1, "")
    lines = outcome.err.splitlines()
    assert f'error: cannot use {file}: server.kimi.comand: unknown key, did you mean "command"?' in lines
    assert len(lines) >= 3, "a line for each problem"
    assert lines[-1] == "error: nothing has been changed: what is in force stays in force"
    assert (await sglctl("update")).err == outcome.err
    assert all(line.startswith("error: ") for line in lines)
    assert not any("??" in line or line.endswith("?error") for line in lines)


async def test_a_daemon_without_a_file(sglctl: Sglctl, control: FakeControl) -> None:
    control.config_path = ""
    assert (await sglctl("reread")).code == 1


async def test_avail_as_json(sglctl: Sglctl, file: Path) -> None:
    told = json.loads((await sglctl("avail", "--json")).out)
    assert told["servers"][0] == {"name": "draft", "in_use": True, "autostart": False}
    assert told["starts"] is None, "nobody starts"


async def test_avail_tells_how_far_a_boot_has_come(sglctl: Sglctl, file: Path, control: FakeControl) -> None:
    control.starts = FleetView(slots=1, starting=("kimi",), waiting=("draft",), ready_at=None, unknown=("kimi",))
    told = json.loads((await sglctl("avail", "--json")).out)
    assert told["starts"]["starting"] == ["kimi"]
    assert told["starts"]["waiting"] == ["draft"]


async def test_avail_has_supervisorctls_columns(sglctl: Sglctl, file: Path) -> None:
    file.write_text(file.read_text().replace("server.draft", "server.other"))
    assert (await sglctl("avail")).out == (
        "draft                            in use    manual    999:999\n"
        "kimi                             in use    auto      999:999\n"
        "other                            avail     manual    999:999\n"
    )
