"""What systemd is asked to hold for the next daemon, and what a daemon makes of what it gets back."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.edge.fdstore import DescriptorStore, left_behind, passed
from supervisor.edge.notify import Notifier
from supervisor.edge.process import exits
from tests.edge.firstprocess import Systemd

MARKER = "kimi:3:6f1d-0123456789abcdef"
NAME = "leader/kimi/3/6f1d-0123456789abcdef"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    one = Systemd(tmp_path)
    yield one
    one.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for one in ends:
        with contextlib.suppress(OSError):
            os.close(one)


def store(systemd: Systemd, received: dict[str, int] | None = None) -> DescriptorStore:
    return DescriptorStore(Notifier({"NOTIFY_SOCKET": systemd.path}).send, received)


def is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


def test_what_is_kept_is_held_until_it_is_forgotten(systemd: Systemd, pipe: tuple[int, int]) -> None:
    ours = store(systemd)

    ours.keep(MARKER, pipe[0])
    assert systemd.names() == [NAME]
    os.close(pipe[0])
    assert os.readlink(f"/proc/self/fd/{systemd.held[0][1]}") == os.readlink(f"/proc/self/fd/{pipe[1]}")

    ours.forget(MARKER)
    assert systemd.names() == []


def test_what_systemd_has_no_room_for_is_not_held(tmp_path: Path, pipe: tuple[int, int]) -> None:
    small = Systemd(tmp_path, room=1)
    ours = store(small)
    ours.keep("a:1:x", pipe[0])
    ours.keep("b:1:y", pipe[1])
    assert small.names() == ["leader/a/1/x"]
    small.close()


def test_a_leader_that_ends_is_no_reason_to_drop_it(systemd: Systemd, pipe: tuple[int, int]) -> None:
    store(systemd).keep(MARKER, pipe[0])

    assert systemd.names() == [NAME]
    assert systemd.polled == [], "without FDPOLL=0 systemd lets go of what hangs up"


def test_it_is_held_once_however_often_it_is_kept(systemd: Systemd, pipe: tuple[int, int]) -> None:
    ours = store(systemd)
    for _ in range(3):
        ours.keep(MARKER, pipe[0])
    assert systemd.names() == [NAME]


def test_after_an_upgrade_in_place_it_is_held_once_still(systemd: Systemd, pipe: tuple[int, int]) -> None:
    """Other code in the same process is passed nothing and does not know what systemd holds."""
    store(systemd).keep(MARKER, pipe[0])

    store(systemd).keep(MARKER, pipe[0])

    assert systemd.names() == [NAME]


def test_what_the_code_before_has_left_is_dropped_as_well(systemd: Systemd, pipe: tuple[int, int]) -> None:
    store(systemd).keep(MARKER, pipe[0])

    store(systemd).forget(MARKER)

    assert systemd.names() == []


def test_others_are_left_alone(systemd: Systemd, pipe: tuple[int, int]) -> None:
    ours = store(systemd)
    ours.keep("draft:1:aa", pipe[0])
    ours.keep("kimi:1:bb", pipe[1])

    ours.forget("draft:1:aa")

    assert systemd.names() == ["leader/kimi/1/bb"]


def test_a_start_keeps_what_lives_and_drops_the_rest(systemd: Systemd) -> None:
    before = store(systemd)
    ends = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for key, descriptor in zip(("a:1:x", "b:2:y", "c:3:z"), ends, strict=True):
        before.keep(key, descriptor)
    assert len(systemd.names()) == 3

    after = store(systemd, dict(zip(("a:1:x", "b:2:y", "c:3:z"), ends, strict=True)))
    assert after.received("b:2:y") == ends[1]
    assert after.received("nobody") is None
    after.settle(["b:2:y", "never seen"])

    assert systemd.names() == ["leader/b/2/y"]
    assert not any(map(is_open, ends))
    assert after.received("b:2:y") is None
    after.keep("b:2:y", 0)  # it is held already, and the held one is older
    assert systemd.names() == ["leader/b/2/y"]
    after.settle([])  # nothing is received any more
    assert systemd.names() == ["leader/b/2/y"]


def test_where_no_systemd_listens_nothing_happens(pipe: tuple[int, int]) -> None:
    ours = DescriptorStore(Notifier({}).send)
    ours.keep(MARKER, pipe[0])
    ours.forget(MARKER)
    ours.settle([])
    assert left_behind({}, os.getpid()) == {}


def test_a_systemd_that_does_not_listen_costs_the_status_alone(tmp_path: Path, pipe: tuple[int, int]) -> None:
    ours = DescriptorStore(Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send)
    ours.keep(MARKER, pipe[0])
    ours.forget(MARKER)


def test_what_was_left_comes_back_under_its_key_beside_sockets() -> None:
    environment = {"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": f"sglang-supervisor.socket:{NAME}:other"}

    assert passed(environment, 7) == {4: MARKER}
    assert passed(environment, 8) == {}, "it is another process's"
    assert passed({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, 7) == {}


def test_nothing_that_we_start_inherits_it() -> None:
    """In a process of its own, whose first descriptors are as systemd leaves them."""
    script = f"""
import os
from supervisor.edge.fdstore import left_behind
found = left_behind(os.environ | {{"LISTEN_PID": str(os.getpid())}}, os.getpid())
print(found, os.get_inheritable(3), os.get_inheritable(4), flush=True)
assert found == {{{MARKER!r}: 5}} and not os.path.exists("/proc/self/fd/4")
"""
    names = f"supervisor.socket:{NAME}:{NAME}:leader/gone/1/x"
    script = script.replace(", os.get_inheritable(4)", ", os.get_inheritable(5)")
    command = f'exec 3</dev/null 4</dev/null 5</dev/null; exec "{sys.executable}" -c "$0"'
    ran = subprocess.run(
        ["bash", "-c", command, script],
        env={**os.environ, "LISTEN_FDNAMES": names, "LISTEN_FDS": "4"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.stdout, ran.stderr) == (f"{{'{MARKER}': 5}} True False\n", "")


def test_a_held_pidfd_tells_how_a_stranger_ended(systemd: Systemd) -> None:
    """The whole way: whoever has started and reaped the process has no part in it any more."""
    child = subprocess.Popen(["sh", "-c", "read line; exit 41"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(child.pid)
    store(systemd).keep(MARKER, pidfd)
    assert systemd.names() == [NAME]
    os.close(pidfd)

    child.communicate(b"go\n", timeout=30)

    assert systemd.names() == [NAME]
    told = exits.told_by_kernel(systemd.held[0][1])
    major, minor = map(int, os.uname().release.split(".")[:2])
    assert told.code == (41 if (major, minor) >= (6, 15) else None)
