"""What holds for a host of servers whatever happens: random ties, slots, devices and events in virtual time.

Never more units in heavy phases than there are slots (a start that is stuck has given its slot up); nobody starts before
those whom it needs; and when nothing is broken any more, everybody who can start does: no server waits while a slot is
free and what it needs is there, which is also why slots and devices cannot deadlock. That no device has two servers is
for the device book, which stands in here as `AnyHost.lease`; `tests/fleet/` judges the real one.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from msgspec.structs import replace

from supervisor.config.groups import Ties
from supervisor.core.fleet.member import Member
from supervisor.core.fleet.needs import Go, Refuse
from supervisor.core.fleet.starts import Fleet, Rules
from supervisor.core.lifecycle import State

DEVICES = 4
NAMES = [f"s{number}" for number in range(6)]
STEPS = 120


def any_rules(chance: random.Random) -> Rules:
    """Ties go from a server to earlier ones only: there are no cycles, as the configuration's check sees to it."""
    ties: dict[str, Ties] = {}
    gang = chance.choice(["", "", "pair"])
    for number, name in enumerate(NAMES):
        earlier = NAMES[:number]
        if gang and number < 2:
            ties[name] = Ties(group=gang, mates=(NAMES[1 - number],), gang=gang)
        else:
            after, requires = (
                tuple(chance.sample(earlier, min(len(earlier), chance.choice([0, 0, 1, 2])))) for _ in range(2)
            )
            ties[name] = Ties(after, requires)
    priorities = {name: chance.randint(-1, 1) for name in NAMES}
    return Rules(chance.choice([1, 2, 3, 0]), priorities, ties)


class AnyHost:
    """Servers that start, hang, crash and stop, each with as many devices as it wants; a look takes time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.fleet = Fleet(any_rules(self.chance))
        self.members = {name: Member(name, State.STOPPED) for name in NAMES}
        self.wants = {name: self.chance.choice([0, 1, 3]) for name in NAMES}
        self.leases: dict[str, int] = {}
        self.foreign: set[str] = set()  # whose devices somebody else uses
        self.looking: set[str] = set()
        for name in NAMES:
            self.asked_to_start(name)

    # --- what may happen ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        name = self.chance.choice(NAMES)
        usual = [self.looks, self.has_looked] * 4 + [self.becomes_healthy, self.asked_to_start] * 2
        trouble = [self.asked_to_stop, self.ends, self.hangs, self.crashes, self.fails, self.somebody_uses_its_devices]
        self.chance.choice(usual + trouble)(name)
        self.now += self.chance.choice([0.1, 0.1, 1.0, 10.0, 100.0, 4000.0 if self.chance.random() < 0.1 else 0.1])

    def asked_to_start(self, name: str) -> None:
        if self.members[name].state in (State.STOPPED, State.FATAL, State.BACKOFF):
            self.put(name, State.RECLAIMING)

    def asked_to_stop(self, name: str) -> None:
        state = self.members[name].state
        self.members[name] = replace(self.members[name], wanted=False)
        if state in (State.STARTING, State.RUNNING):
            self.put(name, State.STOPPING, wanted=False)
        elif state in (State.RECLAIMING, State.BACKOFF, State.FATAL):
            self.rest(name, State.STOPPED, wanted=False)

    def looks(self, name: str) -> None:
        """The first half: it asks, and takes its devices."""
        if not self.members[name].claiming:
            assert not isinstance(self.fleet.ask(name, self.members, self.now), Go)  # a question may come late
            return
        if name in self.looking:
            return
        match self.fleet.ask(name, self.members, self.now):
            case Go():
                self.needs_are_met(name)
                self.looking.add(name)
            case Refuse():
                self.rest(name, State.FATAL)
            case _:
                self.leases.pop(name, None)

    def has_looked(self, name: str) -> None:
        """The second half, after whatever else has happened meanwhile."""
        if name not in self.looking:
            return
        self.looking.discard(name)
        if not self.members[name].claiming:
            assert not isinstance(self.fleet.looked(name, self.members, self.now, free=True), Go)
            assert self.fleet.looked(name, self.members, self.now, free=False) == Go()  # what was found is told
            return
        free = name not in self.foreign and self.lease(name)
        answer = self.fleet.looked(name, self.members, self.now, free=free)
        if not free:
            return
        if isinstance(answer, Go):
            self.put(name, State.STARTING)
        else:
            self.leases.pop(name, None)

    def becomes_healthy(self, name: str) -> None:
        if self.members[name].state is State.STARTING:
            self.put(name, State.RUNNING)

    def crashes(self, name: str) -> None:
        if self.members[name].state in (State.STARTING, State.RUNNING):
            self.put(name, State.BACKOFF)

    def fails(self, name: str) -> None:
        if self.members[name].state in (State.STARTING, State.RUNNING):
            self.rest(name, State.FATAL)

    def ends(self, name: str) -> None:
        if self.members[name].state is State.STOPPING:
            self.rest(name, State.STOPPED, wanted=False)

    def hangs(self, name: str) -> None:
        if self.members[name].state is State.STARTING:
            self.members[name] = replace(self.members[name], stalled=True)

    def somebody_uses_its_devices(self, name: str) -> None:
        self.foreign ^= {name}

    # --- what always holds -------------------------------------------------------------------------------------------

    def never_more_than_the_slots(self) -> None:
        slots = self.fleet.rules.slots
        units = {self.fleet.rules.ties[name].gang or name for name in self.fleet.starting(self.members, self.now)}
        assert not slots or len(units) <= slots, units

    def heal(self) -> None:
        """Nothing is broken any more and time goes on: everybody who may start is healthy in the end."""
        self.foreign.clear()
        for name, one in self.members.items():
            if one.state is State.STOPPING:
                self.rest(name, State.STOPPED, wanted=False)
            elif one.state is State.BACKOFF:
                self.put(name, State.RECLAIMING)
            elif one.state is State.RUNNING:
                self.put(name, State.RUNNING)
        for _ in range(40):
            self.now += 5.0
            for name in sorted(self.members, reverse=True):  # the worst order: whoever needs others is asked first
                self.one_round(name)
        for name, one in self.members.items():
            if one.claiming:
                assert self.excused(name), f"{name} waits for ever: {self.fleet.ask(name, self.members, self.now)}"

    def one_round(self, name: str) -> None:
        self.looks(name)
        self.has_looked(name)
        self.becomes_healthy(name)

    def excused(self, name: str) -> bool:
        """It needs one that is not there, comes after one that is excused itself, or healthy servers have the devices."""
        ties = self.fleet.rules.ties[name]
        short = DEVICES - sum(held for other, held in self.leases.items() if other != name) < self.wants[name]
        waits = any(self.members[other].claiming and self.excused(other) for other in ties.after)
        return short or waits or any(not self.members[other].healthy for other in ties.requires)

    # --- the servers -------------------------------------------------------------------------------------------------

    def put(self, name: str, state: State, *, wanted: bool = True) -> None:
        self.now += 0.001
        facts = {"wanted": wanted, "stalled": False, "healthy": state is State.RUNNING}
        self.members[name] = replace(self.members[name], state=state, since=self.now, **facts)

    def rest(self, name: str, state: State, *, wanted: bool = True) -> None:
        self.leases.pop(name, None)
        self.put(name, state, wanted=wanted)

    def needs_are_met(self, name: str) -> None:
        ties = self.fleet.rules.ties[name]
        assert all(self.members[other].healthy for other in ties.requires)
        settled = (State.RUNNING, State.FATAL, State.QUARANTINED, State.STOPPED)
        assert all(self.members[other].state in settled for other in ties.after)
        assert not any(self.members[mate].ending for mate in ties.mates)

    def lease(self, name: str) -> bool:
        taken = sum(held for other, held in self.leases.items() if other != name)
        if taken + self.wants[name] > DEVICES:
            return False
        self.leases[name] = self.wants[name]
        return True


@hypothesis_settings(max_examples=400, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**32))
def test_any_history_keeps_the_rules_and_ends_well(seed: int) -> None:
    host = AnyHost(seed)
    for _ in range(STEPS):
        host.step()
        host.never_more_than_the_slots()
    host.heal()
    host.never_more_than_the_slots()
