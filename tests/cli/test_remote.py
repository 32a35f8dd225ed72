"""Another host's daemon is reached through ssh; here a script stands in for ssh and runs the command locally."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.fake import FakeControl, served, snapshot

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "supervisor.cli.main"]


@pytest.fixture
def environment(tmp_path: Path, control: FakeControl, socket_path: str) -> dict[str, str]:
    """ssh that logs its arguments, knows the hosts `one` and `two`, and refuses all others."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sglctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m supervisor.cli.main "$@"\n')
    script = f"""#!/bin/sh
printf '%s\\n' "$*" >> {tmp_path}/calls
for last; do :; done
case "$*" in
  *ssh://one*) export SGLSUP_SOCKET={socket_path};;
  *ssh://two*) export SGLSUP_SOCKET={tmp_path}/second/s;;
  *ssh://dead*) export SGLSUP_SOCKET={tmp_path}/none;;
  *) echo "ssh: cannot resolve" >&2; exit 255;;
esac
exec sh -c "$last"
"""
    (tmp_path / "bin" / "ssh").write_text(script)
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}


async def sglctl(environment: dict[str, str], *arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_verb_runs_on_the_host(environment: dict[str, str], control: FakeControl) -> None:
    assert await sglctl(environment, "-H", "ssh://one", "pid", "kimi") == (0, "4242\n", "")
    assert await sglctl(environment, "-H", "ssh://one", "start", "draft") == (0, "draft: started\n", "")
    assert [name for name, _ in control.requests] == ["draft"]


async def test_ssh_is_asked_safely(environment: dict[str, str], tmp_path: Path) -> None:
    await sglctl(environment, "-s", "/run/a b", "-H", "ssh://one", "pid")
    await sglctl(environment, "-H", "-oProxyCommand=evil", "pid")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "-T -o BatchMode=yes -- ssh://one sglctl -s '/run/a b' connect"
    assert all(" -- " in call for call in calls)


async def test_a_host_that_cannot_be_reached_is_4(environment: dict[str, str]) -> None:
    code, out, err = await sglctl(environment, "-H", "ssh://nowhere", "status")
    assert (code, out) == (4, "")
    first, second = err.splitlines()
    assert first == "ssh: cannot resolve"
    assert re.fullmatch(r"cannot (talk to|reach) the daemon at ssh://nowhere: .+", second)


async def test_no_daemon_on_the_host_is_4(environment: dict[str, str], tmp_path: Path) -> None:
    code, _, err = await sglctl(environment, "-H", "ssh://dead", "status")
    assert code == 4
    assert f"cannot reach the daemon at {tmp_path}/none: No such file or directory" in err


async def test_no_ssh_is_4(environment: dict[str, str]) -> None:
    code, _, err = await sglctl({**environment, "SGLCTL_SSH": "/nonexistent/ssh"}, "-H", "ssh://one", "status")
    assert code == 4
    assert err == "cannot reach the daemon at ssh://one: No such file or directory\n"


async def test_several_hosts_are_one_table(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    hosts = ("-H", "ssh://one", "-H", "ssh://two")
    async with served(FakeControl(snapshot("kimi", "fatal")), tmp_path / "second"):
        code, out, err = await sglctl(environment, *hosts, "status")
        assert (code, err) == (3, "")
        assert [line.split()[:2] for line in out.splitlines()] == [
            ["one/kimi", "RUNNING"],
            ["one/draft", "STOPPED"],
            ["two/kimi", "FATAL"],
        ]
        assert (await sglctl(environment, *hosts, "status", "draft", "none"))[0] == 4
        body = json.loads((await sglctl(environment, *hosts, "status", "--json"))[1])
        assert [row["host"] for row in body["servers"]] == ["ssh://one", "ssh://one", "ssh://two"]


async def test_one_dead_host_does_not_hide_the_others(environment: dict[str, str]) -> None:
    code, out, err = await sglctl(environment, "-H", "ssh://nowhere", "-H", "ssh://one", "status", "kimi")
    assert code == 4
    assert out.startswith("one/kimi ")
    assert "ssh://nowhere: cannot " in err


async def test_several_hosts_are_for_status_alone(environment: dict[str, str], control: FakeControl) -> None:
    code, _, err = await sglctl(environment, "-H", "ssh://one", "-H", "ssh://two", "stop", "all")
    assert (code, err) == (2, "error: several hosts are for status alone\n")
    assert control.requests == []


async def test_waiting_over_ssh_returns_and_leaves_nothing(environment: dict[str, str], control: FakeControl) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "-H", "ssh://one", "wait", "draft"), stdout=subprocess.PIPE, env=environment
    )
    await control.waiters(1)
    await control.put(snapshot("draft", "running"))
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"draft: healthy\n")
    await control.waiters(0)
