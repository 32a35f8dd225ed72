"""What a configuration must fulfil beyond the type of each key: names, paths, collisions, this host's users."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from supervisor.config.model import Config, DaemonConfig, HooksConfig, ServerConfig
from supervisor.config.names import EVERYBODY, name_problem
from supervisor.config.reader import Problems, join, nearest, shown
from supervisor.config.web import header_problems, is_address
from supervisor.profile import Profile, ProfileError, facts, load_profile, profile_names
from supervisor.units import is_signal

SOCKET_PATH_BYTES = 107  # sun_path of unix(7) without the terminating NUL
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def check_daemon(daemon: DaemonConfig) -> Problems:
    """What is wrong with the daemon's own table on this host."""
    return [(f"daemon.{key}", text) for key, text in _daemon_problems(daemon)]


def check_server(server: ServerConfig) -> Problems:
    """What is wrong with one server's table, taken alone."""
    path = join("server", server.name)
    return [(f"{path}.{key}" if key else path, text) for key, text in _server_problems(server)]


def check_collisions(config: Config) -> Problems:
    """Ports and devices that two servers want for themselves. The later server of the two is blamed."""
    ports: dict[int, str] = {}
    devices: dict[int, str] = {}
    problems: Problems = []
    for name, server in config.servers.items():
        path = join("server", name)
        port = port_taken(server)
        if port and ports.setdefault(port, name) != name:
            why = "" if server.effective_port else f", which {server.engine} takes when none is named,"
            problems.append((f"{path}.port", f"{port}{why} is already taken by server {ports[port]}"))
        held: dict[str, list[int]] = {}
        for index in server.gpus.indices:
            if (holder := devices.setdefault(index, name)) != name:
                held.setdefault(holder, []).append(index)
        problems += [(f"{path}.gpus", _taken(indices, holder)) for holder, indices in held.items()]
    return problems


def _taken(indices: Sequence[int], holder: str) -> str:
    """Two servers collide once, on however many devices."""
    which = f"device {indices[0]} is" if len(indices) == 1 else f"devices {', '.join(map(str, indices))} are"
    return f"{which} already taken by server {holder}"


def port_taken(server: ServerConfig) -> int:
    """Its port, also when neither file nor command says, be it a script; 0: a further node of one has none."""
    if server.effective_port:
        return server.effective_port
    try:
        profile = load_profile(server.engine)
    except ProfileError:
        return 0  # refused elsewhere
    return 0 if facts(profile, server.command).node_rank else profile.command.default_port


def _daemon_problems(daemon: DaemonConfig) -> Iterator[tuple[str, str]]:
    for key, value in (("socket", daemon.socket), ("state_dir", daemon.state_dir), ("log_dir", daemon.log_dir)):
        yield from _absolute(key, value)
    if len(os.fsencode(daemon.socket)) > SOCKET_PATH_BYTES:
        yield "socket", f"path is {len(os.fsencode(daemon.socket))} bytes long, the kernel takes {SOCKET_PATH_BYTES}"
    if daemon.socket_group is not None:
        yield from _known_group("socket_group", daemon.socket_group)
    for key, users in (("admins", daemon.admins), ("operators", daemon.operators), ("readers", daemon.readers)):
        for user in users:
            yield from _known_principal(key, user)
    if daemon.listen and not _is_address(daemon.listen):
        yield "listen", f'expected "HOST:PORT" or "", got {shown(daemon.listen)}'
    if daemon.log_file is not None:
        yield from _absolute("log_file", daemon.log_file)
    yield from _hooks(daemon.hooks)
    for key, directory in (("log_dir", daemon.log_dir), ("state_dir", daemon.state_dir)):
        yield from _usable_directory(key, directory)


def _server_problems(server: ServerConfig) -> Iterator[tuple[str, str]]:
    if text := name_problem(server.name, EVERYBODY):
        yield "", text
    if not server.command:
        yield "command", 'expected a list such as ["python", "-m", "module"], got none'
    elif not server.command[0]:
        yield "command[0]", "expected the program to run, got an empty text"
    for index, word in enumerate(server.command):
        if "\0" in word:
            yield f"command[{index}]", "contains a NUL byte, which no argument can carry"
    yield from _paths(server)
    yield from _identity(server)
    yield from _environment(server.environment)
    yield from _engine(server)
    yield from _policy(server)
    yield from _hooks(server.hooks)
    if len(set(server.gpus.indices)) != len(server.gpus.indices):
        yield "gpus", "names a device twice"


def _paths(server: ServerConfig) -> Iterator[tuple[str, str]]:
    for key, value in (("env_file", server.env_file), ("directory", server.directory)):
        if value is not None:
            yield from _absolute(key, value)
    if server.readiness.path is not None and not server.readiness.path.startswith("/"):
        yield "readiness.path", f'expected a path that begins with "/", got {shown(server.readiness.path)}'


def _identity(server: ServerConfig) -> Iterator[tuple[str, str]]:
    if server.user is not None:
        yield from _known_principal("user", server.user)
    if server.group is not None:
        yield from _known_group("group", server.group)
    for name in server.operators:
        yield from _known_principal("operators", name)


def _environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in environment.items():
        if not _VARIABLE.fullmatch(key):
            yield join("environment", key), "expected the name of an environment variable"
        if "\0" in value:
            yield join("environment", key), "contains a NUL byte, which no variable can carry"


def _hooks(hooks: HooksConfig) -> Iterator[tuple[str, str]]:
    for key, command in (("before_start", hooks.before_start), ("on_change", hooks.on_change)):
        if command and not command[0]:
            yield f"hooks.{key}[0]", "expected the program to run, got an empty text"
        if any("\0" in word for word in command):
            yield f"hooks.{key}", "contains a NUL byte, which no argument can carry"
    if hooks.webhook and not is_address(hooks.webhook):
        yield "hooks.webhook", 'expected an address such as "https://host/path"'  # not shown: it may be a secret
    yield from header_problems("hooks.headers", hooks.headers)
    if hooks.timeout_s <= 0:
        yield "hooks.timeout", "expected more than no time"


def _engine(server: ServerConfig) -> Iterator[tuple[str, str]]:
    known = profile_names()
    if server.engine not in known:
        yield "engine", f"expected one of {', '.join(known)}, got {shown(server.engine)}"
        return
    try:
        profile = load_profile(server.engine)
    except ProfileError as problem:  # a host's own
        yield "engine", str(problem)
        return
    phases = {name for rule in profile.phases for name in (rule.name, rule.speculative_name) if name}
    for phase in sorted(server.deadlines.keys() - phases):
        yield join("deadlines", phase), f"{server.engine} has no such phase; it has {', '.join(sorted(phases))}"
    yield from _causes(server, profile)


def _causes(server: ServerConfig, profile: Profile) -> Iterator[tuple[str, str]]:
    """Of a profile without classes nothing is said: what is concluded without a line of the log has a class, too."""
    known = sorted({cause.name for cause in profile.causes})
    for name in sorted(server.restart.causes.keys() - set(known)) if known else ():
        yield join("restart.causes", name), f"there is no such cause, {_meant(name, known)}"


def _meant(name: str, known: Sequence[str]) -> str:
    """The nearest name, or those with the one word that was written ("oom"), or all."""
    meant = nearest(name, known) or " or ".join(shown(one) for one in known if name in one.split("-"))
    return f"did you mean {meant}?" if meant else f"known are {', '.join(known)}"


def _policy(server: ServerConfig) -> Iterator[tuple[str, str]]:
    if server.stop.signal is not None and not is_signal(server.stop.signal):
        yield "stop.signal", f'expected a signal such as "TERM", got {shown(server.stop.signal)}'
    if server.restart.backoff_max_s < server.restart.backoff_s:
        yield "restart.backoff_max", "is shorter than restart.backoff"
    for phase, deadline in server.deadlines.items():
        if deadline.stall_s is not None and deadline.limit_s is not None and deadline.limit_s < deadline.stall_s:
            yield join("deadlines", phase) + ".limit", "is shorter than stall"


def _absolute(key: str, value: str) -> Iterator[tuple[str, str]]:
    if not value.startswith("/"):
        yield key, f'expected a path that begins with "/", got {shown(value)}'
    elif "\0" in value:
        yield key, "contains a NUL byte, which no path can carry"


def _known_principal(key: str, name: str) -> Iterator[tuple[str, str]]:
    """A user by name or number, or a group as "@name"."""
    if name.startswith("@"):
        yield from _known_group(key, name[1:])
        return
    if name.isascii() and name.isdigit():
        return
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        yield key, f"this host has no user {shown(name)}"


def _known_group(key: str, name: str) -> Iterator[tuple[str, str]]:
    if name.isascii() and name.isdigit():
        return
    try:
        grp.getgrnam(name)
    except (KeyError, ValueError):
        yield key, f"this host has no group {shown(name)}"


def _is_address(listen: str) -> bool:
    host, colon, port = listen.rpartition(":")
    return bool(colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535)


def _usable_directory(key: str, directory: str) -> Iterator[tuple[str, str]]:
    """The directory can be read and written, or can be made. Nothing is made here."""
    if not directory.startswith("/") or "\0" in directory:
        return
    place = Path(directory)
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        yield key, f"cannot use {shown(directory)}: {shown(str(place))} is not a directory"
    elif os.statvfs(place).f_flag & os.ST_RDONLY:
        yield key, f"cannot use {shown(directory)}: its file system is read-only"
    elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        made = "read and written" if str(place) == directory else "made"
        yield key, f"cannot use {shown(directory)}: it cannot be {made} by user {os.geteuid()}"
