"""upgrade: waits for the next code, says which version it is, or why the old one goes on."""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
from pathlib import Path

from supervisor.cli.connection import Client
from supervisor.cli.upgrade import upgrade
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


async def test_a_daemon_that_was_started_anew_is_no_upgrade(sglctl: Sglctl, control: FakeControl) -> None:
    before, control.pid_after = control.pid, control.pid + 1
    said = f"another one has been started, pid {control.pid_after}; see the log for why"
    done = await sglctl("upgrade")
    assert done == (1, "", f"ERROR (the daemon, pid {before}, has ended in the upgrade: {said})\n")


async def test_a_daemon_that_dies_is_not_waited_for(tmp_path: Path) -> None:
    """A process that answers twice, and is killed: nobody has waited for it yet, as when its parent is slow."""
    path = str(tmp_path / "s")
    with subprocess.Popen([sys.executable, "-c", _DIES, path], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        client, out, err = Client(path), io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = upgrade(client, argparse.Namespace(timeout=60.0))
    said = "its servers go on alone until one is started; see its log for why"
    assert err.getvalue() == f"ERROR (the daemon, pid {daemon.pid}, has ended in the upgrade: {said})\n"
    assert (code, out.getvalue()) == (1, "")


_DIES = """
import json, os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
for answer in ({"pid": os.getpid()}, {"before": "1", "after": "2", "upgrades": 0}):
    connection, _ = listener.accept()
    connection.recv(65536)
    body = json.dumps(answer).encode()
    head = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n"
    connection.sendall(head % len(body) + body)
    connection.close()
"""


async def test_it_is_refused_over_several_hosts_with_a_wrong_time_and_without_a_daemon(sglctl: Sglctl) -> None:
    hosts = ("-H", "ssh://a", "-H", "ssh://b")
    assert await sglctl(*hosts, "upgrade") == (2, "", "error: several hosts are for status alone\n")
    assert (await sglctl("upgrade", "--timeout", "soon")).code == 2
    assert (await sglctl("upgrade", socket="/nonexistent")).code == 4
