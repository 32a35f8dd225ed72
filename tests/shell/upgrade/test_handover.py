"""What one code leaves to the next one in the same process: written, understood, refused, and the exec that fails."""

import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from supervisor.api.app import build_app
from supervisor.api.control import EventRecord
from supervisor.api.listeners import bind_tcp, bind_unix
from supervisor.api.serve import Binding
from supervisor.config import DaemonConfig
from supervisor.shell.sockets import ListenProblem, bindings, open_beforehand
from supervisor.shell.upgrade.handover import HANDOVER_NAME, Handover, Passed, execute, received
from tests.api.fake import OWNER, FakeControl

EVENT = EventRecord(7, 1.5, "kimi", "lifecycle", "starting", "running", "healthy", 1)
MEMORY = "sglsup-handover"


def left(handover: Handover, *descriptors: int, pid: int = 0) -> dict[str, str]:
    """The environment that the code before would have left."""
    memory = os.memfd_create(MEMORY)
    os.write(memory, msgspec.json.encode(handover))
    return {HANDOVER_NAME: f"{pid or os.getpid()}:{memory}:{','.join(map(str, descriptors))}", "HOME": "/"}


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with bind_unix(str(tmp_path / "s")) as one:
        yield one


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_what_was_left_is_taken_once(listener: socket.socket) -> None:
    passed = os.dup(listener.fileno())
    os.set_inheritable(passed, True)
    handover = Handover(1, "0.1.0", "uid 0", "", (Passed(passed, owned=True),), (EVENT,))
    environment = left(handover, passed)

    assert received(environment) == handover
    assert environment == {"HOME": "/"}, "no child is told of it"
    assert not os.get_inheritable(passed)
    assert received(environment) is None
    os.close(passed)


def test_an_ordinary_start_is_left_nothing() -> None:
    assert received({}) is None
    assert received({HANDOVER_NAME: ""}) is None
    assert received({HANDOVER_NAME: "1:2:3"}) is None, "it was left to another process"
    assert received({HANDOVER_NAME: f"{os.getpid()}:x:"}) is None


def test_what_cannot_be_understood_is_closed(listener: socket.socket) -> None:
    """A listener that nobody serves would be taken for another daemon."""
    passed = os.dup(listener.fileno())
    memory = os.memfd_create(MEMORY)
    os.write(memory, b"{")

    found = received({HANDOVER_NAME: f"{os.getpid()}:{memory}:{passed},900"})

    assert found == Handover(number=1)
    assert not is_open(passed)


def test_a_descriptor_that_is_something_else_is_no_memory(tmp_path: Path) -> None:
    file = os.open(tmp_path / "x", os.O_CREAT | os.O_RDWR)
    assert received({HANDOVER_NAME: f"{os.getpid()}:{file}:"}) == Handover(number=1)
    os.close(file)


def test_a_descriptor_that_does_not_listen_is_not_served(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    passed = os.dup(ours.fileno())
    handover = Handover(1, sockets=(Passed(passed, owned=True), Passed(901, owned=True)))

    found = received(left(handover, passed, 901))

    assert found is not None
    assert found.sockets == ()
    assert not is_open(passed)
    ours.close()
    theirs.close()


def test_fields_of_another_version_are_no_obstacle() -> None:
    memory = os.memfd_create(MEMORY)
    os.write(memory, b'{"number": 3, "before": "2.0", "news": [1]}')
    assert received({HANDOVER_NAME: f"{os.getpid()}:{memory}:"}) == Handover(3, "2.0")


def test_the_next_code_gets_descriptors_events_and_a_clean_environment(tmp_path: Path, listener: socket.socket) -> None:
    """A child executes in the place of the daemon: pytest has to go on."""
    passed = os.dup(listener.fileno())
    handover = Handover(2, "0.1.0", "uid 0", "", (Passed(passed, owned=True),), (EVENT,))
    tell = (
        "import os; from supervisor.shell.upgrade.handover import received; found = received(os.environ); "
        "print(found.number, found.before, len(found.sockets), found.events[0].server, 'LISTEN_FDS' in os.environ)"
    )
    command = [sys.executable, "-c", tell]
    environment = {**os.environ, "LISTEN_PID": "1", "LISTEN_FDS": "2"}
    reading, writing = os.pipe()
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", _EXECUTE, repr(command), msgspec.json.encode(handover).decode()],
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_DUP2, passed, passed)],
    )
    os.close(writing)
    with open(reading, encoding="utf-8") as said:
        assert said.read() == "2 0.1.0 1 kimi False\n"
    assert os.waitpid(child, 0)[1] == 0
    os.close(passed)


_EXECUTE = """
import ast, os, sys
import msgspec
from supervisor.shell.upgrade.handover import Handover, execute
execute(ast.literal_eval(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Handover), os.environ)
"""


def test_an_exec_that_fails_says_why_and_keeps_the_sockets(tmp_path: Path, listener: socket.socket) -> None:
    passed = os.dup(listener.fileno())
    handover = Handover(1, "0.1.0", sockets=(Passed(passed, owned=True),))
    missing = str(tmp_path / "sglsup")

    failed = execute([missing, "daemon"], handover, os.environ)

    assert failed.problem == f"cannot execute {missing}: No such file or directory; the old code goes on"
    assert msgspec.structs.replace(failed, problem="") == handover
    assert not os.get_inheritable(passed)
    os.close(passed)


_UNHEARD = """
import os, signal
from supervisor.shell.upgrade.handover import Unheard
unheard = Unheard()
unheard.listen()
os.kill(os.getpid(), signal.SIGTERM)
unheard.hold()
assert signal.SIGTERM in signal.sigpending(), "the kernel keeps it across an exec"
os.kill(os.getpid(), signal.SIGHUP)
unheard.listen()
assert set(unheard.take()) == {signal.SIGTERM, signal.SIGHUP}
assert unheard.take() == []
"""


def test_signals_are_kept_while_nobody_listens() -> None:
    """In a process of its own, without threads as the daemon is by then; and what it blocks, no other test inherits."""
    subprocess.run([sys.executable, "-c", _UNHEARD], check=True, timeout=60)


def test_a_handover_that_cannot_be_written_leaves_the_old_code(tmp_path: Path) -> None:
    """Whatever the kernel refuses on the way: a descriptor that is gone, one more descriptor."""
    handover = Handover(1, "0.1.0", sockets=(Passed(901, owned=True),))
    failed = execute([sys.executable, "-c", ""], handover, os.environ)
    assert failed.problem == "cannot hand over to the new code: Bad file descriptor; the old code goes on"

    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        failed = execute([sys.executable, "-c", ""], Handover(1), os.environ)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert failed.problem == "cannot hand over to the new code: Too many open files; the old code goes on"


# --- who serves them -------------------------------------------------------------------------------------------------


def test_a_passed_socket_is_served_and_not_bound_again(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    passed = bind_unix(path)
    inode = os.stat(path).st_ino

    (bound,) = bindings(DaemonConfig(socket=path, listen=""), FakeControl(), {}, handed(passed))

    assert (bound.path, bound.inode, bound.owned) == (path, inode, True)
    kept = bound.listener.dup()
    bound.leave_file()
    bound.listener.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)  # it waits in the queue of the one that is kept
    assert bound.path == "", "its end does not remove the file"
    kept.close()


def test_sockets_follow_the_configuration(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    here, there = bind_tcp("127.0.0.1", 0), bind_unix(old)
    port = here.getsockname()[1]

    bound = bindings(DaemonConfig(socket=new, listen=f"127.0.0.1:{port}"), FakeControl(), {}, handed(here, there))

    assert {one.listener.getsockname() for one in bound} == {("127.0.0.1", port), new}
    assert not Path(old).exists()
    assert stat.S_ISSOCK(os.stat(new).st_mode)
    for one in bound:
        one.listener.close()


def test_the_next_codes_sockets_are_opened_beside_those_that_are_served(tmp_path: Path) -> None:
    here, new = bind_unix(str(tmp_path / "s")), str(tmp_path / "new")
    daemon = DaemonConfig(socket=str(tmp_path / "s"), listen="")
    bound = [Binding(here, build_app(FakeControl(), OWNER))]

    assert open_beforehand(daemon, bound) == []
    more = open_beforehand(msgspec.structs.replace(daemon, socket=new, listen="127.0.0.1:0"), bound)
    assert {one.family for one in more} == {socket.AF_UNIX, socket.AF_INET}
    for one in (here, *more):
        one.close()


def test_our_own_port_at_another_address_is_told_as_ours(tmp_path: Path) -> None:
    ours, local = bind_tcp("127.0.0.1", 0), bind_unix(str(tmp_path / "s"))
    port = ours.getsockname()[1]
    bound = [Binding(one, build_app(FakeControl(), OWNER)) for one in (ours, local)]
    daemon = DaemonConfig(socket=str(tmp_path / "s"), listen=f"0.0.0.0:{port}")

    with pytest.raises(ListenProblem, match=f"cannot listen on 0.0.0.0:{port}: this daemon has that port"):
        open_beforehand(daemon, bound)
    for one in (ours, local):
        one.close()


def test_systemds_sockets_stay_systemds(tmp_path: Path) -> None:
    """Their numbers in the environment are those of the first start."""
    path = str(tmp_path / "s")
    passed = bind_unix(path)
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "9"}
    handover = Handover(1, sockets=(Passed(passed.detach(), owned=False),))

    (bound,) = bindings(DaemonConfig(socket="/elsewhere", listen=""), FakeControl(), environment, handover)

    assert (bound.path, bound.owned) == ("", False)
    bound.listener.close()


def handed(*sockets: socket.socket) -> Handover:
    return Handover(1, sockets=tuple(Passed(one.detach(), owned=True) for one in sockets))


def test_the_package_can_be_tried(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("")
    command = [sys.executable, "-m", "supervisor.main", "daemon", "-c", str(config), "--try"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip().count("."), done.stderr) == (0, 2, "")
