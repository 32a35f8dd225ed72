"""A configuration is read whole, or refused with the file and the path of every wrong key."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from supervisor.config import (
    UNLIMITED,
    Config,
    ConfigError,
    DaemonConfig,
    DetectorsConfig,
    GroupConfig,
    HooksConfig,
    LogConfig,
    OnForeign,
    ReadinessConfig,
    RestartConfig,
    RouterConfig,
    ServerConfig,
    ServingConfig,
    StopConfig,
    config_hash,
    load,
)

Loaded = Callable[..., Config]
Problems = Callable[..., tuple[str, ...]]

DESIGN_EXAMPLE = """
[server.kimi]
command = ["/opt/bin/python", "-m", "engine", "--tp", "8", "--port", "30000"]
port = 30000
gpus = [0, 1, 2, 3, 4, 5, 6, 7]
autostart = true
environment = {HF_HOME = "/models/hf"}
env_file = "/etc/sglang-supervisor/kimi.env"
stop = {grace = "90s"}
deadlines = {weights = {stall = "5m", limit = "40m"}, verify-graph = {stall = "3m", limit = "15m"}}
restart = {backoff = "5s", backoff_max = "5m", budget = 5, window = "1h"}
"""


def test_the_example_of_the_contract_is_read(loaded: Loaded) -> None:
    server = loaded(DESIGN_EXAMPLE).servers["kimi"]

    assert server.name == "kimi"
    assert server.command[:2] == ("/opt/bin/python", "-m")
    assert server.gpus.indices == tuple(range(8))
    assert server.stop.grace_s == 90
    assert server.deadlines["verify-graph"].stall_s == 180
    assert server.restart.window_s == 3600
    assert server.environment == {"HF_HOME": "/models/hf"}


def test_a_command_is_all_that_a_server_needs(loaded: Loaded) -> None:
    server = loaded('[server.a]\ncommand = ["engine"]').servers["a"]

    assert server == ServerConfig(name="a", command=("engine",))
    assert server.engine == "sglang"
    assert (server.autostart, server.gpus.size, server.oom_score_adj, server.effective_port) == (True, 0, 0, 0)


def test_an_empty_file_is_a_daemon_without_servers(tmp_path: Path) -> None:
    directories = f'state_dir = "{tmp_path}/s"\nlog_dir = "{tmp_path}/l"'
    (tmp_path / "c.toml").write_text(f"[daemon]\n{directories}\n")

    assert load(tmp_path / "c.toml").servers == {}


def test_every_kind_of_value_is_read(loaded: Loaded) -> None:
    server = loaded("""
        [server.a]
        command = ["engine"]
        gpus = {count = 4}
        umask = "027"
        nice = -5
        oom_score_adj = 500
        limits = {nofile = 65536, memlock = "unlimited"}
        on_foreign = "kill-same-user"
        memory_tolerance = "1GiB"
        readiness = {path = "/ready", timeout = "25s", interval = "500ms"}
        stop = {signal = "INT", startup_grace = "1s", freeze = true, evidence = true}
        log = {keep = 3, size = "5GB"}
        user = "0"
    """).servers["a"]

    assert (server.gpus.count, server.gpus.size, server.umask, server.nice) == (4, 4, 0o027, -5)
    assert (server.limits.nofile, server.limits.memlock) == (65536, UNLIMITED)
    assert server.on_foreign is OnForeign.KILL_SAME_USER
    assert server.memory_tolerance_bytes == 2**30
    assert (server.readiness.timeout_s, server.readiness.interval_s) == (25, 0.5)
    assert (server.stop.signal, server.stop.freeze, server.stop.evidence) == ("INT", True, True)
    assert server.log.size_bytes == 5 * 10**9


def test_memlock_may_be_a_size(loaded: Loaded) -> None:
    server = loaded('[server.a]\ncommand = ["e"]\nlimits = {memlock = "8GiB"}').servers["a"]
    assert server.limits.memlock == 8 * 2**30


@pytest.mark.parametrize(
    ("command", "port"),
    [
        (["e", "--port", "30000"], 30000),
        (["e", "--port=30001"], 30001),
        (["e", "--port", "1", "--port", "2"], 2),
        (["e", "--port"], 0),
        (["e", "--port", "abc"], 0),
        (["e", "--port", "99999"], 0),
        (["e", "--nccl-port", "5"], 0),
    ],
)
def test_the_port_is_read_from_the_command(command: list[str], port: int) -> None:
    assert ServerConfig(name="a", command=tuple(command)).effective_port == port


def test_the_configured_port_wins_over_the_command(loaded: Loaded) -> None:
    text = '[server.a]\ncommand = ["e", "--port", "1000"]\nport = 2000'
    assert loaded(text).servers["a"].effective_port == 2000


def test_conf_d_adds_servers_in_the_order_of_file_names(loaded: Loaded) -> None:
    config = loaded('[server.m]\ncommand = ["e"]', b='[server.b]\ncommand = ["e"]', a='[server.z]\ncommand = ["e"]')
    assert list(config.servers) == ["m", "z", "b"]


def test_a_server_defined_twice_names_both_files(problems: Problems, tmp_path: Path) -> None:
    (line,) = problems('[server.a]\ncommand = ["e"]', x='[server.a]\ncommand = ["e"]')
    assert line == f"cannot use {tmp_path}/conf.d/x.toml: server.a: is already defined in {tmp_path}/supervisor.toml"


def test_conf_d_cannot_configure_the_daemon(problems: Problems, tmp_path: Path) -> None:
    (line,) = problems("", x="[daemon]\n")
    assert line.startswith(f"cannot use {tmp_path}/conf.d/x.toml: daemon: unknown key")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("comand = 1", 'server.a.comand: unknown key, did you mean "command"?'),
        ("stop = {grase = '1s'}", 'server.a.stop.grase: unknown key, did you mean "grace"?'),
        ("log = {zzz = 1}", "server.a.log.zzz: unknown key, known are keep, rotate_age, rotate_size, size"),
        (
            "deadlines.weights.stall = 5",
            'server.a.deadlines.weights.stall: expected a duration such as "90s", got 5',
        ),
        ("deadlines.weights = 5", "server.a.deadlines.weights: expected a table, got 5"),
        ("deadlines = 5", "server.a.deadlines: expected a table, got 5"),
        ("stop = {grace = '5 minutes'}", 'server.a.stop.grace: expected a duration such as "90s", got "5 minutes"'),
        ("stop = {freeze = 'yes'}", 'server.a.stop.freeze: expected true or false, got "yes"'),
        ("stop = 5", "server.a.stop: expected a table, got 5"),
        ("port = '80'", 'server.a.port: expected a whole number, got "80"'),
        ("port = 70000", "server.a.port: expected a whole number <= 65535, got 70000"),
        ("port = true", "server.a.port: expected a whole number, got true"),
        ("gpus = 'all'", 'server.a.gpus: expected a list, got "all"'),
        ("gpus = [0, -1]", "server.a.gpus[1]: expected a whole number >= 0, got -1"),
        ("gpus = {count = -1}", "server.a.gpus.count: expected a whole number >= 0, got -1"),
        ("environment = {A = 5}", "server.a.environment.A: expected text in quotes, got 5"),
        ("umask = 22", 'server.a.umask: expected an octal mode in quotes such as "022", got 22'),
        ("umask = '9'", 'server.a.umask: expected an octal mode in quotes such as "022", got "9"'),
        ("nice = 20", "server.a.nice: expected a whole number <= 19, got 20"),
        ("on_foreign = 'x'", 'server.a.on_foreign: expected one of "wait", "fail", "kill-same-user", got "x"'),
        ("restart = {jitter = 2}", "server.a.restart.jitter: expected a number <= 1.0, got 2"),
        ("restart = {factor = nan}", "server.a.restart.factor: expected a number >= 1.0, got nan"),
        ("memory_tolerance = 5", 'server.a.memory_tolerance: expected a size such as "10GB" or "512MiB", got 5'),
        (
            "limits = {nofile = true}",
            'server.a.limits.nofile: expected a whole number, a size such as "8GiB" or "unlimited", got true',
        ),
        ("autostart = 1979-05-27", "server.a.autostart: expected true or false, got 1979-05-27"),
    ],
)
def test_a_wrong_key_is_named_with_its_path(problems: Problems, text: str, line: str) -> None:
    assert problems(f'[server.a]\ncommand = ["e"]\n{text}') == (line,)


def test_the_name_is_the_key_of_the_table_and_no_key_in_it(problems: Problems) -> None:
    (line,) = problems('[server.a]\ncommand = ["e"]\nname = "b"')
    assert line.startswith("server.a.name: unknown key, known are after, autostart, command")


def test_a_wrong_word_of_the_command_is_named(problems: Problems) -> None:
    assert problems('[server.a]\ncommand = ["e", 5]') == ("server.a.command[1]: expected text in quotes, got 5",)
    assert problems('[server.a]\ncommand = "e"') == ('server.a.command: expected a list, got "e"',)


def test_all_problems_are_told_at_once(problems: Problems) -> None:
    found = problems("[server.a]\nport = 'x'\nnice = 99\n[server.b]\ncommand = 5\n[other]\n")
    assert [line.partition(":")[0] for line in found] == ["server.a.port", "server.a.nice", "server.b.command", "other"]


def test_a_hostile_key_cannot_forge_a_line(problems: Problems) -> None:
    (line,) = problems('[server.a]\ncommand = ["e"]\n"x\\n\\u001b[2J" = 1')
    assert "\n" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[daemon\n", "expected"),
        (b"a = 1\na = 2\n", "cannot overwrite a value (at line 2"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"a = " + b"[" * 5000, ""),
    ],
)
def test_what_is_no_toml_is_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "c.toml")
    assert str(caught.value).startswith(f"cannot use {tmp_path}/c.toml: ")
    assert "\n" not in str(caught.value)
    assert words in str(caught.value).lower() or words in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot use {tmp_path}/none.toml: No such file or directory"):
        load(tmp_path / "none.toml")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"#" * (5 * 2**20))
    with pytest.raises(ConfigError, match="bytes long"):
        load(tmp_path / "c.toml")


def test_the_same_settings_have_the_same_hash(loaded: Loaded) -> None:
    first = loaded('[server.a]\ncommand = ["e"]\nenvironment = {A = "1", B = "2"}').servers["a"]
    second = loaded('[server.a]\nenvironment = {B = "2", A = "1"}\ncommand = ["e"]\nautostart = true').servers["a"]
    assert config_hash(first) == config_hash(second)


def test_another_setting_has_another_hash(loaded: Loaded) -> None:
    server = loaded('[server.a]\ncommand = ["e"]').servers["a"]
    changed = [
        msgspec.structs.replace(server, command=("f",)),
        msgspec.structs.replace(server, environment={"A": "1"}),
        msgspec.structs.replace(server, nice=1),
    ]
    assert len({config_hash(one) for one in [server, *changed]}) == 4


def test_the_daemon_has_defaults() -> None:
    daemon = DaemonConfig()
    assert daemon.socket == "/run/sglang-supervisor/control.sock"
    assert daemon.listen_address == ("127.0.0.1", 9877)
    assert DaemonConfig(listen="").listen_address is None
    assert DaemonConfig(listen="[::1]:80").listen_address == ("::1", 80)


def test_the_longest_socket_path_that_is_accepted_can_be_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the kernel's limit is on the text, not on the place
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("x" * 107)
    with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError, match="too long"):
        listener.bind("x" * 108)


def test_the_documentation_names_every_key_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    documented = {
        key.strip("` ") for line in page.splitlines() if line.startswith("| `") for key in line.split("|")[1].split(",")
    }
    tables = (
        *(DaemonConfig, ServerConfig, StopConfig, RestartConfig, ReadinessConfig, LogConfig),
        *(ServingConfig, DetectorsConfig, HooksConfig, GroupConfig, RouterConfig),
    )
    known = {field.encode_name for table in tables for field in msgspec.structs.fields(table)}
    own_sections = {"stop", "deadlines", "restart", "readiness", "log", "serving", "detectors", "hooks"}
    assert documented - own_sections == known - own_sections - {"name"}


def test_scripts_without_a_port_are_asked_on_the_engines_own_and_cannot_both_be(tmp_path: Path) -> None:
    """Nothing tells another port, so both would be probed there; the daemon would let one of them start."""
    file = tmp_path / "supervisor.toml"
    file.write_text('[server.a]\ncommand = ["/srv/a.sh"]\n[server.b]\ncommand = ["/srv/b.sh"]\n')
    why = r"server\.b\.port: 30000, which sglang takes when none is named, is already taken by server a"
    with pytest.raises(ConfigError, match=why):
        load(file)
    file.write_text('[server.a]\ncommand = ["/srv/a.sh"]\n[server.b]\ncommand = ["/srv/b.sh"]\nport = 30001\n')
    assert len(load(file).servers) == 2


def test_the_nodes_of_one_server_on_one_host_share_nothing(tmp_path: Path) -> None:
    """Only the first has a port for requests."""
    file = tmp_path / "supervisor.toml"
    engine = '"python", "-m", "sglang.launch_server", "--nnodes", "2", "--node-rank"'
    file.write_text(f'[server.a]\ncommand = [{engine}, "0"]\n[server.b]\ncommand = [{engine}, "1"]\n')
    assert len(load(file).servers) == 2


def test_two_servers_that_leave_their_port_to_the_engine_would_share_it(tmp_path: Path) -> None:
    file = tmp_path / "supervisor.toml"
    file.write_text(
        '[server.a]\ncommand = ["python", "-m", "sglang.launch_server"]\n[server.b]\ncommand = ["y", "--port", "30000"]\n'
    )
    with pytest.raises(ConfigError, match=r"server\.b\.port: 30000 is already taken by server a"):
        load(file)
