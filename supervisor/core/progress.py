"""Follows every rank of a start through its phases, from the matches of the log."""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.log.figures import amount_of, count_of
from supervisor.core.rankorder import RankOrder
from supervisor.core.ranks import Rank, Step, timeline
from supervisor.events import LineMatched
from supervisor.profile import CommandFacts, LogRule, PhaseRule, Profile
from supervisor.snapshot import ProgressView, StartupView

LAUNCHER = ""
MAX_RANKS = 1024  # of one log; the largest hosts have 16 GPUs, each with a few roles


class Movement(enum.StrEnum):
    """What a match says about life."""

    NOTHING = "nothing"
    ACTIVITY = "activity"  # something was said: alive, perhaps turning in place
    PROGRESS = "progress"  # a phase was entered or left, or a bar counted on


class Advance(msgspec.Struct, frozen=True):
    """What one match has changed."""

    movement: Movement = Movement.NOTHING
    phase_changed: bool = False  # of the start as a whole
    listening: bool = False
    ready: bool = False  # a hint: readiness is proven by a probe
    fatal: bool = False


class PhaseTracker:
    """The phases of one attempt. `now` is whatever clock the caller uses, in seconds."""

    def __init__(self, profile: Profile, facts: CommandFacts | None = None) -> None:
        self._profile = profile
        self._rules = {rule.name: rule for rule in profile.rules}
        self._phases = _by_name(profile)
        self._speculative = bool(facts and facts.speculative)
        self._first = profile.phases[0].name
        self._order = RankOrder(self._first)
        self._ranks: dict[str, Rank] = {}
        self._begun = 0.0
        self._since = 0.0
        self._last_progress = 0.0
        self._phase = ""
        self._ready = False

    @property
    def ready_seen(self) -> bool:
        """The engine has said that it is ready."""
        return self._ready

    def begin(self, now: float) -> None:
        """The process has just been started."""
        self._order = RankOrder(self._first)
        self._ranks = {LAUNCHER: Rank(LAUNCHER, Step(self._first, now))}
        self._begun = now
        self._since = self._last_progress = now
        self._phase = self._first
        self._ready = False

    def serve(self) -> None:
        """The probes say that it serves, whatever the log says: from now on only answered requests are progress."""
        self._ready = True

    def observe(self, match: LineMatched, now: float) -> Advance:
        """Takes one match in."""
        rule = self._rules.get(match.rule)
        if rule is None:
            return Advance(Movement.ACTIVITY)
        if not self._ranks:
            self.begin(now)
        if rule.facts:
            self._learn(match)
        before = self._phase
        moved = self._apply(rule, match, now) if not self._ready else rule.life
        if moved:
            self._last_progress = now
        self._settle()
        return Advance(
            movement=Movement.PROGRESS if moved else Movement.ACTIVITY if rule.progress else Movement.NOTHING,
            phase_changed=self._phase != before,
            listening=rule.hint == "listening",
            ready=rule.hint == "ready",
            fatal=rule.hint == "fatal",
        )

    def view(self) -> StartupView:
        """Where everybody is."""
        named = self._named_ranks()
        lag = self._order.laggards(named)
        return StartupView(
            phase=self._phase,
            stage=self.stage,
            since=self._since,
            ranks=tuple(rank.view(self.stage_of(rank)) for rank in sorted(named or self._ranks.values(), key=_by_rank)),
            laggard=self._order.text(lag, named),
            last_progress=self._last_progress,
            ready_seen=self._ready,
            timeline=timeline(sorted(self._ranks.values(), key=_by_rank), self._order.phases),
            lagging=tuple(rank.name for rank in lag),
        )

    @property
    def stage(self) -> str:
        """The coarse stage of the slowest rank."""
        slowest = self._slowest()
        return self.stage_of(slowest) if slowest is not None else self._profile.stages[0]

    def rank_stage(self, name: str) -> str:
        """The coarse stage of that rank, or of the start when the rank has said nothing yet."""
        rank = self._ranks.get(name)
        return self.stage_of(rank) if rank is not None and name else self.stage

    def stage_of(self, rank: Rank) -> str:
        """A nested phase has the stage of the phase around it, if that is a later one than its own."""
        rule = self._phases[rank.step.phase]
        if not rule.nested or rank.outer is None:
            return rule.stage
        return max(rule.stage, self._phases[rank.outer.phase].stage, key=self._profile.stages.index)

    # --- one match ---------------------------------------------------------------------------------------------------

    def _learn(self, match: LineMatched) -> None:
        algorithm = match.fields.get("speculative", "")
        if algorithm and algorithm != "None":
            self._speculative = True

    def _apply(self, rule: LogRule, match: LineMatched, now: float) -> bool:
        if rule.hint == "ready":
            self._ready = True
        if rule.bar:
            return self._bar(rule, match, now)
        if rule.everyone:
            return self._everyone(rule, match, now)
        rank = self._rank(rule, match)
        self._order.printed(rule, rank.name)
        rank.hear(match)
        phase = self._meant(rule, match, rank)
        left = self._leave(rule, match, rank, now)
        if left:
            self._order.left_by(rule, left)
            return True
        if not phase:
            return False
        self._order.entered_by(rule, phase)
        return self._enter(rank, phase, now, weak=rule.weak)

    def _leave(self, rule: LogRule, match: LineMatched, rank: Rank, now: float) -> str:
        """The phase that the line ends: the target's, or the draft model's, which says the same words."""
        phases = [self._named(phase) for phase in (rule.leave, rule.again) if rule.leave and phase]
        return next((left for phase in phases if (left := rank.leave(phase, now, match.fields))), "")

    def _everyone(self, rule: LogRule, match: LineMatched, now: float) -> bool:
        moved = [self._enter(rank, self._named(rule.enter), now) for rank in list(self._ranks.values())]
        self._ranks[LAUNCHER].hear(match)
        return any(moved)

    def _enter(self, rank: Rank, phase: str, now: float, *, weak: bool = False) -> bool:
        if weak and rank.step.phase != self._first:
            return False
        self._order.enters(phase)
        nested = self._phases[phase].nested
        return rank.enter(phase, now, nested=nested)

    def _rank(self, rule: LogRule, match: LineMatched) -> Rank:
        """A rank's line without a rank in its prefix: there is only one."""
        name = match.rank
        if not name and rule.emitter == "rank":
            name = self._profile.grammar.lone_rank
        if name not in self._ranks:
            if len(self._ranks) > MAX_RANKS:  # whoever writes lines can make up ranks; memory and table stay bounded
                return self._ranks[LAUNCHER]
            self._ranks[name] = Rank(name, Step(self._first, self._begun))
        return self._ranks[name]

    def _meant(self, rule: LogRule, match: LineMatched, rank: Rank) -> str:
        """The phase that the line means: a draft model goes through the same lines again."""
        named = f"{match.fields.get('type', '')} {match.fields.get('what', '')}".lower()
        if rule.draft and "draft" in named:
            return self._named(rule.draft)
        if rule.again and rank.been_past(self._named(rule.enter)):
            return self._named(rule.again)
        return self._named(rule.enter)

    def _named(self, phase: str) -> str:
        if not phase:
            return ""
        rule = self._phases[phase]
        return rule.speculative_name if self._speculative and rule.speculative_name else rule.name

    def _bar(self, rule: LogRule, match: LineMatched, now: float) -> bool:
        """A bar carries no rank: it is that of the first rank in the bar's phase, or in a phase that has none."""
        progress = read_bar(rule, match)
        rank = self._bar_rank(rule)
        if progress is None or rank is None:
            return False
        entered = False
        stage = self._phases[rule.enter].stage if rule.enter else ""
        if stage and self.stage_of(rank) != stage:
            entered = self._enter(rank, self._named(rule.enter), now, weak=rule.weak)
        rank.hear(match)
        return rank.count(progress, match.fields.get("label", ""), now) or entered

    def _bar_rank(self, rule: LogRule) -> Rank | None:
        ranks = sorted(self._named_ranks(), key=_by_rank)
        if not ranks:
            if not rule.enter:
                return None
            return self._rank(rule, LineMatched(0, 0, rule.name))
        stage = self._phases[rule.enter].stage if rule.enter else self.stage
        inside = [rank for rank in ranks if self.stage_of(rank) == stage]
        return inside[0] if inside else ranks[0]

    # --- the start as a whole ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        slowest = self._slowest()
        if slowest is None:
            return
        if slowest.step.phase != self._phase:
            self._phase = slowest.step.phase
            self._since = slowest.step.begin

    def _slowest(self) -> Rank | None:
        ranks = self._named_ranks()
        return self._order.slowest(ranks) if ranks else self._ranks.get(LAUNCHER)

    def _named_ranks(self) -> list[Rank]:
        """All but the launcher."""
        return [rank for rank in self._ranks.values() if rank.name]


def read_bar(rule: LogRule, match: LineMatched) -> ProgressView | None:
    """The bar's numbers, with the time that is left by its own rate."""
    done, total = count_of(match.fields.get("done", "")), count_of(match.fields.get("total", ""))
    if done is None or not total:
        return None
    rate = _rate(match.fields.get("rate", ""), match.fields.get("per", ""))
    left = max(0, total - done)
    eta_s = left / rate if rate else 0.0 if left == 0 else None
    return ProgressView(done, total, rule.bar, rate, eta_s)


def _rate(number: str, unit: str) -> float | None:
    """Units per second from "3.00it/s" or "1.25s/it"."""
    value = amount_of(number)
    if value is None or value <= 0:
        return None
    return 1.0 / value if unit.startswith("s/") else value


def _by_name(profile: Profile) -> dict[str, PhaseRule]:
    named = {phase.name: phase for phase in profile.phases}
    return named | {phase.speculative_name: phase for phase in profile.phases if phase.speculative_name}


def _by_rank(rank: Rank) -> tuple[tuple[str, int], ...]:
    return rank.sort_key
