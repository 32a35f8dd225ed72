"""The code that an upgrade would execute is tried: what it says is told in one line, and bounded."""

import errno
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from supervisor.api.app import build_app
from supervisor.api.control import UpgradeRefusedError
from supervisor.api.listeners import bind_tcp, bind_unix
from supervisor.api.serve import Binding
from supervisor.config import Config, ConfigFile, DaemonConfig
from supervisor.shell.upgrade.books import Prospect, Upgrades
from supervisor.shell.upgrade.handover import Handover
from supervisor.shell.upgrade.trial import own_command, tried
from tests.api.fake import OWNER, FakeControl


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", text, "sglsup"]


async def refusal(text: str, limit_s: float = 10.0) -> str:
    with pytest.raises(UpgradeRefusedError) as refused:
        await tried(shell(text), os.environ, limit_s)
    return str(refused.value).removeprefix("cannot upgrade: ").removesuffix("; the old code goes on")


async def test_it_is_asked_to_try_and_tells_its_version() -> None:
    assert await tried(shell('test "$1" = --try && echo 2.0.0'), os.environ) == "2.0.0"


async def test_it_speaks_to_nobody_in_our_name() -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "HOME": "/h"}
    assert await tried(shell('echo "$NOTIFY_SOCKET$WATCHDOG_USEC$HOME"'), environment) == "/h"


async def test_a_traceback_is_told_by_its_last_line() -> None:
    said = await refusal("printf 'Traceback (most recent call last):\\n  File x\\nImportError: no y\\n' >&2; exit 1")
    assert said == "the new code says: ImportError: no y"


async def test_a_refused_file_is_told_by_its_first_lines() -> None:
    said = await refusal("for n in 1 2 3 4; do echo cannot use k$n >&2; done; exit 2")
    assert said == "the new code says: cannot use k1; cannot use k2; cannot use k3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 3", "the new code ended with status 3 and without a word"),
        ("exit 0", "the new code ended with status 0 and without a word"),
        ("echo two words", "the new code ended with status 0 and without a word"),
    ],
)
async def test_who_tells_no_version_does_not_take_over(text: str, said: str) -> None:
    assert await refusal(text) == said


async def test_one_that_hangs_is_not_waited_for() -> None:
    assert await refusal("exec sleep 60", limit_s=0.2) == "it was not ready within 0.2 s"


async def test_one_that_is_not_there_cannot_be_tried() -> None:
    with pytest.raises(UpgradeRefusedError, match="cannot execute /nonexistent: No such file"):
        await tried(["/nonexistent"], os.environ)


# --- what is executed ------------------------------------------------------------------------------------------------


def test_a_script_is_executed_itself(tmp_path: Path) -> None:
    """The new one may name another interpreter."""
    script = tmp_path / "sglsup"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    original = ["/usr/bin/python3", str(script), "daemon", "-c", "x"]
    assert own_command(original, original[1:], "/usr/bin/python3") == (str(script), "daemon", "-c", "x")


def test_a_module_or_a_script_without_the_right_is_given_to_the_interpreter(tmp_path: Path) -> None:
    words = [str(tmp_path / "main.py"), "daemon"]
    as_module = ["python", "-X", "dev", "-m", "supervisor.main", "daemon"]
    assert own_command(as_module, words, "/p") == ("/p", "-X", "dev", "-m", "supervisor.main", "daemon")
    assert own_command(["python", words[0], "daemon"], words, "/p") == ("/p", words[0], "daemon")


def test_without_arguments_nothing_is_cut_off() -> None:
    assert own_command(["python", "-m", "supervisor.main"], ["main.py"], "/p") == ("/p", "-m", "supervisor.main")


# --- whether it may begin --------------------------------------------------------------------------------------------


async def nothing() -> Prospect:
    return Prospect()


async def test_without_a_command_there_is_no_upgrade() -> None:
    with pytest.raises(UpgradeRefusedError, match="runs without a configuration file"):
        await Upgrades().begin("me", nothing)


async def test_an_obstacle_is_asked_for_before_and_after_the_trial(tmp_path: Path) -> None:
    asked: list[str] = []

    async def obstacle() -> Prospect:
        asked.append("")
        return Prospect("the daemon ends" if len(asked) == 2 else "")

    upgrades = Upgrades(shell("echo 2.0.0"))
    with pytest.raises(UpgradeRefusedError, match="cannot upgrade: the daemon ends"):
        await upgrades.begin("me", obstacle)
    assert upgrades.next is None
    begun = await upgrades.begin("me", where(tmp_path))
    assert (begun.after, begun.upgrades) == ("2.0.0", 0)
    with pytest.raises(UpgradeRefusedError, match="another upgrade is under way"):
        await upgrades.begin("you", nothing)
    opened(upgrades)


def where(place: Path, *texts: str, listen: str = "") -> Callable[[], Awaitable[Prospect]]:
    """Sees a daemon in this place, and each of the texts in turn."""
    left = list(texts)
    daemon = DaemonConfig(socket=str(place / "s"), log_dir=str(place / "log"), listen=listen)

    async def look() -> Prospect:
        text = left.pop(0) if left else ""
        return Prospect(files=(ConfigFile("c", text),), config=Config(daemon=daemon))

    return look


def opened(upgrades: Upgrades) -> Handover:
    """What the next code gets; its sockets are closed."""
    upgrades.pack(())
    assert upgrades.next is not None
    for one in upgrades.next.sockets:
        os.close(one.descriptor)
    return upgrades.next


async def test_a_file_that_changes_during_the_trial_is_not_gone_by(tmp_path: Path) -> None:
    upgrades = Upgrades(shell("echo 2.0.0"))
    with pytest.raises(UpgradeRefusedError, match="the file was changed while the new code was tried"):
        await upgrades.begin("me", where(tmp_path, "a", "b"))
    assert upgrades.next is None
    await upgrades.begin("me", where(tmp_path, "b", "b"))
    assert opened(upgrades).files == (ConfigFile("c", "b"),), "what was tried is handed over, whatever comes later"


async def test_sockets_are_had_before_anything_is_given_up(tmp_path: Path) -> None:
    upgrades = Upgrades(shell("echo 2.0.0"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UpgradeRefusedError, match=r"cannot upgrade: cannot listen on .* the old code goes on"):
            await upgrades.begin("me", where(tmp_path, listen=listen))
    assert upgrades.next is None
    assert not (tmp_path / "s").exists(), "nothing is left of what was refused"
    await upgrades.begin("me", where(tmp_path, listen=listen))
    assert len(opened(upgrades).sockets) == 2


async def test_sockets_that_cannot_be_kept_are_a_refusal_and_not_the_daemons_end(tmp_path: Path) -> None:
    served = bind_unix(str(tmp_path / "served"))
    gone = OneTooMany(fileno=bind_tcp("127.0.0.1", 0).detach())
    upgrades = Upgrades(shell("echo 2.0.0"))
    upgrades.bound = [Binding(one, build_app(FakeControl(), OWNER)) for one in (served, gone)]
    look = where(tmp_path, listen=f"127.0.0.1:{gone.getsockname()[1]}")

    with pytest.raises(UpgradeRefusedError, match="cannot keep the sockets: Too many open files; the old code goes on"):
        await upgrades.begin("me", look)

    assert upgrades.bound[0].path == str(tmp_path / "served"), "its file is still removed at the end"
    assert (tmp_path / "served").exists()
    assert not (tmp_path / "s").exists(), "what was opened for the new code is given up"
    for one in (served, gone):
        one.close()


class OneTooMany(socket.socket):
    """There is no descriptor left for another one like it."""

    def dup(self) -> "OneTooMany":
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    with pytest.raises(UpgradeRefusedError, match=r"cannot make .*/log: .*; the old code goes on"):
        await Upgrades(shell("echo 2.0.0")).begin("me", where(tmp_path))


async def test_a_folder_whose_disk_hangs_is_refused_and_an_end_meanwhile_stays_an_end(tmp_path: Path) -> None:
    answers = threading.Event()

    def make(_: str) -> None:
        assert answers.wait(30)

    upgrades = Upgrades(shell("echo 2.0.0"), make=make, folder_limit_s=0.1)
    try:
        for _ in range(2):  # the first one has not left anything under way
            with pytest.raises(UpgradeRefusedError, match=r"cannot make .*/log: its disk has not answered"):
                await upgrades.begin("me", where(tmp_path))
    finally:
        answers.set()
    assert upgrades.next is None


def test_this_interpreter_could_be_found_again() -> None:
    assert own_command()[0] in (sys.executable, os.path.abspath(sys.argv[0]))
