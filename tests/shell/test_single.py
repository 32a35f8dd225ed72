"""Which configuration a run without a file gets: names, places, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.shell.single import DEFAULT_NAME, Place, Wish, configure, default_name, devices_of, problems

USER = Place({"HOME": "/home/ann"}, "/srv/models", root=False)
ROOT = Place({"HOME": "/root"}, "/", root=True)
COMMAND = ("python", "-m", "engine", "--model-path", "Qwen/Qwen2.5-7B-Instruct", "--port", "30001")


def places(wish: Wish, place: Place) -> tuple[str, str, str]:
    daemon = configure(wish, place).daemon
    return daemon.state_dir, daemon.log_dir, daemon.socket


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("/models/kimi-k2/", "kimi-k2"),
        ("/models/two words & more", "two-words-more"),
        ("/models/.hidden", "hidden"),
        ("/models/" + "x" * 100, "x" * 40),
        ("/models/all", DEFAULT_NAME),
        ("/models/日本", DEFAULT_NAME),
        ("/", DEFAULT_NAME),
    ],
)
def test_the_default_name_is_the_models_last_component_made_safe(model: str, name: str) -> None:
    assert default_name(("python", "--model-path", model)) == name


def test_a_command_without_a_model_is_called_server() -> None:
    assert default_name(("./serve.sh",)) == DEFAULT_NAME
    assert default_name(("vllm", "serve", "/models/kimi", "--port", "9")) == "kimi"


def test_the_engine_is_the_one_that_the_command_starts() -> None:
    configured = [
        configure(Wish(command, name="q"), USER).servers["q"] for command in (("vllm", "serve", "m"), COMMAND)
    ]
    assert [server.engine for server in configured] == ["vllm", "sglang"]


def test_a_users_things_are_where_the_xdg_specification_puts_them() -> None:
    home = "/home/ann/.local/state/sglang-supervisor"
    state = f"{home}/run/Qwen2.5-7B-Instruct"
    assert places(Wish(COMMAND), USER) == (state, f"{home}/log", f"{state}/control.sock")
    session = Place({"XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": "/run/user/7"}, "/", root=False)
    assert places(Wish(COMMAND, name="q"), session) == (
        "/x/sglang-supervisor/run/q",
        "/x/sglang-supervisor/log",
        "/run/user/7/sglang-supervisor/q.sock",
    )


def test_a_relative_xdg_directory_counts_as_unset() -> None:
    place = Place({"HOME": "/home/ann", "XDG_STATE_HOME": "x", "XDG_RUNTIME_DIR": "run"}, "/", root=False)
    assert places(Wish(COMMAND, name="q"), place) == places(Wish(COMMAND, name="q"), USER)


def test_roots_things_are_apart_from_the_daemons_own() -> None:
    assert places(Wish(COMMAND, name="q"), ROOT) == (
        "/var/lib/sglang-supervisor/run/q",
        "/var/log/sglang-supervisor/run",
        "/var/lib/sglang-supervisor/run/q/control.sock",
    )


def test_a_state_directory_that_was_asked_for_holds_everything() -> None:
    session = Place({"XDG_RUNTIME_DIR": "/run/user/7"}, "/", root=False)
    wish = Wish(COMMAND, name="q", state_dir=Path("/scratch/q"))
    assert places(wish, session) == ("/scratch/q", "/scratch/q/log", "/scratch/q/control.sock")


def test_a_state_directory_too_long_for_a_socket_leaves_it_where_it_fits() -> None:
    session = Place({"XDG_RUNTIME_DIR": "/run/user/7"}, "/", root=False)
    long = Path("/scratch/" + "x" * 100)
    assert places(Wish(COMMAND, name="q", state_dir=long), session)[2] == "/run/user/7/sglang-supervisor/q.sock"


def test_logs_go_where_they_are_asked_to() -> None:
    assert places(Wish(COMMAND, log_dir=Path("/logs")), ROOT)[1] == "/logs"


def test_relative_directories_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state, log, socket = places(Wish(COMMAND, state_dir=Path("s")), USER)
    assert (state, log, socket) == (str(tmp_path / "s"), str(tmp_path / "s/log"), str(tmp_path / "s/control.sock"))


def test_the_server_is_what_the_command_line_says() -> None:
    wish = Wish(COMMAND, name="q", gpus=(0, 1), port=4000, grace_s=7.0, restart=False)
    (server,) = configure(wish, USER).servers.values()
    assert (server.name, server.command, server.directory) == ("q", COMMAND, "/srv/models")
    assert (server.gpus.indices, server.effective_port, server.stop.grace_s) == ((0, 1), 4000, 7.0)
    assert server.restart.budget == 0


def test_the_port_is_read_from_the_command_and_tcp_is_off() -> None:
    config = configure(Wish(COMMAND), USER)
    (server,) = config.servers.values()
    assert server.effective_port == 30001
    assert config.daemon.listen == ""
    assert server.restart.budget > 0


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish(COMMAND, name="../x"), "--name: "),
        (Wish(COMMAND, gpus=(1, 1)), "--gpus: names a device twice"),
        (Wish(COMMAND, listen="x"), "--listen: "),
        (Wish(("a\0b",)), "command[0]: contains a NUL byte"),
    ],
)
def test_what_is_wrong_is_said_in_the_options_words(wish: Wish, said: str, tmp_path: Path) -> None:
    place = Place({"HOME": str(tmp_path)}, "/", root=False)
    found = problems(configure(wish, place))
    assert len(found) >= 1
    assert any(problem.startswith(said) for problem in found)


def test_a_good_wish_has_no_problems(tmp_path: Path) -> None:
    assert problems(configure(Wish(COMMAND, name="q", state_dir=tmp_path), USER)) == []


@pytest.mark.parametrize(
    ("text", "devices"), [("0", (0,)), ("0-3,6", (0, 1, 2, 3, 6)), (" 2 , 0 ", (2, 0)), ("7-7", (7,))]
)
def test_devices_as_a_person_writes_them(text: str, devices: tuple[int, ...]) -> None:
    assert devices_of(text) == devices


@pytest.mark.parametrize("text", ["", "x", "7-0", "0,", "-1", "0-", "1000", "٣"])
def test_what_names_no_devices_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'expected devices such as "0-7" or "0,2,5", got '):
        devices_of(text)
