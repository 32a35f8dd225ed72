"""The servers of one history: which devices and ports they want, how patient they are."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
from msgspec.structs import replace

from supervisor.config import (
    CauseAction,
    Config,
    DaemonConfig,
    DetectorMode,
    GpuPlan,
    GroupConfig,
    GroupOrder,
    OnForeign,
    RouterConfig,
    RouterKind,
    ServerConfig,
)
from supervisor.config.groups import check_groups
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

LEAST_PATIENCE_S = 60.0  # no phase of any server is given less
WINDOW_S = 600.0
RESET_AFTER_S = 200.0


class Plan(msgspec.Struct, frozen=True):
    """One server of the configuration."""

    settings: Settings
    gpus: GpuPlan
    on_foreign: OnForeign

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    def with_routers(self) -> Plan:
        """The same, with a router to leave before its end."""
        return replace(self, settings=replace(self.settings, stop=replace(self.settings.stop, leave_limit_s=5.0)))


def plans(chance: Random, gpus: int) -> tuple[Plan, ...]:
    """Between one and three servers, which may want the same devices and the same port."""
    return tuple(_plan(f"s{index}", chance, gpus) for index in range(chance.randint(1, 3)))


def plan_host(names: Sequence[str], chance: Random) -> Config:
    """What the file says of them together: slots, needs, one group, a router. Most hosts have none of it."""
    groups: dict[str, GroupConfig] = {}
    servers = {name: ServerConfig(name, (name, "0")) for name in names}
    if chance.random() < 0.6:
        return Config(servers=servers)
    if len(names) > 1 and chance.random() < 0.5:
        pair = tuple(chance.sample(names, 2))
        order = chance.choice(tuple(GroupOrder))
        groups["pair"] = GroupConfig("pair", pair, order, together=chance.random() < 0.8)
    for at, name in enumerate(names):
        after, requires = (tuple(other for other in names[:at] if chance.random() < 0.3) for _ in range(2))
        tied = ServerConfig(name, (name, "0"), priority=chance.choice((0, 0, 1)), after=after, requires=requires)
        if not check_groups(Config(servers=servers | {name: tied}, groups=groups)):
            servers[name] = tied
    routers = {"gate": RouterConfig("gate", RouterKind.GATEWAY)} if chance.random() < 0.4 else {}
    return Config(DaemonConfig(start_slots=chance.choice((0, 1, 1, 2))), servers, groups, routers)


def _plan(name: str, chance: Random, gpus: int) -> Plan:
    first = chance.randrange(gpus)
    indices = tuple(range(first, min(gpus, first + chance.randint(1, 2))))
    plan = chance.choice((GpuPlan(indices), GpuPlan(indices), GpuPlan(count=len(indices)), GpuPlan()))
    port = chance.choice((30000, 30000 + int(name[1:]), 30000 + int(name[1:])))
    return Plan(_settings(name, port, plan, chance), plan, chance.choice(tuple(OnForeign)))


def _settings(name: str, port: int, plan: GpuPlan, chance: Random) -> Settings:
    rules = {"oom-gpu": CauseRule(chance.choice(tuple(CauseAction)), told=True)} if chance.random() < 0.3 else {}
    return Settings(
        name=name,
        engine="sglang",
        port=port,
        gpus=plan.indices,
        deadlines={"weights": PhaseLimit(LEAST_PATIENCE_S, 300.0), "launch": PhaseLimit(120.0, 120.0)},
        default_limit=PhaseLimit(120.0, 600.0, LEAST_PATIENCE_S),
        readiness=ReadinessSettings(interval_s=40.0, refused_interval_s=25.0, liveness_stall_s=60.0),
        restart=RestartSettings(
            budget=chance.choice((0, 1, 2, 5)),
            backoff_s=chance.choice((0.0, 1.0, 5.0)),
            window_s=WINDOW_S,
            reset_after_s=RESET_AFTER_S,
            rules=rules,
        ),
        stop=StopSettings(
            grace_s=chance.choice((0.0, 3.0, 90.0)),
            evidence=chance.random() < 0.2,
            leave_limit_s=chance.choice((0.0, 0.0, 5.0)),
        ),
        reclaim=ReclaimSettings(recheck_s=1.0, recheck_max_s=40.0, own_limit_s=75.0),
        serving=ServingSettings(canary_interval_s=chance.choice((100.0, 300.0))),
        detectors=DetectorSettings(canary=chance.choice((DetectorMode.OBSERVE, DetectorMode.ENFORCE))),
    )
