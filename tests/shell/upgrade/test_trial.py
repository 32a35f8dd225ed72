"""The code that an upgrade would execute is tried: what it says is told in one line, and bounded."""

import os
import sys
from pathlib import Path

import pytest

from supervisor.api.control import UpgradeRefusedError
from supervisor.shell.upgrade.books import Upgrades
from supervisor.shell.upgrade.trial import own_command, tried


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


async def nothing() -> str:
    return ""


async def test_without_a_command_there_is_no_upgrade() -> None:
    with pytest.raises(UpgradeRefusedError, match="runs without a configuration file"):
        await Upgrades().begin("me", nothing)


async def test_an_obstacle_is_asked_for_before_and_after_the_trial() -> None:
    asked: list[str] = []

    async def obstacle() -> str:
        asked.append("")
        return "the daemon ends" if len(asked) == 2 else ""

    upgrades = Upgrades(shell("echo 2.0.0"))
    with pytest.raises(UpgradeRefusedError, match="cannot upgrade: the daemon ends"):
        await upgrades.begin("me", obstacle)
    assert upgrades.next is None
    begun = await upgrades.begin("me", nothing)
    assert (begun.after, begun.upgrades) == ("2.0.0", 0)
    with pytest.raises(UpgradeRefusedError, match="another upgrade is under way"):
        await upgrades.begin("you", nothing)


def test_this_interpreter_could_be_found_again() -> None:
    assert own_command()[0] in (sys.executable, os.path.abspath(sys.argv[0]))
