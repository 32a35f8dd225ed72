"""Hooks under the real daemon: a start that is refused, one that waits, and what is told to whom."""

from pathlib import Path

from tests.e2e.host import Host, until


def script(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_a_refused_start_is_explained_and_spends_nothing(host: Host) -> None:
    mounted = host.root / "mounted"
    veto = script(f"test -e {mounted} || {{ echo /models is not mounted; exit 1; }}")
    host.fake("kimi", hooks={"before_start": veto})

    host.start()
    event = host.wait_for("kimi", "lifecycle", "fatal")

    assert event["reason"] == "the before_start hook refuses: /models is not mounted"
    assert "/models is not mounted" in host.why("kimi")
    assert not host.processes("kimi")
    mounted.touch()
    assert host.ctl("start", "kimi", "--wait", "--timeout", "30s").returncode == 0
    assert host.show("kimi")["attempt"] == 1


def test_a_start_that_is_to_wait_waits(host: Host) -> None:
    mounted = host.root / "mounted"
    host.fake("kimi", hooks={"before_start": script(f"test -e {mounted} || {{ echo not mounted yet; exit 75; }}")})

    host.start()
    until(lambda: "not mounted yet" in host.show("kimi")["lifecycle"]["reason"], 20, "the start waits")
    mounted.touch()

    host.wait_for("kimi", "lifecycle", "running")


def test_changes_are_told_to_commands_of_all_servers_and_of_one(host: Host) -> None:
    everywhere, own = host.root / "everywhere", host.root / "own"
    host.settings["hooks"] = {"on_change": script(f'echo "$SGLSUP_SERVER $SGLSUP_EVENT" >> {everywhere}')}
    host.fake("kimi", hooks={"on_change": script(f"echo $SGLSUP_EVENT >> {own}"), "events": ["starting"]})

    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    until(lambda: lines(everywhere) == ["kimi running"], 10, "the hook of all servers was called")
    assert lines(own) == ["starting"]
    assert host.daemon is not None
    assert host.daemon.end() == 0
    assert lines(everywhere) == ["kimi running", "kimi stopped"], "the last words of a daemon that ends"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
