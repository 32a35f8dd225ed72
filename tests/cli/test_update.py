"""update, reload, add, remove: supervisorctl's lines, exit codes, and no surprise restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import load
from tests.api.fake import FakeControl
from tests.cli.conftest import Sglctl


@pytest.fixture
def file(control: FakeControl, tmp_path: Path) -> Path:
    """kimi has changed, draft is gone, third is new since the daemon has read it."""
    path = tmp_path / "c.toml"
    places = f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n'
    path.write_text(
        places + '[server.kimi]\ncommand = ["engine"]\n[server.draft]\nport = 30001\ncommand = ["engine"]\n'
    )
    control.config_path, control.configuration = str(path), load(path)
    path.write_text(
        places
        + 'listen = ""\n[server.kimi]\ncommand = ["engine", "-v"]\n[server.third]\nport = 30002\ncommand = ["engine"]\n'
    )
    return path


@pytest.mark.parametrize("words", [["update"], ["update", "all"], ["reload"]])
async def test_everything_is_brought_into_force(sglctl: Sglctl, file: Path, words: list[str]) -> None:
    outcome = await sglctl(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "draft: stopped",
        "draft: removed process group",
        "kimi: stopped",
        "kimi: updated process group",
        "kimi: restarted",
        "third: added process group",
        '  daemon.listen: "127.0.0.1:9877" -> "" (with sglctl upgrade, or the next start of the daemon)',
    ]


async def test_groups_alone_are_brought_into_force(sglctl: Sglctl, control: FakeControl, file: Path) -> None:
    file.write_text(
        file.read_text().split("listen")[0]
        + '[server.kimi]\ncommand = ["engine"]\n[server.draft]\nport = 30001\ncommand = ["engine"]\n[group.x]\nmembers = ["kimi"]\n'
    )
    outcome = await sglctl("update")
    assert outcome.code == 0
    assert outcome.out.startswith("  group.x: null -> ")
    assert outcome.out.endswith(" (live)\n")
    assert control.updates == [((), control.updates[0][1], True)]


ROUTER = '[router.{}]\nurl = "http://127.0.0.1:8000"\n'


async def test_routers_come_first_and_say_how_they_take_it(sglctl: Sglctl, control: FakeControl, file: Path) -> None:
    file.write_text(file.read_text() + ROUTER.format("front"))
    control.router_says = "nobody\x1b[31m listens"
    outcome = await sglctl("update")
    assert outcome.out.splitlines()[:2] == ["router front: added (nobody?[31m listens)", "draft: stopped"]
    control.router_says = ""
    file.write_text(file.read_text().replace(":8000", ":9000"))
    assert (await sglctl("update", "kimi")).out.splitlines()[0] != "router front: updated", "kimi alone was asked for"
    assert (await sglctl("update")).out.splitlines()[0] == "router front: updated"
    assert control.configuration.routers["front"].url == "http://127.0.0.1:9000"


async def test_a_router_that_is_gone_keeps_its_servers_with_live_alone(
    sglctl: Sglctl, control: FakeControl, file: Path
) -> None:
    file.write_text(file.read_text() + ROUTER.format("front"))
    await sglctl("update")
    file.write_text(file.read_text().split("[router")[0])
    kept = "router front: left as it is: the file has it no more, without --live its servers would leave it"
    assert (await sglctl("update", "--live")).out.splitlines()[0] == kept
    assert (await sglctl("update")).out.splitlines()[0] == "router front: removed"
    assert "No config updates" in (await sglctl("update")).out


async def test_a_rolling_update_of_all_brings_routers_into_force(
    sglctl: Sglctl, control: FakeControl, file: Path
) -> None:
    file.write_text(file.read_text() + ROUTER.format("front"))
    assert (await sglctl("update", "--rolling", "--no-wait", "kimi")).code == 0
    assert control.rerouted == []
    assert (await sglctl("update", "--rolling", "--no-wait")).out.startswith("router front: added\n")


async def test_nobody_is_restarted_when_the_routers_cannot_be_changed(
    sglctl: Sglctl, control: FakeControl, file: Path
) -> None:
    control.rerouting_fails = "this is a bug of the daemon: KeyError: 'front'"
    file.write_text(file.read_text() + ROUTER.format("front"))
    done = await sglctl("update", "--rolling", "--no-wait")
    assert (done.code, done.err) == (1, f"router: ERROR ({control.rerouting_fails})\n")
    assert control.roll is None


async def test_one_server_is_updated_and_the_others_wait(sglctl: Sglctl, control: FakeControl, file: Path) -> None:
    outcome = await sglctl("update", "kimi:*", "none", "--live")
    assert outcome.code == 4
    assert "none: ERROR (no such process)" in outcome.out
    assert [(names, free_only) for names, _, free_only in control.updates] == [(("kimi",), True)]


async def test_live_leaves_alone_what_costs_a_restart_and_says_what_else_would_be(
    sglctl: Sglctl, control: FakeControl, file: Path
) -> None:
    outcome = await sglctl("update", "--live", "draft", "kimi")
    assert outcome.out.splitlines()[:2] == [
        "draft: left as it is: the file has it no more, without --live it would be stopped and removed",
        "kimi: left as it is: it costs a restart",
    ]
    assert set(control.servers) == {"kimi", "draft"}


async def test_nothing_to_do_is_said(sglctl: Sglctl, control: FakeControl, file: Path) -> None:
    await sglctl("update")
    control.configuration = control.available()
    assert await sglctl("update") == (0, "No config updates to processes\n", "")


async def test_a_broken_file_is_told(sglctl: Sglctl, control: FakeControl, file: Path) -> None:
    file.write_text("[server.kimi]\ncomand = 1\n")
    outcome = await sglctl("update")
    assert (outcome.code, outcome.out, control.updates) == (1, "", [])
    assert "server.kimi.comand: unknown key" in outcome.err


async def test_add_and_remove(sglctl: Sglctl, file: Path) -> None:
    await sglctl("reread")
    assert await sglctl("add", "third") == (0, "third: added process group\n", "")
    assert (await sglctl("add", "third")).code == 1
    assert await sglctl("remove", "draft") == (0, "draft: removed process group\n", "")
    assert (await sglctl("remove", "draft")).code == 4
    outcome = await sglctl("remove", "kimi")
    assert (outcome.code, outcome.err) == (
        1,
        "kimi: ERROR (cannot remove kimi: it is still running; stop it first)\n",
    )


@pytest.mark.parametrize("name", ["kimi:*", "kimi:kimi", "kimi:"])
async def test_a_server_is_a_group_of_its_own_name(sglctl: Sglctl, control: FakeControl, name: str) -> None:
    assert (await sglctl("status", name)).out.startswith("kimi   ")
    assert (await sglctl("restart", name)).out == "kimi: restarted\n"
    assert (await sglctl("status", "kimi:other")).code == 4
