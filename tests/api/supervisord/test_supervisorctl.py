"""The real supervisorctl 4.3 against the real supervisord and against us: the same lines, the same exit codes.

Needs Supervisor in an environment of its own, where `make bench` installs it; skipped without.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from supervisor.config import load
from tests.api.fake import FakeControl, served, snapshot

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
BIN = CACHE / "sglang-supervisor" / "peers" / "supervisor-4.3.0" / "bin"

pytestmark = pytest.mark.skipif(
    not (BIN / "supervisorctl").exists(), reason="the peer Supervisor 4.3.0 is not installed (make bench installs it)"
)

CONFIG = """
[unix_http_server]
file={folder}/real
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[program:kimi]
command=sh -c 'echo hello; echo world; exec sleep 1000'
autostart=true
startsecs=0
[program:draft]
command=sleep 1000
autostart=false
startsecs=0
stdout_logfile=NONE
"""


class Outcome(NamedTuple):
    """What supervisorctl printed and how it ended."""

    code: int
    out: str


def supervisorctl(socket: str, *arguments: str) -> Outcome:
    command = [str(BIN / "supervisorctl"), "-s", f"unix://{socket}", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return Outcome(ran.returncode, ran.stdout)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[str]:
    """The socket of a real supervisord with kimi running and draft stopped."""
    (tmp_path / "supervisord.conf").write_text(CONFIG.format(folder=tmp_path))
    command = [str(BIN / "supervisord"), "-c", str(tmp_path / "supervisord.conf")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "entered RUNNING state" in line or "exited" in line:
                break
        yield str(tmp_path / "real")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.fixture
def control(tmp_path: Path) -> FakeControl:
    (tmp_path / "kimi.log").write_text("hello\nworld\n")
    kimi = snapshot("kimi", "running", log_path=str(tmp_path / "kimi.log"))
    made = FakeControl(snapshot("draft"), kimi)
    file = tmp_path / "own.toml"
    places = f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n'
    file.write_text(
        places
        + '[server.kimi]\ncommand = ["engine"]\n[server.draft]\nport = 30001\ncommand = ["engine"]\nautostart = false\n'
    )
    made.config_path, made.configuration = str(file), load(file)
    return made


SEQUENCES = [
    ["status"],
    ["status kimi"],
    ["status draft"],
    ["status kimi:*"],
    ["status none"],
    ["status none:*"],
    ["pid"],
    ["pid kimi"],
    ["pid draft"],
    ["pid all"],
    ["pid none"],
    ["start draft", "start draft"],
    ["start draft:*"],
    ["start none"],
    ["start none:*"],
    ["start all", "stop all"],
    ["start"],
    ["stop kimi", "stop kimi", "status kimi"],
    ["stop draft"],
    ["stop none"],
    ["stop kimi:*"],
    ["stop kimi draft"],
    ["restart kimi"],
    ["restart draft"],
    ["restart none"],
    ["restart all"],
    ["signal CONT kimi"],
    ["signal CONT draft"],
    ["signal CONT none"],
    ["signal NOPE kimi"],
    ["signal CONT all"],
    ["signal CONT kimi:*"],
    ["tail kimi"],
    ["tail -6 kimi"],
    ["tail kimi stdin"],
    ["tail draft"],
    ["tail none"],
    ["tail"],
    ["clear kimi", "tail kimi"],
    ["clear none"],
    ["clear all"],
    ["fg draft"],
    ["fg none"],
    ["reread"],
    ["update"],
    ["update none"],
    ["reread", "add kimi"],
    ["add none"],
    ["add"],
    ["remove draft", "status draft"],
    ["remove kimi"],
    ["remove none"],
    ["remove"],
    ["remove draft", "add draft", "status draft"],
    ["nonsense"],
    ["shutdown"],
]


@pytest.mark.slow  # starts a supervisord for each row
@pytest.mark.parametrize("sequence", SEQUENCES, ids="; ".join)
async def test_supervisorctl_sees_no_difference(
    real: str, control: FakeControl, tmp_path: Path, sequence: list[str]
) -> None:
    async with served(control, tmp_path) as ours:
        for verb in sequence:
            theirs = await asyncio.to_thread(supervisorctl, real, *verb.split())
            mine = await asyncio.to_thread(supervisorctl, ours, *verb.split())
            assert mine.code == theirs.code, verb
            assert plain(mine.out) == plain(theirs.out), verb


def plain(out: str) -> list[str]:
    """Without what must differ: numbers of processes, times, the socket; a set of lines for several programs."""
    text = re.sub(r"pid \d+, uptime \d+:\d\d:\d\d", "pid N, uptime T", out)
    text = re.sub(r"\w{3} \d\d \d\d:\d\d [AP]M|Not started", "STOPPED AT", text)
    text = re.sub(r"^\d+$", "N", text, flags=re.M)
    return sorted(text.splitlines())


@pytest.mark.parametrize(
    ("verb", "code", "out"),
    [
        ("version", 0, "0.1.0\n"),
        ("maintail", 1, "supervisord: ERROR (no log file)\n"),
        ("tail kimi stderr", 1, "kimi: ERROR (no log file)\n"),
    ],
)
async def test_what_is_knowingly_different(
    control: FakeControl, tmp_path: Path, verb: str, code: int, out: str
) -> None:
    """Listed in docs/supervisorctl.md."""
    async with served(control, tmp_path) as ours:
        outcome = await asyncio.to_thread(supervisorctl, ours, *verb.split())
        assert outcome.code == code
        assert outcome.out == out


@pytest.mark.parametrize(
    ("verbs", "out"),
    [
        (["reread"], ["draft: disappeared", "kimi: changed", "third: available"]),
        (["reread", "add third"], ["third: added process group"]),
        (["remove draft"], ["draft: removed process group"]),
        (["remove kimi"], ["ERROR: process/group still running: kimi"]),
        (["add kimi"], ["ERROR: process group already active"]),
        (["add none"], ["ERROR: no such process/group: none"]),
        (["remove none"], ["ERROR: no such process/group: none"]),
        (
            ["update"],
            [
                "draft: stopped",
                "draft: removed process group",
                "kimi: stopped",
                "kimi: updated process group",
                "third: added process group",
            ],
        ),
        (["update none"], ["ERROR: no such group: none"]),
    ],
)
async def test_the_file_is_brought_into_force(
    control: FakeControl, tmp_path: Path, verbs: list[str], out: list[str]
) -> None:
    """supervisord's own lines; the file has changed kimi, taken draft away and brought third."""
    place = f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n'
    file = tmp_path / "c.toml"
    file.write_text(place + '[server.kimi]\ncommand = ["engine"]\n[server.draft]\nport = 30001\ncommand = ["engine"]\n')
    control.config_path, control.configuration = str(file), load(file)
    file.write_text(
        place + '[server.kimi]\ncommand = ["engine", "-v"]\n[server.third]\nport = 30002\ncommand = ["engine"]\n'
    )
    async with served(control, tmp_path) as ours:
        for verb in verbs:
            outcome = await asyncio.to_thread(supervisorctl, ours, *verb.split())
    assert sorted(outcome.out.splitlines()) == sorted(out)


async def test_avail(control: FakeControl, tmp_path: Path) -> None:
    async with served(control, tmp_path) as ours:
        outcome = await asyncio.to_thread(supervisorctl, ours, "avail")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "draft                            in use    manual    999:999",
        "kimi                             in use    auto      999:999",
    ]


async def test_a_loading_server_is_starting(control: FakeControl, tmp_path: Path) -> None:
    async with served(control, tmp_path) as ours:
        assert await asyncio.to_thread(supervisorctl, ours, "start", "draft") == (0, "draft: started\n")
        assert await asyncio.to_thread(supervisorctl, ours, "status", "draft") == (
            0,
            "draft                            STARTING  starting for 1 m\n",
        )


async def test_tail_is_followed(control: FakeControl, tmp_path: Path) -> None:
    async with served(control, tmp_path) as ours:
        process = await asyncio.create_subprocess_exec(
            *(str(BIN / "supervisorctl"), "-s", f"unix://{ours}", "tail", "-f", "kimi"), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"==> Press Ctrl-C to exit <==\n"
            assert await process.stdout.readline() == b"hello\n"
            assert await process.stdout.readline() == b"world\n"
            with (tmp_path / "kimi.log").open("a") as writer:
                writer.write("more\n")
            assert await process.stdout.readline() == b"more\n"
        process.send_signal(signal.SIGINT)
        await process.communicate()
