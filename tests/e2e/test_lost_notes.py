"""What the daemon keeps in its state directory is deleted or damaged: still no second copy, and no second daemon."""

import pytest

from tests.e2e.host import Host, until

both_ways = pytest.mark.parametrize("cgroups", ["auto", "off"], indirect=True)


@both_ways
@pytest.mark.parametrize("damage", [None, b"{}"], ids=["lost", "damaged"])
@pytest.mark.parametrize("record", ["kept", "lost"])
def test_a_server_whose_tree_is_noted_nowhere_is_ended_before_it_is_started_again(
    host: Host, damage: bytes | None, record: str
) -> None:
    host.fake("kimi", "--tp", "2", "--scenario", "stall:phase=weights", sole=True)
    daemon = host.start()
    loading = host.wait_for("kimi", "phase", "weights")
    before = host.processes("kimi", loading["attempt"])
    assert before
    daemon.kill()
    note = host.state_dir / "trees" / "kimi.json"
    note.unlink()
    if damage is not None:
        note.write_bytes(damage)
    if record == "lost":
        (host.state_dir / "servers" / "kimi.json").unlink()

    again = host.start()

    assert again.wait_until_said("leftover killed")["processes"] >= len(before)
    host.wait_for("kimi", "phase", "weights")
    assert not before.keys() & host.processes("kimi").keys()
    assert host.collisions("kimi") == ""


def test_another_daemons_server_of_the_same_name_is_let_be(host: Host) -> None:
    """Two daemons on one host: the marker tells whose state directory a server belongs to."""
    with Host(cgroups="off") as other:
        other.fake("kimi", sole=True)
        first = other.start()
        other.wait_for("kimi", "lifecycle", "running")
        before = other.processes("kimi")
        first.kill()  # its server waits for its next daemon, and has no living one to vouch for it
        host.fake("kimi", sole=True)
        host.start()
        host.wait_for("kimi", "lifecycle", "running")
        assert other.processes("kimi").keys() == before.keys()
        other.start()
        until(lambda: other.show("kimi")["lifecycle"]["value"] == "running", 30, "it is adopted")
        assert other.processes("kimi").keys() == before.keys()


def test_a_deleted_lock_file_lets_no_second_daemon_in(host: Host) -> None:
    host.fake("kimi", sole=True)
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    (host.state_dir / "daemon.lock").unlink()
    second = host.refused()
    assert second.returncode == 2
    assert f"cannot use {host.state_dir}: the daemon with pid unknown uses it; nothing was started" in second.stderr
    assert host.show("kimi")["lifecycle"]["value"] == "running"
    assert host.collisions("kimi") == ""


def test_the_second_daemon_is_told_who_is_the_first(host: Host) -> None:
    first = host.start()
    second = host.refused()
    assert second.returncode == 2
    assert f"the daemon with pid {first.pid} uses it" in second.stderr
