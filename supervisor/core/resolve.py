"""Lays one server's configuration over its engine's profile and command line: `Settings`, all in seconds."""

from __future__ import annotations

import math
from hashlib import sha256

import msgspec

from supervisor.config import CauseAction, PhaseDeadline, ServerConfig
from supervisor.core.settings import (
    CauseRule,
    DetectorSettings,
    PhaseLimit,
    ReadinessSettings,
    ReclaimSettings,
    RestartSettings,
    ServingSettings,
    Settings,
    StopSettings,
)
from supervisor.profile import CommandFacts, PhaseRule, Profile
from supervisor.units import signal_number

# Memory that nobody gives back is the device's trouble first: its quarantine is decided before the server's.
_DEVICE_FIRST_S = 15.0


# The first stages wait legitimately without doing anything: imports from a cold network disk, peers of other nodes.
_WAITS = 2
_IDLE_SHARE = 0.5


def resolve(
    config: ServerConfig,
    profile: Profile,
    facts: CommandFacts,
    gpus: tuple[int, ...] = (),
    leave_limit_s: float = 0.0,
) -> Settings:
    """What `Server` needs to know. `gpus` are the devices that the lease gave; the plan's own by default.

    `leave_limit_s` is the patience with those who hand requests out to it, 0 when there are none.
    """
    return Settings(
        name=config.name,
        engine=profile.name,
        port=config.port or facts.port,
        gpus=gpus or config.gpus.indices,
        model=facts.served_name or facts.model_path,
        model_path=facts.model_path,
        deadlines=_deadlines(config, profile),
        readiness=_readiness(config, profile),
        stop=_stop(config, profile, leave_limit_s),
        restart=_restart(config, profile),
        serving=_serving(config),
        detectors=DetectorSettings(**msgspec.structs.asdict(config.detectors)),
        history_key=_history_key(config, profile),
        reclaim=ReclaimSettings(own_limit_s=config.reclaim_limit_s + _DEVICE_FIRST_S),
    )


def _deadlines(config: ServerConfig, profile: Profile) -> dict[str, PhaseLimit]:
    """The profile's deadlines under both names of a phase, with the file's laid over them."""
    limits: dict[str, PhaseLimit] = {}
    for rule in profile.phases:
        for name in {rule.name, rule.speculative_name or rule.name}:
            limits[name] = _limit(rule, config.deadlines.get(name), may_idle=rule.stage in profile.stages[:_WAITS])
    return limits


def _limit(rule: PhaseRule, own: PhaseDeadline | None, *, may_idle: bool) -> PhaseLimit:
    stall_s = (own.stall_s if own and own.stall_s is not None else rule.stall_s) or math.inf  # 0 switches it off
    limit_s = (own.limit_s if own and own.limit_s is not None else rule.limit_s) or math.inf
    idle_s = math.inf if may_idle else max(min(rule.floor_s, stall_s), stall_s * _IDLE_SHARE)
    source = "config" if own and (own.stall_s is not None or own.limit_s is not None) else "profile"
    return PhaseLimit(stall_s, limit_s, idle_s, rule.floor_s, source)


def _readiness(config: ServerConfig, profile: Profile) -> ReadinessSettings:
    own, rule = config.readiness, profile.readiness
    return ReadinessSettings(
        timeout_s=own.timeout_s if own.timeout_s is not None else rule.timeout_s,
        warming_interval_s=rule.warming_interval_s,
        interval_s=own.interval_s if own.interval_s is not None else rule.interval_s,
        failure_threshold=rule.failure_threshold,
    )


def _stop(config: ServerConfig, profile: Profile, leave_limit_s: float) -> StopSettings:
    own, rule = config.stop, profile.stop
    return StopSettings(
        grace_s=own.grace_s if own.grace_s is not None else rule.grace_s,
        startup_grace_s=own.startup_grace_s if own.startup_grace_s is not None else rule.startup_grace_s,
        signal=signal_number(own.signal if own.signal is not None else rule.signal),
        evidence=own.evidence,
        leave_limit_s=leave_limit_s,
    )


def _serving(config: ServerConfig) -> ServingSettings:
    own = config.serving
    return ServingSettings(
        stall_s=own.stall_s or math.inf,
        stopped_s=own.stopped_s or math.inf,
        stuck_s=own.stuck_s or math.inf,
        canary_interval_s=own.canary_s or math.inf,
        capacity_drop=own.capacity_drop,
    )


def _restart(config: ServerConfig, profile: Profile) -> RestartSettings:
    """Rules per cause: the profile's classes, with the file's word over them."""
    own = config.restart
    rules = {cause.name: CauseRule(_action(cause.restart), cause.backoff_factor) for cause in profile.causes}
    for name, action in own.causes.items():
        rules[name] = CauseRule(action, rules[name].backoff_factor if name in rules else 1.0, told=True)
    return RestartSettings(
        backoff_s=own.backoff_s,
        backoff_max_s=own.backoff_max_s,
        factor=own.factor,
        jitter=own.jitter,
        budget=own.budget,
        window_s=own.window_s,
        same_cause_limit=own.same_cause,
        rules=rules,
    )


def _action(restart: str) -> CauseAction:
    return CauseAction.FATAL if restart == "no" else CauseAction.RETRY


def _history_key(config: ServerConfig, profile: Profile) -> str:
    """What makes starts comparable: engine, command and number of devices; a change of any starts the learning anew."""
    words = [profile.name, str(config.gpus.size), *config.command]
    return sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:16]
