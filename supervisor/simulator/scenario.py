"""Reads the text of a scenario (what shall go wrong, where and when) into values.

The syntax is `kind:key=value,key=value`, for example `stall:phase=verify-graph,rank=TP3,after=50%`.
The simulator imports the standard library alone and must start fast, hence NamedTuple and not msgspec.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

DEFAULT_ORPHAN_LIFE_S = 300.0


class ScenarioError(ValueError):
    """A scenario that cannot be understood or cannot happen in this run."""


class Kind(Enum):
    """What goes wrong."""

    NORMAL = "normal"
    STALL = "stall"
    CRASH = "crash"
    SLOW = "slow"
    OOM_KILL = "oom-kill"
    IGNORE_TERM = "ignore-term"
    ORPHANS = "orphans"
    ORPHAN_SIGQUIT = "orphan-sigquit"
    FLOOD = "flood"
    ZOMBIE_200 = "zombie-200"
    EXIT_ON_CONFIG = "exit-on-config"
    HOSTILE = "hostile"
    JIT = "jit"


class Scenario(NamedTuple):
    """One thing that goes wrong; fields that a kind does not use keep their defaults."""

    kind: Kind
    phase: str = ""
    rank: str = ""
    after_fraction: float | None = None
    after_s: float | None = None
    factor: float = 1.0
    cause: str = ""
    copies: int = 2
    megabytes: float = 50.0
    busy: bool = False
    dead: bool = False
    life_s: float = DEFAULT_ORPHAN_LIFE_S
    once: str = ""


def parse_scenario(text: str) -> Scenario:
    """Raise ScenarioError with the offending part when the text is wrong."""
    name, _, rest = text.strip().partition(":")
    try:
        kind = Kind(name)
    except ValueError:
        known = " ".join(kind.value for kind in Kind)
        raise ScenarioError(f"cannot read scenario {text!r}: unknown kind {name!r}; known: {known}") from None
    scenario = Scenario(kind)
    for part in filter(None, rest.split(",")):
        scenario = _with_field(scenario, part, text)
    return _with_defaults(scenario)


def parse_scenarios(texts: Iterable[str]) -> tuple[Scenario, ...]:
    """Each text may hold several scenarios joined by `;` (an environment variable has room for one text)."""
    return tuple(parse_scenario(part) for text in texts for part in text.split(";") if part.strip())


def slowness(scenarios: Iterable[Scenario], phase: str) -> float:
    """How many times as long the phase takes."""
    slow = (one.factor for one in scenarios if one.kind is Kind.SLOW and one.phase in ("", phase))
    return math.prod(slow, start=1.0)


def claim_once(scenarios: Iterable[Scenario]) -> tuple[Scenario, ...]:
    """Keep the scenarios that apply to this start, creating the `once` files of those that do.

    Scenarios that share one file belong together: the file is claimed once for all of them.
    """
    wanted = tuple(scenarios)
    claimed = {path for path in {scenario.once for scenario in wanted} if not path or _create(path)}
    return tuple(scenario for scenario in wanted if scenario.once in claimed)


def _create(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def _with_field(scenario: Scenario, part: str, text: str) -> Scenario:
    key, equals, value = part.partition("=")
    if not equals:
        raise ScenarioError(f"cannot read scenario {text!r}: {part!r} is not key=value")
    try:
        return _assign(scenario, key.strip(), value.strip())
    except ValueError as error:
        raise ScenarioError(f"cannot read scenario {text!r}: {part!r}: {error}") from None


def _assign(scenario: Scenario, key: str, value: str) -> Scenario:
    match key:
        case "phase":
            return scenario._replace(phase="serving" if value == "healthy" else value)
        case "rank":
            return scenario._replace(rank=value)
        case "cause":
            return scenario._replace(cause=value)
        case "once":
            return scenario._replace(once=value)
        case "busy":
            return scenario._replace(busy=value not in ("0", "no", "false"))
        case "how":
            return scenario._replace(dead=_is_dead(value))
        case _:
            return _assign_number(scenario, key, value)


def _assign_number(scenario: Scenario, key: str, value: str) -> Scenario:
    match key:
        case "after" if value.endswith("%"):
            return scenario._replace(after_fraction=min(1.0, max(0.0, float(value[:-1]) / 100)))
        case "after":
            return scenario._replace(after_s=_seconds(value))
        case "factor":
            return scenario._replace(factor=float(value))
        case "count":
            return scenario._replace(copies=int(value))
        case "mb":
            return scenario._replace(megabytes=float(value))
        case "life":
            return scenario._replace(life_s=_seconds(value))
        case _:
            raise ValueError("unknown key; known: phase rank after factor cause count mb busy how life once")


def _is_dead(value: str) -> bool:
    if value not in ("dead", "hang"):
        raise ValueError("how is dead or hang")
    return value == "dead"


def _seconds(value: str) -> float:
    """Seconds of `90s`, `5m`, `1h` or a bare number."""
    units = (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0))
    for suffix, factor in units:
        if value.endswith(suffix):
            return float(value[: -len(suffix)]) * factor
    return float(value)


def _with_defaults(scenario: Scenario) -> Scenario:
    match scenario.kind:
        case Kind.STALL | Kind.CRASH | Kind.OOM_KILL if not scenario.phase:
            return scenario._replace(phase="weights")
        case Kind.FLOOD if not scenario.phase:
            return scenario._replace(phase="serving")
        case _:
            return scenario
