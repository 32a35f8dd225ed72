"""What another reading would change is told key by key, with its price and without secrets."""

from __future__ import annotations

from msgspec.structs import replace

from supervisor.config import (
    Config,
    DaemonConfig,
    DetectorMode,
    DetectorsConfig,
    Differences,
    GroupConfig,
    KeyChange,
    PhaseDeadline,
    ServerChange,
    ServerConfig,
    ServingConfig,
    StopConfig,
    differences,
    started_with,
)

KIMI = ServerConfig(name="kimi", command=("engine", "--tp", "8"))
DRAFT = ServerConfig(name="draft", command=("engine",))


def running(*servers: ServerConfig, daemon: DaemonConfig = DaemonConfig()) -> Config:  # noqa: B008 - it is frozen
    return Config(daemon=daemon, servers={server.name: server for server in servers})


def changes(before: ServerConfig, after: ServerConfig) -> tuple[KeyChange, ...]:
    (change,) = differences(running(before), running(after)).servers
    assert (change.name, change.kind) == ("kimi", "changed")
    return change.keys


def test_the_same_file_changes_nothing() -> None:
    assert differences(running(KIMI), running(KIMI)) == Differences((), ())


def test_order_in_the_file_is_no_change() -> None:
    assert differences(running(KIMI, DRAFT), running(DRAFT, KIMI)).servers == ()


def test_groups_are_live() -> None:
    before = replace(running(KIMI), groups={"all-of-it": GroupConfig("all-of-it", ("kimi",))})
    after = replace(running(KIMI), groups={"all-of-it": GroupConfig("all-of-it", ("kimi",), together=True)})
    assert differences(before, after) == Differences(
        (), (), (KeyChange("group.all-of-it.together", False, True, "live"),)
    )
    (new,) = differences(running(KIMI), before).groups
    assert (new.key, new.before, new.price) == ("group.all-of-it", None, "live")


def test_new_and_missing_servers() -> None:
    assert differences(running(KIMI), running(DRAFT)).servers == (
        ServerChange("draft", "available"),
        ServerChange("kimi", "disappeared"),
    )


def test_what_the_process_is_given_takes_a_restart() -> None:
    assert changes(KIMI, replace(KIMI, nice=5, environment={"A": "1"})) == (
        KeyChange("environment.A", None, "1", "restart"),
        KeyChange("nice", 0, 5, "restart"),
    )


def test_what_the_daemon_consults_is_live() -> None:
    after = replace(
        KIMI, stop=StopConfig(grace_s=45), deadlines={"weights": PhaseDeadline(stall_s=60)}, autostart=False
    )
    keys = changes(KIMI, after)
    assert keys == (
        KeyChange("autostart", True, False, "live"),
        KeyChange("deadlines.weights", None, {"stall": 60, "limit": None}, "live"),
        KeyChange("stop.grace", None, 45, "live"),
    )
    assert not ServerChange("kimi", "changed", keys).restart_needed


def test_how_a_server_is_judged_and_who_may_operate_it_is_live() -> None:
    after = replace(
        KIMI,
        host="10.0.0.7",
        serving=ServingConfig(stall_s=60),
        detectors=DetectorsConfig(canary=DetectorMode.ENFORCE),
        reclaim_limit_s=30,
        operators=("@ops",),
    )
    assert changes(KIMI, after) == (
        KeyChange("detectors.canary", "observe", "enforce", "live"),
        KeyChange("host", "", "10.0.0.7", "live"),
        KeyChange("operators", (), ("@ops",), "live"),
        KeyChange("reclaim_limit", 60, 30, "live"),
        KeyChange("serving.stall", 300, 60, "live"),
    )


def test_secrets_are_hidden_and_their_change_is_told() -> None:
    before = replace(KIMI, environment={"HF_TOKEN": "old"}, command=("e", "--api-key", "old"))
    after = replace(KIMI, environment={"HF_TOKEN": "new"}, command=("e", "--api-key", "new", "-v"))
    keys = changes(before, after)
    assert keys == (
        KeyChange("command", ["e", "--api-key", "***"], ["e", "--api-key", "***", "-v"], "restart"),
        KeyChange("environment.HF_TOKEN", "***", "***", "restart"),
    )
    assert ServerChange("kimi", "changed", keys).restart_needed


def test_the_daemons_own_table() -> None:
    after = running(KIMI, daemon=DaemonConfig(listen=""))
    assert differences(running(KIMI), after) == Differences(
        (), (KeyChange("daemon.listen", "127.0.0.1:9877", "", "restart"),)
    )


def test_what_a_process_was_started_with_is_the_same_text_whatever_is_live() -> None:
    one = ServerConfig("kimi", ("engine", "--port", "1"), environment={"A": "1", "B": "2"})
    same = replace(one, environment={"B": "2", "A": "1"}, stop=StopConfig(grace_s=7.0), autostart=False, priority=3)
    assert started_with(one) == started_with(same)
    for other in (replace(one, command=("engine",)), replace(one, nice=1), replace(one, environment={"A": "1"})):
        assert started_with(other) != started_with(one)
