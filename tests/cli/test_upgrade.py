"""upgrade: waits for the next code, says which version it is, or why the old one goes on."""

from __future__ import annotations

from tests.api.fake import FakeControl
from tests.cli.conftest import Sglctl


async def test_it_says_from_which_version_to_which(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("upgrade") == (0, "upgraded: 0.1.0 -> 0.2.0\n", "")
    assert (await sglctl("version")).out == "0.2.0\n"
    assert [(server, command) for server, command, _ in control.audited] == [("", "upgrade")]


async def test_a_refusal_is_one_line(sglctl: Sglctl, control: FakeControl) -> None:
    control.refusal = "cannot upgrade: the new code says: no; the old code goes on"
    assert await sglctl("upgrade") == (1, "", "error: cannot upgrade: the new code says: no; the old code goes on\n")


async def test_an_exec_that_failed_is_an_error(sglctl: Sglctl, control: FakeControl) -> None:
    control.upgrade_problem = "cannot execute /opt/sglsup: No such file or directory; the old code goes on"
    done = await sglctl("upgrade")
    assert done == (1, "", f"ERROR ({control.upgrade_problem})\n")


async def test_a_new_code_that_does_not_answer_is_a_timeout(sglctl: Sglctl, control: FakeControl) -> None:
    control.upgrades_shown = 0
    done = await sglctl("upgrade", "--timeout", "0.3s")
    assert done == (5, "", "ERROR (the new code, 0.2.0, does not answer within 0.3 s)\n")


async def test_it_is_refused_over_several_hosts_and_unknown_options(sglctl: Sglctl) -> None:
    assert (await sglctl("upgrade", "--timeout", "soon")).code == 2
    assert (await sglctl("upgrade", socket="/nonexistent")).code == 4
