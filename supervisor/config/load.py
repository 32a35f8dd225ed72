"""Reads the main file and its conf.d into one Config, or says in one line each what is wrong and where."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from supervisor.config.checks import check_collisions, check_daemon, check_server
from supervisor.config.groups import check_groups
from supervisor.config.model import Config, DaemonConfig, GroupConfig, RouterConfig, ServerConfig
from supervisor.config.reader import Problems, join, read_struct, unknown_key
from supervisor.config.routers import check_routers

FILE_BYTES_MAX = 4 * 2**20
_TABLES = ("server", "group", "router")


class ConfigError(Exception):
    """One line per problem: cannot use FILE: KEY.PATH: what is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class ConfigFile(msgspec.Struct, frozen=True):
    """A file of the configuration as it was read. `problem`: why it could not be."""

    path: str
    text: str = ""
    problem: str = ""


def load(path: str | Path) -> Config:
    """The configuration in `path` and in conf.d/*.toml beside it. Raises ConfigError with every problem found."""
    return understand(read_files(path))


def read_files(path: str | Path) -> tuple[ConfigFile, ...]:
    """`path` and conf.d/*.toml beside it, in this order, as they are now; for `understand`, now or later."""
    main = Path(path)
    return tuple(_read(file) for file in (main, *sorted((main.parent / "conf.d").glob("*.toml"))))


def understand(files: Sequence[ConfigFile]) -> Config:
    """The configuration that these files hold, the main one first. Raises ConfigError with every problem found."""
    main = Path(files[0].path)
    reading = _Reading()
    tables = [(Path(file.path), _parsed(file, reading)) for file in files]
    daemon = DaemonConfig()
    for file, table in tables:
        if file == main:
            daemon = reading.daemon(file, table.pop("daemon", {}))
        reading.servers(file, table.pop("server", {}))
        reading.groups(file, table.pop("group", {}))
        reading.routers(file, table.pop("router", {}))
        known = ("daemon", *_TABLES) if file == main else _TABLES
        reading.blame(file, [(key, unknown_key(key, known)) for key in table])
    config = Config(daemon=daemon, servers=reading.found, groups=reading.found_groups, routers=reading.found_routers)
    if not reading.problems:
        for key, text in (*check_collisions(config), *check_groups(config), *check_routers(config)):
            reading.blame(reading.file_of(key), [(key, text)])
    if reading.problems:
        raise ConfigError(reading.problems)
    return config


def config_hash(server: ServerConfig) -> str:
    """The same text for the same settings, whatever their order in the file; no setting can be read out of it."""
    encoded = msgspec.json.encode(server, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


class _Reading:
    """What has been found so far, and where."""

    def __init__(self) -> None:
        self.found: dict[str, ServerConfig] = {}
        self.found_groups: dict[str, GroupConfig] = {}
        self.found_routers: dict[str, RouterConfig] = {}
        self.problems: list[str] = []
        self._files: dict[str, Path] = {}  # by the path of the table

    def blame(self, file: Path, problems: Problems) -> None:
        self.problems += [f"cannot use {file}: {path}: {text}" for path, text in problems]

    def file_of(self, key: str) -> Path:
        return next(file for table, file in self._files.items() if f"{key}.".startswith(f"{table}."))

    def daemon(self, file: Path, table: object) -> DaemonConfig:
        problems: Problems = []
        daemon = read_struct(DaemonConfig, table, "daemon", problems)
        self.blame(file, problems if daemon is None else check_daemon(daemon))
        return daemon or DaemonConfig()

    def servers(self, file: Path, table: object) -> None:
        if not isinstance(table, dict):
            self.blame(file, [("server", "expected tables such as [server.NAME]")])
            return
        for name, inner in table.items():
            self._server(file, name, inner)

    def _server(self, file: Path, name: str, table: object) -> None:
        problems: Problems = []
        path = join("server", name)
        server = read_struct(ServerConfig, table, path, problems, name=name)
        if server is not None:
            problems = check_server(server)
        if path in self._files:
            problems.append((path, f"is already defined in {self._files[path]}"))
        elif server is not None:
            self.found[name] = server
        self._files.setdefault(path, file)
        self.blame(file, problems)

    def groups(self, file: Path, table: object) -> None:
        if not isinstance(table, dict):
            self.blame(file, [("group", "expected tables such as [group.NAME]")])
            return
        for name, inner in table.items():
            self._group(file, name, inner)

    def _group(self, file: Path, name: str, table: object) -> None:
        problems: Problems = []
        path = join("group", name)
        group = read_struct(GroupConfig, table, path, problems, name=name)
        if path in self._files:
            problems.append((path, f"is already defined in {self._files[path]}"))
        elif group is not None:
            self.found_groups[name] = group
        self._files.setdefault(path, file)
        self.blame(file, problems)

    def routers(self, file: Path, table: object) -> None:
        if not isinstance(table, dict):
            self.blame(file, [("router", "expected tables such as [router.NAME]")])
            return
        for name, inner in table.items():
            self._router(file, name, inner)

    def _router(self, file: Path, name: str, table: object) -> None:
        problems: Problems = []
        path = join("router", name)
        router = read_struct(RouterConfig, table, path, problems, name=name)
        if path in self._files:
            problems.append((path, f"is already defined in {self._files[path]}"))
        elif router is not None:
            self.found_routers[name] = router
        self._files.setdefault(path, file)
        self.blame(file, problems)


def _read(file: Path) -> ConfigFile:
    try:
        data = file.read_bytes()
        if len(data) > FILE_BYTES_MAX:
            return ConfigFile(str(file), problem=f"is {len(data)} bytes long, at most {FILE_BYTES_MAX} are read")
        return ConfigFile(str(file), data.decode())
    except OSError as error:
        return ConfigFile(str(file), problem=error.strerror or str(error))
    except UnicodeDecodeError as error:
        return ConfigFile(str(file), problem=f"byte {error.start} is not UTF-8")


def _parsed(file: ConfigFile, reading: _Reading) -> dict[str, Any]:
    problem = file.problem
    try:
        if not problem:
            return tomllib.loads(file.text)
    except (ValueError, RecursionError) as error:
        problem = _one_line(error)
    reading.problems.append(f"cannot use {file.path}: {problem}")
    return {}


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[0].lower()}{text[1:]}"
