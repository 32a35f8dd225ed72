"""Turns the programs of a supervisord configuration into servers."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from supervisor.config import GroupConfig, LimitsConfig, RestartConfig, ServerConfig, StopConfig
from supervisor.convert.draft import Conversion, ConversionError, Draft
from supervisor.convert.ini import Ini, boolean, pairs, whole
from supervisor.convert.logs import with_log
from supervisor.convert.options import Options, Process, as_it_is
from supervisor.convert.sections import read_daemon, read_others
from supervisor.convert.values import NAME_MAX, account, octal, server_name, signal_name
from supervisor.convert.wrappers import without_shell

T = TypeVar("T")
PROCESSES_MAX = 1000
_PROGRAM = "program:"
_GROUP = "group:"
_DEFAULT_PRIORITY = 999
_DEFAULT_MINFDS = 1024


class Common(msgspec.Struct, frozen=True):
    """What [supervisord] gives to every program: its children inherit it."""

    environment: dict[str, str]
    user: str | None
    umask: int | None
    minfds: int | None
    directory: str | None


def convert_supervisord(path: Path, environment: Mapping[str, str]) -> Conversion:
    """Everything in `path` and what it includes. Raises ConversionError where supervisord would refuse the file."""
    ini = Ini(path, environment, platform.node())
    common = _common(ini)
    ini.expansions |= {f"ENV_{name}": value for name, value in common.environment.items()}
    drafts = _named(_all(ini, common))
    daemon, lost, remarks = read_daemon(ini)
    return Conversion(
        source=str(path),
        daemon=daemon,
        drafts=tuple(draft for _, _, draft in sorted(drafts, key=lambda one: one[:2])),
        groups=_groups(drafts),
        lost=(*lost, *read_others(ini)),
        remarks=tuple(remarks),
    )


def _common(ini: Ini) -> Common:
    def get(option: str, read: Callable[[str, str], T]) -> T | None:
        value = ini.text("supervisord", option, {"here": ini.path.parent})
        return None if value is None else read(value, f"[supervisord] {option}")

    return Common(
        environment=get("environment", pairs) or {},
        user=account(get("user", as_it_is)),
        umask=get("umask", octal),
        minfds=get("minfds", whole),
        directory=get("directory", as_it_is),
    )


def _programs(ini: Ini) -> list[tuple[str, str]]:
    """Each program's section and group. One that a [group:…] names is in that group alone, in each that names it."""
    sections = dict.fromkeys(ini.sections())
    grouped: list[tuple[str, str]] = []
    for group in (section for section in sections if section.startswith(_GROUP)):
        for program in (ini.text(group, "programs") or "").split(","):
            section = f"{_PROGRAM}{program.strip()}"
            if section in sections:
                grouped.append((section, _plain_name(group)))
            elif f"fcgi-{section}" not in sections:
                raise ConversionError(f"[{group}] programs: there is no program {program.strip()}")
    taken = {section for section, _ in grouped}
    own = [(one, _plain_name(one)) for one in sections if one.startswith(_PROGRAM) and one not in taken]
    return grouped + own


def _all(ini: Ini, common: Common) -> list[tuple[int, str, Draft]]:
    drafts: list[tuple[int, str, Draft]] = []
    for section, group in _programs(ini):
        drafts += _servers(ini, section, group, common)
        if len(drafts) > PROCESSES_MAX:
            raise ConversionError(f"[{section}]: is one more than {PROCESSES_MAX} processes; convert them in parts")
    return drafts


def _plain_name(section: str) -> str:
    name = section.split(":", 1)[1].strip()
    if any(sign in name for sign in " :/"):
        raise ConversionError(f"[{section}]: a name may hold no blank, colon or slash")
    return name


def _servers(ini: Ini, section: str, group: str, common: Common) -> list[tuple[int, str, Draft]]:
    """The processes of one program, each with its place in the order of starts."""
    program = _plain_name(section)
    expansions: dict[str, object] = {"here": ini.path.parent, "program_name": program, "group_name": group}
    options = Options(ini, Process(section, group, expansions))
    count, first = _or(options.get("numprocs", whole), 1), _or(options.get("numprocs_start", whole), 0)
    if not 0 <= count <= PROCESSES_MAX:
        raise ConversionError(f"[{section}] numprocs: expected 0 to {PROCESSES_MAX}, got {count}")
    pattern = ini.raw(section, "process_name") or "%(program_name)s"
    if count > 1 and "%(process_num)" not in pattern:
        raise ConversionError(f"[{section}] process_name: %(process_num) must be in it when numprocs is not 1")
    rank = _or(options.get("priority", whole), _DEFAULT_PRIORITY)
    servers = []
    for number in range(first, first + count):
        here = {**expansions, "process_num": number, "numprocs": count}
        servers.append((rank, group, _server(ini, Process(section, group, here), pattern, common)))
    return servers


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _server(ini: Ini, process: Process, pattern: str, common: Common) -> Draft:
    own = Options(ini, process).get("environment", pairs) or {}
    ini.room.take(f"[{process.section}] environment", sum(map(len, common.environment.values())))
    expansions = {**process.expansions, **{f"ENV_{name}": value for name, value in own.items()}}
    options = Options(ini, msgspec.structs.replace(process, expansions=expansions))
    name = ini.expanded(pattern, f"[{process.section}] process_name", expansions)
    command = _command(options)
    directory = _directory(options.get("directory", as_it_is) or common.directory, ini.path.parent)
    umask, user = options.get("umask", octal), options.get("user", as_it_is) or common.user
    config = ServerConfig(
        name=name,
        command=command,
        autostart=options.get("autostart", boolean) is not False,
        user=user,
        environment={**common.environment, **own},
        directory=directory,
        umask=next((mode for mode in (umask, common.umask) if mode is not None), 0o022),
        limits=LimitsConfig(nofile=common.minfds if (common.minfds or 0) > _DEFAULT_MINFDS else None),
        stop=_stop(options),
        restart=_restart(options),
        priority=_DEFAULT_PRIORITY - _or(options.get("priority", whole), _DEFAULT_PRIORITY),
    )
    draft = without_shell(with_log(Draft(config), options))
    if name != process.group:
        draft = draft.remarking(f"was {process.group}:{name}")
    return draft.losing(*_lost(options)).remarking(*_different(options))


def _command(options: Options) -> tuple[str, ...]:
    text = options.get("command", as_it_is) or ""
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise ConversionError(f"{options.place('command')}: {str(problem).lower()}") from None
    if not words:
        raise ConversionError(f"{options.place('command')}: the program has no command")
    return words


def _directory(text: str | None, here: Path) -> str | None:
    """supervisord goes on from where it was started; the file's own folder is the likeliest."""
    return None if text is None else str(here / text)


def _stop(options: Options) -> StopConfig:
    wait = options.get("stopwaitsecs", whole)
    grace_s = None if wait is None else float(max(wait, 0))
    return StopConfig(signal=options.get("stopsignal", signal_name), grace_s=grace_s)


def _restart(options: Options) -> RestartConfig:
    """`startretries` counts failed starts in a row, `budget` all restarts within the window."""
    retries = options.get("startretries", whole)
    if options.get("autorestart", _autorestart) == "false":
        return RestartConfig(budget=0)
    return RestartConfig() if retries is None else RestartConfig(budget=max(retries, 1))


def _autorestart(text: str, place: str) -> str:
    if text.lower() == "unexpected":
        return "unexpected"
    return "true" if boolean(text, place) else "false"


def _lost(options: Options) -> list[str]:
    lost = []
    if options.has("exitcodes") and options.get("exitcodes", as_it_is) != "0":
        lost.append("exitcodes: an end that nobody asked for is a failure, whatever its status")
    if options.has("serverurl"):
        lost.append("serverurl: servers are not told the daemon's address")
    if options.get("autorestart", _autorestart) == "unexpected" and options.has("exitcodes"):
        lost.append("autorestart = unexpected: there is no expected end of a server that is wanted up")
    return lost


def _different(options: Options) -> list[str]:
    remarks = []
    if options.get("priority", whole) not in (None, _DEFAULT_PRIORITY):
        remarks.append("priority: the higher goes first here, where servers wait for a start slot (start_slots)")
    if options.has("startretries"):
        remarks.append("startretries: restart.budget counts every restart within restart.window")
    if options.has("startsecs"):
        remarks.append("startsecs: RUNNING is when its readiness probe succeeds, however long the load takes")
    if options.get("stopasgroup", boolean):
        remarks.append(
            "stopasgroup: the stop signal goes to the leader alone, which drains; then the whole tree is killed"
        )
    elif options.has("killasgroup") and options.get("killasgroup", boolean) is False:
        remarks.append(
            "killasgroup = false: the whole tree is always killed, however far a process has detached itself"
        )
    return remarks


def _named(drafts: list[tuple[int, str, Draft]]) -> list[tuple[int, str, Draft]]:
    """With names that the daemon takes, each of them once."""
    taken: set[str] = set()
    result = []
    for rank, group, draft in drafts:
        wanted = draft.config.name
        name = server_name(wanted)
        if name in taken or name == "all":
            name = _free(f"{re.sub(r'[^A-Za-z0-9-]+', '-', group).lstrip('-')}-{name}".lstrip("-"), taken)
        if name != wanted:
            draft = draft.remarking(f"is called {name} here, {wanted!r} there")
        taken.add(name)
        result.append((rank, group, draft.having(msgspec.structs.replace(draft.config, name=name))))
    return result


def _groups(drafts: list[tuple[int, str, Draft]]) -> tuple[GroupConfig, ...]:
    """Groups that are more than another word for their one process."""
    members: dict[str, list[str]] = {}
    for _, group, draft in drafts:
        members.setdefault(group, []).append(draft.config.name)
    return tuple(GroupConfig(name=name, members=tuple(of)) for name, of in members.items() if of != [name])


def _free(name: str, taken: set[str]) -> str:
    base, number = name[: NAME_MAX - 4], 1
    while (candidate := base if number == 1 else f"{base}-{number}") in taken:
        number += 1
    return candidate
