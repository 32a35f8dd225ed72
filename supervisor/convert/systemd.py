"""Turns a service unit that somebody wrote for an engine into a server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from supervisor.config import (
    UNLIMITED,
    EnvironmentRefusedError,
    LimitsConfig,
    RestartConfig,
    ServerConfig,
    StopConfig,
)
from supervisor.config.env_file import env_of
from supervisor.convert.draft import Conversion, ConversionError, Draft
from supervisor.convert.files import Room
from supervisor.convert.unitfile import Unit, expanded, words
from supervisor.convert.values import account, octal, server_name, signal_name
from supervisor.convert.wrappers import without_shell

_UMASK = "022"  # where the unit says none
_TIME_UNITS_S = {
    "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0, "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)", re.ASCII)

# What a unit may say and no server has, with what is there instead. Everything else is named, too, as not carried over.
_INSTEAD = {
    "ExecStartPre": "hooks.before_start is asked before every start (docs/hooks.md)",
    "ExecStartPost": "hooks.on_change is told when it is healthy (docs/hooks.md)",
    "ExecStop": "stop.signal and stop.grace end it",
    "ExecStopPost": "hooks.on_change is told when it has stopped (docs/hooks.md)",
    "ExecReload": "servers are restarted, not reloaded",
    "SendSIGKILL": "what outlives its grace is always killed",
    "Slice": "its cgroup lies below the daemon's; a drop-in for sglang-supervisor.service can limit them all together",
}
_UNNEEDED = {
    "Type": "readiness is found by its probe",
    "NotifyAccess": "readiness is found by its probe",
    "TimeoutStartSec": "each phase of a start has its own deadline (docs/configuration.md, deadlines)",
    "TimeoutSec": "stop.grace has its part for the stop; each phase of a start has its own deadline",
    "RemainAfterExit": "it runs, or it does not",
    "StandardOutput": "its output is in the server's log: `sglctl tail NAME`",
    "StandardError": "its output is in the server's log: `sglctl tail NAME`",
    "StandardInput": "servers have no standard input",
    "SyslogIdentifier": "its output is in the server's log: `sglctl tail NAME`",
    "KillMode": "the whole tree is always ended",
    "PIDFile": "its tree is known without",
    "GuessMainPID": "its tree is known without",
    "OOMPolicy": "the kernel's kill of one process is a cause of its own",
    "Delegate": "the daemon's unit has it",
    "TasksMax": "the daemon's unit has no limit",
    "StartLimitAction": "a budget that is spent ends in FATAL",
}
_CARRIED = {
    "ExecStart", "Environment", "EnvironmentFile", "User", "Group", "WorkingDirectory", "UMask", "Nice",
    "OOMScoreAdjust", "LimitNOFILE", "LimitMEMLOCK", "TimeoutStopSec", "Restart", "RestartSec", "RestartMaxDelaySec",
    "KillSignal", "StartLimitBurst", "StartLimitIntervalSec", "StartLimitInterval",
}  # fmt: skip


def convert_unit(path: Path) -> Conversion:
    """The unit's one server. Raises ConversionError where systemd would refuse the file, or nothing would start."""
    unit = Unit(path)
    environment = _environment(unit)
    command, remarks = _command(unit, environment)
    config = ServerConfig(
        name=server_name(unit.stem),
        command=command,
        user=account(unit.last("User")),
        group=account(unit.last("Group")),
        environment=environment,
        umask=octal(unit.last("UMask") or _UMASK, "UMask"),
        nice=_between(unit.last("Nice"), "Nice", -20, 19),
        oom_score_adj=_between(unit.last("OOMScoreAdjust"), "OOMScoreAdjust", -1000, 1000),
        limits=LimitsConfig(nofile=_limit(unit, "LimitNOFILE"), memlock=_limit(unit, "LimitMEMLOCK")),
        stop=_stop(unit),
        restart=_restart(unit),
    )
    draft = _with_places(Draft(config, remarks=tuple(remarks)), unit)
    draft = without_shell(draft).losing(*_lost(unit)).remarking(*_different(unit))
    read = tuple(f"read with it: {file}" for file in unit.drop_ins)
    return Conversion(source=str(path), drafts=(draft,), remarks=read)


# --- the command -----------------------------------------------------------------------------------------------------


def _environment(unit: Unit) -> dict[str, str]:
    environment: dict[str, str] = {}
    for value in unit.all("Environment"):
        for word in words(value, "Environment"):
            name, equals, text = word.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
                raise ConversionError(f"Environment: {name[:40]!r} is no NAME=VALUE")
            environment[name] = text
    return environment


def _command(unit: Unit, environment: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    lines = unit.all("ExecStart")
    if len(lines) != 1:
        raise ConversionError(f"ExecStart: expected one command, got {len(lines)}")
    prefix = re.match(r"[@:+!|-]*", lines[0])
    signs = prefix[0] if prefix else ""
    given = words(lines[0][len(signs) :], "ExecStart")
    if ";" in given or not given:
        raise ConversionError("ExecStart: expected one command")
    remarks = []
    if "@" in signs and len(given) > 1:
        given = [given[0], *given[2:]]
        remarks.append("ExecStart: a server's first argument is its program's name")
    if set(signs) & set("+!|"):
        remarks.append(f"ExecStart: {signs} is about rights or a shell, which a server's user decides here")
    if ":" not in signs and any("$" in word for word in given):
        given = [given[0], *_arguments(given[1:], {**environment, **_filed(unit)}, unit.room)]
        remarks.append("ExecStart: the values of its variables are written out")
    return tuple(given), remarks


def _arguments(given: list[str], environment: Mapping[str, str], room: Room) -> list[str]:
    try:
        return [part for word in given for part in expanded(word, environment, room)]
    except KeyError as name:
        # systemd makes nothing of it, with a warning: here somebody should know.
        raise ConversionError(
            f"ExecStart: ${{{name.args[0]}}} is set neither by Environment= nor by an EnvironmentFile= that can be read"
            " here; write its value into a copy of the unit"
        ) from None


def _filed(unit: Unit) -> dict[str, str]:
    """What the unit's files set, as far as they can be read here."""
    result: dict[str, str] = {}
    for file in unit.all("EnvironmentFile"):
        with contextlib.suppress(EnvironmentRefusedError, ConversionError):
            result |= env_of(unit.files.text(Path(file.lstrip("-"))), file)
    return result


# --- settings that have a key of their own ---------------------------------------------------------------------------


def _with_places(draft: Draft, unit: Unit) -> Draft:
    files, directory = unit.all("EnvironmentFile"), unit.last("WorkingDirectory")
    if files:
        first = files[0].lstrip("-")
        if files[0].startswith("-"):
            draft = draft.remarking(
                f"env_file: {first} must be there, the minus sign of the unit allowed it to be missing"
            )
        if first.startswith("/") and not set(first) & set("*?["):
            draft = draft.having(msgspec.structs.replace(draft.config, env_file=first))
        else:
            draft = draft.losing(f"EnvironmentFile = {first}: env_file is the path of one file")
    if files and draft.config.environment:
        draft = draft.remarking(
            "environment has the last word here; in the unit the file had, where both set a variable"
        )
    for more in files[1:]:
        draft = draft.losing(f"EnvironmentFile = {more}: a server has one env_file; put the lines into the first")
    if directory and directory.lstrip("-").startswith("/"):
        return draft.having(msgspec.structs.replace(draft.config, directory=directory.lstrip("-")))
    return draft.losing(f"WorkingDirectory = {directory}: write its path") if directory else draft


def _stop(unit: Unit) -> StopConfig:
    timeout, signal = unit.last("TimeoutStopSec") or unit.last("TimeoutSec"), unit.last("KillSignal")
    return StopConfig(
        signal=signal_name(signal, "KillSignal") if signal else None,
        grace_s=_seconds(timeout, "TimeoutStopSec") if timeout is not None else None,
    )


def _restart(unit: Unit) -> RestartConfig:
    """Restart=always and on-failure are one here: a server that is wanted up and ends has failed."""
    default = RestartConfig()
    if (unit.last("Restart") or "no") == "no":
        return RestartConfig(budget=0)
    pause = _seconds(unit.last("RestartSec") or "", "RestartSec")
    longest = _seconds(unit.last("RestartMaxDelaySec") or "", "RestartMaxDelaySec")
    burst = unit.last("StartLimitBurst", "Unit") or unit.last("StartLimitBurst")
    window = _limit_interval(unit)
    backoff_s = default.backoff_s if pause is None else pause
    return RestartConfig(
        backoff_s=backoff_s,
        backoff_max_s=max(default.backoff_max_s if longest is None else longest, backoff_s),
        budget=default.budget if burst is None else _between(burst, "StartLimitBurst", 0, 10**6),
        window_s=window or default.window_s,
    )


def _limit_interval(unit: Unit) -> float | None:
    for section in ("Unit", "Service"):
        for key in ("StartLimitIntervalSec", "StartLimitInterval"):
            if value := unit.last(key, section):
                return _seconds(value, key)
    return None


def _seconds(text: str, place: str) -> float | None:
    """A time span such as "90", "5min 20s"; None for infinity and for no text."""
    if text in ("", "infinity"):
        return None
    parts = _SPAN.findall(text)
    if (
        not parts
        or _SPAN.sub("", text).strip()
        or any(unit not in _TIME_UNITS_S for _, unit in parts)
        or len(parts) > 8
    ):
        raise ConversionError(f"{place}: {text[:40]!r} is no time span")
    return sum(float(number) * _TIME_UNITS_S[unit] for number, unit in parts)


def _limit(unit: Unit, key: str) -> int | None:
    """The soft limit of SOFT:HARD, which is the one in force."""
    text = (unit.last(key) or "").partition(":")[0]
    if text in ("", "infinity"):
        return UNLIMITED if text else None
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text, re.ASCII)
    if match is None:
        raise ConversionError(f"{key}: {text[:40]!r} is no limit")
    return int(match[1]) * _SIZES[match[2]]


def _between(text: str | None, key: str, low: int, high: int) -> int:
    if text is None:
        return 0
    if not re.fullmatch(r"[-+]?[0-9]{1,9}", text, re.ASCII) or not low <= int(text) <= high:
        raise ConversionError(f"{key}: expected {low} to {high}, got {text[:40]!r}")
    return int(text)


# --- what has no key -------------------------------------------------------------------------------------------------


def _lost(unit: Unit) -> list[str]:
    lost = []
    for key in unit.keys("Service"):
        if key in _INSTEAD:
            lost.append(f"{key}: {_INSTEAD[key]}")
        elif key == "TimeoutStopSec" and unit.last(key) == "infinity":
            lost.append("TimeoutStopSec = infinity: a stop has an end here, stop.grace")
        elif key == "WatchdogSec":
            lost.append("WatchdogSec: a server is judged by its log, its counters and its probes")
        elif key not in _CARRIED and key not in _UNNEEDED:
            lost.append(
                f"{key}: no server has it; a drop-in for sglang-supervisor.service holds for all of them together"
            )
    return lost


def _different(unit: Unit) -> list[str]:
    remarks = [f"{key}: {_UNNEEDED[key]}" for key in unit.keys("Service") if key in _UNNEEDED]
    orders = [key for key in ("After", "Requires", "Wants", "BindsTo", "Before", "PartOf") if unit.last(key, "Unit")]
    if orders:
        remarks.append(
            f"{', '.join(orders)}: the daemon's unit is ordered after networks, remote disks and fabric managers"
        )
    if unit.last("Restart") not in (None, "no"):
        remarks.append("Restart: what no restart can help is not restarted, whatever the unit said (`sglctl why`)")
    if unit.keys("Install"):
        remarks.append("WantedBy: servers with autostart start with the daemon")
    return remarks
