"""The configuration of a run without a configuration file: one server, made from the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from supervisor.config import DEFAULT_ENGINE, Config, DaemonConfig, GpuPlan, RestartConfig, ServerConfig, StopConfig
from supervisor.config.checks import SOCKET_PATH_BYTES, check_daemon, check_server
from supervisor.config.reader import join
from supervisor.profile import engine_of, facts, load_profile

DEFAULT_NAME = "server"
ROOT_STATE = Path("/var/lib/sglang-supervisor")
ROOT_LOGS = Path("/var/log/sglang-supervisor")
_PRODUCT = "sglang-supervisor"
_NAME_MAX = 40  # the socket lies in a directory of this name, and its path has 107 bytes in all


class Wish(msgspec.Struct, frozen=True):
    """What the command line asks for; None and empty mean the default."""

    command: tuple[str, ...]
    name: str = ""
    gpus: tuple[int, ...] = ()
    port: int = 0
    state_dir: Path | None = None
    log_dir: Path | None = None
    listen: str = ""
    grace_s: float | None = None
    restart: bool = True


class Place(msgspec.Struct, frozen=True):
    """Who and where we are, as far as the defaults depend on it."""

    environment: Mapping[str, str]
    directory: str
    root: bool


def configure(wish: Wish, place: Place) -> Config:
    """What a file would have said. Nothing is checked here."""
    name = wish.name or default_name(wish.command)
    server = ServerConfig(
        name=name,
        command=wish.command,
        engine=engine_of(wish.command, DEFAULT_ENGINE),
        port=wish.port,
        gpus=GpuPlan(indices=wish.gpus),
        directory=place.directory,  # a relative path in the command means what it means to the caller
        stop=StopConfig() if wish.grace_s is None else StopConfig(grace_s=wish.grace_s),
        restart=RestartConfig() if wish.restart else RestartConfig(budget=0),
    )
    return Config(daemon=_daemon(wish, place, name), servers={name: server})


def devices_of(text: str) -> tuple[int, ...]:
    """The devices of `0-3,6`. ValueError says what was expected."""
    devices: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip(), re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f'expected devices such as "0-7" or "0,2,5", got "{text}"')
        devices += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(devices)


def default_name(command: tuple[str, ...]) -> str:
    """The model's last path component, made fit for a file name and a command line."""
    model = facts(load_profile(engine_of(command, DEFAULT_ENGINE)), command).model_path
    last = model.rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).lstrip("-._")[:_NAME_MAX].rstrip("-._")
    return name if name and name != "all" else DEFAULT_NAME


def _daemon(wish: Wish, place: Place, name: str) -> DaemonConfig:
    """Apart from the daemon's own places: a server of the same name in its configuration is another one."""
    home = _home(place.environment)
    state = wish.state_dir or (ROOT_STATE if place.root else home) / "run" / name
    log_dir = wish.log_dir or (state / "log" if wish.state_dir else ROOT_LOGS / "run" if place.root else home / "log")
    return DaemonConfig(
        socket=str(_socket(wish, place, name, state)),
        state_dir=os.path.abspath(state),
        log_dir=os.path.abspath(log_dir),
        listen=wish.listen,
    )


def _home(environment: Mapping[str, str]) -> Path:
    """The XDG base directory specification: what is not absolute counts as unset."""
    state = environment.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path(environment.get("HOME") or "/") / ".local/state") / _PRODUCT


def _socket(wish: Wish, place: Place, name: str, state: Path) -> str:
    """A state directory that was asked for holds everything, unless its path is too long for a socket."""
    beside = os.path.abspath(state / "control.sock")
    runtime = place.environment.get("XDG_RUNTIME_DIR", "")
    if not runtime.startswith("/"):
        return beside
    if wish.state_dir is not None and len(os.fsencode(beside)) <= SOCKET_PATH_BYTES:
        return beside
    return f"{runtime}/{_PRODUCT}/{name}.sock"


def problems(config: Config) -> list[str]:
    """What is wrong with it on this host, in the words of the command line's options."""
    found = check_daemon(config.daemon)
    for server in config.servers.values():
        table = join("server", server.name)  # quoted where the name has dots, as models' names do
        found += [(path.removeprefix(f"{table}."), text) for path, text in check_server(server)]
    return [f"{_option(path)}: {text}" for path, text in found]


def _option(path: str) -> str:
    """The option behind a key of the configuration; a key that no option sets names itself."""
    options = {
        "daemon.state_dir": "--state-dir",
        "daemon.log_dir": "--log-dir",
        "daemon.socket": "the socket (XDG_RUNTIME_DIR, --state-dir)",
        "daemon.listen": "--listen",
        "gpus": "--gpus",
    }
    return options.get(path, "--name" if path.startswith("server.") else path)
