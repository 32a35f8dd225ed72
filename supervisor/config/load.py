"""Reads the main file and its conf.d into one Config, or says in one line each what is wrong and where."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from supervisor.config.checks import check_collisions, check_daemon, check_server
from supervisor.config.groups import check_groups
from supervisor.config.model import Config, DaemonConfig, GroupConfig, RouterConfig, ServerConfig
from supervisor.config.reader import Problems, join, read_struct, unknown_key
from supervisor.config.routers import check_routers

FILE_BYTES_MAX = 4 * 2**20
S = TypeVar("S", bound=msgspec.Struct)
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
    servers: dict[str, ServerConfig] = {}
    groups: dict[str, GroupConfig] = {}
    routers: dict[str, RouterConfig] = {}
    for file, table in tables:
        if file == main:
            daemon = reading.daemon(file, table.pop("daemon", {}))
        servers |= reading.tables(file, table, "server", ServerConfig, check_server)
        groups |= reading.tables(file, table, "group", GroupConfig)
        routers |= reading.tables(file, table, "router", RouterConfig)
        known = ("daemon", *_TABLES) if file == main else _TABLES
        reading.blame(file, [(key, unknown_key(key, known)) for key in table])
    config = Config(daemon=daemon, servers=servers, groups=groups, routers=routers)
    # Two tables that can be read collide whatever is wrong with others; of a name that a group or a router knows and
    # nobody seems to have, the table may be among those that cannot be read.
    together = [*check_collisions(config)] if reading.problems else [*check_collisions(config), *_names(config)]
    for key, text in together:
        reading.blame(reading.file_of(key), [(key, text)])
    if reading.problems:
        raise ConfigError(reading.problems)
    return config


def config_hash(server: ServerConfig) -> str:
    """The same text for the same settings, whatever their order in the file; no setting can be read out of it."""
    encoded = msgspec.json.encode(server, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


def _names(config: Config) -> Problems:
    return [*check_groups(config), *check_routers(config)]


def _nothing(_: object) -> Problems:
    """For tables that are checked when all are there."""
    return []


class _Reading:
    """What is wrong so far, and which file has which table."""

    def __init__(self) -> None:
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

    def tables(
        self, file: Path, content: dict[str, Any], word: str, kind: type[S], check: Callable[[S], Problems] = _nothing
    ) -> dict[str, S]:
        """Takes all [WORD.NAME] out of a file; those that can be used. `check` looks at what could be read."""
        tables = content.pop(word, {})
        if not isinstance(tables, dict):
            self.blame(file, [(word, f"expected tables such as [{word}.NAME]")])
            return {}
        found: dict[str, S] = {}
        for name, table in tables.items():
            problems: Problems = []
            path = join(word, name)
            made = read_struct(kind, table, path, problems, name=name)
            if made is not None:
                problems = check(made)
            if path in self._files:
                problems.append((path, f"is already defined in {self._files[path]}"))
            elif made is not None:
                found[name] = made
            self._files.setdefault(path, file)
            self.blame(file, problems)
        return found


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
