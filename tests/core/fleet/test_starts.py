"""Starts take turns: by needs, by slots, by priority; and nobody waits for what can never come."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from supervisor.config.groups import Ties
from supervisor.core.fleet.member import Member
from supervisor.core.fleet.needs import Admission, Go, Refuse, Wait
from supervisor.core.fleet.starts import Fleet, Rules, about
from supervisor.core.lifecycle import State

MINUTE = 60.0


class Host:
    """Servers in virtual time, one fleet over them; a test moves them from state to state."""

    def __init__(self, *names: str, slots: int = 0, **ties: Ties) -> None:
        self.now = 1000.0
        self.members = {name: Member(name, State.STOPPED, since=0.0) for name in names}
        self.fleet = Fleet(Rules(slots=slots, ties=ties))

    def prefer(self, **priorities: int) -> None:
        self.fleet.rules = replace(self.fleet.rules, priorities=priorities)

    def put(self, name: str, state: State, **facts: object) -> None:
        self.now += 0.001  # no two moments are the same
        known = {"wanted": True, "healthy": state is State.RUNNING, "stalled": False, **facts}
        self.members[name] = replace(self.members[name], state=state, since=self.now, **known)

    def want(self, *names: str) -> list[Admission]:
        """A start is asked for; the first answers."""
        for name in names:
            self.put(name, State.RECLAIMING)
        return [self.ask(name) for name in names]

    def ask(self, name: str) -> Admission:
        return self.fleet.ask(name, self.members, self.now)

    def look(self, name: str, *, free: bool = True) -> Admission:
        return self.fleet.looked(name, self.members, self.now, free=free)

    def start(self, *names: str) -> None:
        for name in names:
            assert self.want(name) == [Go()], name
            assert self.look(name) == Go()
            self.put(name, State.STARTING)

    def starting(self) -> list[str]:
        return self.fleet.starting(self.members, self.now)

    def line(self) -> list[str]:
        return self.fleet.line(self.members)

    def usual(self, **seconds: float) -> None:
        for name, one in seconds.items():
            self.members[name] = replace(self.members[name], usual_s=one)

    def ready_in(self) -> Mapping[str, float | None]:
        found = self.fleet.forecast(self.members, self.now)
        return {name: one.ready and round(one.ready - self.now) for name, one in found.items()}


# --- slots ---------------------------------------------------------------------------------------------------------


def test_without_a_limit_everybody_starts_at_once() -> None:
    assert Host("a", "b", "c").want("a", "b", "c") == [Go(), Go(), Go()]


def test_eight_servers_and_two_slots() -> None:
    """The boot of a host: two load at any time, and each that is healthy lets the next one begin."""
    names = [f"s{n}" for n in range(8)]
    host = Host(*names, slots=2)
    answers = host.want(*names)
    assert answers[:2] == [Go(), Go()]
    assert answers[2] == Wait("waits for a start slot: s0, s1 are starting; next in line")
    assert answers[4] == Wait("waits for a start slot: s0, s1 are starting; third in line")

    for done, name in enumerate(names):
        assert host.look(name) == Go()
        host.put(name, State.STARTING)
        assert len(host.starting()) == min(2, 8 - done)
        host.put(name, State.RUNNING)
        assert [isinstance(host.ask(other), Go) for other in names[done + 2 :]][:1] in ([True], [])


def test_a_slot_belongs_to_whoever_was_told_to_go_even_before_it_starts() -> None:
    host = Host("a", "b", slots=1)
    assert host.want("a", "b")[1] == Wait("waits for a start slot: a is starting; next in line")
    assert host.ask("a") == Go()
    assert isinstance(host.ask("b"), Wait)


def test_a_higher_priority_goes_first_whoever_asked_first() -> None:
    host = Host("a", "b", "c", slots=1)
    host.prefer(c=10, b=1)
    host.start("a")
    host.want("b", "c")
    assert host.line() == ["c", "b"]

    host.put("a", State.RUNNING)
    assert host.ask("b") == Wait("waits for a start slot; second in line")
    assert host.ask("c") == Go()


def test_a_restart_after_a_crash_takes_a_slot_before_newcomers_of_lower_priority() -> None:
    host = Host("old", "new", "busy", slots=1)
    host.prefer(old=5)
    host.start("old")
    host.put("old", State.RUNNING)
    host.start("busy")
    host.want("new")
    host.put("old", State.STOPPING)
    host.put("old", State.BACKOFF)
    assert host.want("old") == [Wait("waits for a start slot: busy is starting; next in line")]

    host.put("busy", State.RUNNING)
    assert isinstance(host.ask("new"), Wait)
    assert host.ask("old") == Go()


def test_a_slot_of_an_earlier_start_is_not_the_next_ones() -> None:
    """a has started, died and wants to start again: it waits like everybody."""
    host = Host("a", "b", slots=1)
    host.start("a")
    host.put("a", State.STOPPING)
    host.put("a", State.RECLAIMING)
    assert host.want("b") == [Go()]
    assert host.ask("a") == Wait("waits for a start slot: b is starting; next in line")


def test_who_wants_to_start_again_goes_behind_who_has_waited_meanwhile() -> None:
    """Nobody has asked since a had the slot: it has none any more all the same."""
    host = Host("a", "b", slots=1)
    assert isinstance(host.want("a", "b")[1], Wait)
    host.look("a")
    for state in (State.STARTING, State.STOPPING, State.RECLAIMING):
        host.put("a", state)
    assert host.ask("a") == Wait("waits for a start slot; second in line")
    assert host.ask("b") == Go()


def test_without_a_limit_whoever_was_told_to_go_counts_as_starting_too() -> None:
    host = Host("a", "b")
    host.want("a")
    assert host.starting() == ["a"]
    host.look("a", free=False)
    assert host.starting() == []


def test_who_is_far_behind_is_told_his_number() -> None:
    names = [f"s{n:02}" for n in range(12)]
    host = Host(*names, slots=1)
    answers = host.want(*names)
    assert answers[11] == Wait("waits for a start slot: s00 is starting; number 11 in line")


def test_a_server_that_is_stopped_while_it_waits_leaves_the_line() -> None:
    host = Host("a", "b", "c", slots=1)
    host.start("a")
    host.want("b", "c")
    host.put("b", State.STOPPED, wanted=False)
    host.put("a", State.RUNNING)
    assert host.ask("c") == Go()


def test_who_has_left_the_line_is_not_shown_in_it() -> None:
    """Nobody has asked since."""
    host = Host("a", "b", "c", slots=1)
    host.start("a")
    host.want("b", "c")
    host.put("b", State.STOPPED, wanted=False)
    assert host.line() == ["c"]


def test_the_look_of_an_earlier_wish_finds_no_slot_for_a_later_one() -> None:
    host = Host("a", "b", slots=1)
    host.want("a")
    host.put("a", State.STOPPED, wanted=False)
    host.put("a", State.RECLAIMING)
    host.put("b", State.STARTING)  # which an earlier daemon has left: nobody has asked since
    assert isinstance(host.look("a"), Wait)


def test_a_stalled_start_gives_its_slot_up() -> None:
    host = Host("a", "b", slots=1)
    host.start("a")
    assert isinstance(host.want("b")[0], Wait)
    host.members["a"] = replace(host.members["a"], stalled=True)
    assert host.ask("b") == Go()


@pytest.mark.parametrize(
    ("usual_s", "patience_s"), [(10 * MINUTE, 30 * MINUTE), (2 * MINUTE, 12 * MINUTE), (None, 60 * MINUTE)]
)
def test_a_start_that_takes_longer_than_usual_by_far_gives_its_slot_up(
    usual_s: float | None, patience_s: float
) -> None:
    host = Host("a", "b", slots=1)
    host.members["a"] = replace(host.members["a"], usual_s=usual_s)
    host.start("a")
    host.want("b")

    host.now += patience_s - 1
    assert isinstance(host.ask("b"), Wait)
    host.now += 2
    assert host.ask("b") == Go()


def test_a_server_that_waits_for_its_devices_has_no_slot() -> None:
    """Its look is what tells; from then on it looks first and takes a slot afterwards."""
    host = Host("a", "b", slots=1)
    assert host.want("a") == [Go()]
    host.look("a", free=False)
    assert host.starting() == []
    assert host.want("b") == [Go()]

    host.look("b", free=False)
    assert [host.ask("a"), host.starting()] == [Go(), []]
    assert host.look("a") == Go()
    assert host.starting() == ["a"]


def test_who_had_something_in_its_way_and_then_waits_for_a_slot_keeps_its_place() -> None:
    """What was in its way may be gone by then; who asked later does not pass it, and no two are next."""
    host = Host("a", "b", "c", slots=1)
    assert host.want("a") == [Go()]
    host.look("a", free=False)
    host.start("b")

    assert host.ask("a") == Wait("waits for a start slot: b is starting; next in line")
    assert host.want("c") == [Wait("waits for a start slot: b is starting; second in line")]
    host.put("b", State.RUNNING)
    assert host.ask("c") == Wait("waits for a start slot; second in line")
    assert host.ask("a") == Go()

    host.look("a", free=False)
    assert host.ask("c") == Go(), "it is still in its way: the slot goes to the next"


def test_a_slot_that_somebody_took_during_the_look_is_waited_for() -> None:
    host = Host("a", "b", slots=1)
    host.want("a")
    host.look("a", free=False)
    assert host.ask("a") == Go()
    host.start("b")
    assert host.look("a") == Wait("waits for a start slot: b is starting; next in line")


def test_members_that_wait_for_each_other_within_their_start_share_a_slot() -> None:
    pair = {"a": Ties(group="pair", mates=("b",), gang="pair"), "b": Ties(group="pair", mates=("a",), gang="pair")}
    host = Host("a", "b", "c", slots=1, **pair)
    assert host.want("a", "b") == [Go(), Go()]
    assert isinstance(host.want("c")[0], Wait)

    for name in ("a", "b"):
        host.put(name, State.STARTING)
    host.put("a", State.RUNNING)
    assert isinstance(host.ask("c"), Wait)
    host.put("b", State.RUNNING)
    assert host.ask("c") == Go()


def test_whoever_asks_first_of_them_takes_the_slot_for_all() -> None:
    """A mate that is before it in line is no reason to wait for: it comes with it."""
    pair = {"a": Ties(group="pair", mates=("b",), gang="pair"), "b": Ties(group="pair", mates=("a",), gang="pair")}
    host = Host("a", "b", "c", slots=1, **pair)
    host.start("c")
    assert all(isinstance(answer, Wait) for answer in host.want("a", "b"))
    host.put("c", State.RUNNING)
    assert host.ask("b") == Go()
    assert host.ask("a") == Go()


# --- needs ---------------------------------------------------------------------------------------------------------


def test_after_waits_until_the_other_one_is_healthy() -> None:
    host = Host("a", "b", b=Ties(after=("a",)))
    assert host.want("a", "b") == [Go(), Wait("waits for a, which is not started yet")]
    host.put("a", State.STARTING)
    assert host.ask("b") == Wait("waits for a, which is starting")
    host.put("a", State.RUNNING)
    assert host.ask("b") == Go()


@pytest.mark.parametrize("given_up", [State.FATAL, State.QUARANTINED])
def test_after_goes_on_when_the_other_one_is_given_up(given_up: State) -> None:
    host = Host("a", "b", b=Ties(after=("a",)))
    host.want("a", "b")
    host.put("a", given_up)
    assert host.ask("b") == Go()


def test_after_waits_while_the_other_one_is_tried_again() -> None:
    host = Host("a", "b", b=Ties(after=("a",)))
    host.want("b")
    host.put("a", State.BACKOFF)
    host.now += 3600
    assert host.ask("b") == Wait("waits for a, which is backoff")


def test_one_that_nobody_wants_is_not_waited_for_but_the_next_request_is() -> None:
    """`start b a`: b is asked for first, and comes after a all the same."""
    host = Host("a", "b", b=Ties(after=("a",)))
    assert host.want("b") == [Wait("waits for a, which is stopped")]
    host.now += 0.1
    host.want("a")
    host.now += 10
    assert isinstance(host.ask("b"), Wait)

    host.put("a", State.STOPPED, wanted=False)
    assert host.ask("b") == Go()


def test_requires_waits_for_health_and_says_for_whom() -> None:
    host = Host("a", "b", b=Ties(requires=("a",)))
    host.want("a")
    host.members["a"] = replace(host.members["a"], reason="held by pid 4")
    assert host.want("b") == [
        Wait("waits for a, which it requires and which is not started yet"),
    ]
    host.put("a", State.RUNNING, healthy=False)
    assert host.ask("b") == Wait("waits for a, which it requires and which is running, but not ready")
    host.put("a", State.RUNNING)
    assert host.ask("b") == Go()


@pytest.mark.parametrize("ties", [Ties(requires=("a", "b")), Ties(requires=("a",), after=("b",))])
def test_every_need_is_waited_for_and_not_only_the_first(ties: Ties) -> None:
    host = Host("a", "b", "c", c=ties)
    host.put("a", State.RUNNING)
    host.put("b", State.STARTING)
    (answer,) = host.want("c")
    assert isinstance(answer, Wait)
    assert answer.reason.startswith("waits for b")
    host.put("b", State.RUNNING)
    assert host.ask("c") == Go()


def test_requires_is_refused_when_the_other_one_has_failed_for_good() -> None:
    host = Host("a", "b", b=Ties(requires=("a",)))
    host.put("a", State.FATAL, reason="model-path-missing: a restart cannot help")
    assert host.want("b") == [
        Refuse("not started: it requires a, which is fatal: model-path-missing: a restart cannot help")
    ]


def test_requires_waits_for_one_that_nobody_wants_up() -> None:
    host = Host("a", "b", b=Ties(requires=("a",)))
    assert host.want("b") == [Wait("waits for a, which it requires and which nobody wants up")]


def test_a_removed_requirement_is_waited_for() -> None:
    host = Host("a", "b", b=Ties(requires=("a",)))
    del host.members["a"]
    assert host.want("b") == [Wait("waits for a, which it requires and which has been removed")]


def test_one_that_an_earlier_daemon_left_and_that_is_not_there_yet_is_waited_for() -> None:
    host = Host("a", "b", b=Ties(after=("a",)))
    del host.members["a"]
    assert host.want("b") == [Wait("waits for a, which is not there yet")]


def test_who_was_refused_may_be_asked_again_when_the_other_one_is_on_its_way() -> None:
    host = Host("a", "b", b=Ties(requires=("a",)))
    host.put("a", State.FATAL)
    host.put("b", State.FATAL)
    assert not host.fleet.may_be_asked_again("b", host.members)
    host.put("a", State.STARTING)
    assert host.fleet.may_be_asked_again("b", host.members)
    host.put("b", State.FATAL, wanted=False)
    assert not host.fleet.may_be_asked_again("b", host.members)


def test_who_was_refused_is_not_asked_again_because_a_mate_is_about_to_end() -> None:
    host = Host("a", "b", "c", b=Ties(requires=("a",), mates=("c",)), c=Ties(mates=("b",)))
    host.put("a", State.FATAL)
    host.put("b", State.FATAL)
    host.fleet.held = {"a", "c"}  # c is told of b's failure: b would be refused and c told again, without an end
    assert not host.fleet.may_be_asked_again("b", host.members)


def test_nobody_counts_on_one_that_is_about_to_end() -> None:
    host = Host("a", "b", "c", b=Ties(requires=("a",)), c=Ties(after=("a",)))
    host.start("a")
    host.put("a", State.RUNNING)
    host.fleet.held.add("a")
    assert host.want("b", "c") == [
        Wait("waits for a, which it requires and which is about to end"),
        Wait("waits for a, which is about to end"),
    ]


def test_who_waits_for_another_server_is_not_in_the_line_for_a_slot() -> None:
    host = Host("a", "b", "c", slots=1, b=Ties(requires=("a",)))
    host.prefer(b=10)
    host.want("b", "c")
    assert host.line() == []
    assert host.starting() == ["c"]


def test_a_group_starts_again_when_the_last_of_it_has_ended() -> None:
    host = Host("a", "b", a=Ties(group="pair", mates=("b",)), b=Ties(group="pair", mates=("a",)))
    host.put("b", State.STOPPING)
    assert host.want("a") == [Wait("waits for the end of b: group pair restarts together")]
    host.put("b", State.RECLAIMING)
    assert host.ask("a") == Go()


def test_a_need_that_is_lost_during_the_look_costs_the_slot() -> None:
    host = Host("a", "b", "c", slots=1, b=Ties(requires=("a",)))
    host.put("a", State.RUNNING)
    assert host.want("b") == [Go()]
    host.put("a", State.STOPPING)
    assert isinstance(host.ask("b"), Wait)
    assert host.want("c") == [Go()]


# --- when ----------------------------------------------------------------------------------------------------------


def test_the_usual_lengths_laid_on_two_slots_tell_when_each_is_ready() -> None:
    host = Host("a", "b", "c", "d", slots=2)
    host.usual(a=600, b=300, c=120, d=60)
    host.start("a", "b")
    answers = host.want("c", "d")

    assert host.ready_in() == {"a": 600, "b": 300, "c": 420, "d": 480}
    assert answers == [
        Wait("waits for a start slot: a, b are starting; next in line, about 5 m"),
        Wait("waits for a start slot: a, b are starting; second in line, about 7 m"),
    ]


def test_what_a_start_itself_tells_beats_its_usual_length() -> None:
    host = Host("a", "b", slots=1)
    host.usual(a=600, b=60)
    host.start("a")
    host.members["a"] = replace(host.members["a"], ready_at=host.now + 30)
    assert host.want("b") == [
        Wait("waits for a start slot: a is starting; next in line, less than a minute"),
    ]


def test_nothing_is_foretold_of_what_never_started() -> None:
    host = Host("a", "b", "c", slots=1)
    host.usual(b=60, c=60)
    host.start("a")
    assert host.want("b", "c")[1] == Wait("waits for a start slot: a is starting; second in line")
    assert host.ready_in() == {"a": None, "b": None, "c": None}


def test_needs_are_part_of_the_forecast() -> None:
    host = Host("a", "b", "c", b=Ties(after=("a",)), c=Ties(requires=("b",)))
    host.usual(a=100, b=50, c=25)
    host.start("a")
    host.want("c", "b")
    assert host.ready_in() == {"a": 100, "b": 150, "c": 175}


def test_without_a_limit_nobody_waits_for_those_who_start() -> None:
    host = Host("a", "b", "c")
    host.usual(a=600, b=60, c=30)
    host.start("a")
    host.want("b", "c")
    assert host.ready_in() == {"a": 600, "b": 60, "c": 30}


@pytest.mark.parametrize("slots", [0, 1])
def test_of_whom_somebodys_memory_is_in_the_way_nothing_is_foretold_and_he_delays_nobody(slots: int) -> None:
    """It may go at any moment, or never."""
    host = Host("a", "b", "c", slots=slots, c=Ties(after=("a",)))
    host.usual(a=600, b=60, c=30)
    host.want("a")
    host.look("a", free=False)
    host.want("b", "c")
    assert host.ready_in() == {"a": None, "b": 60, "c": None}, "c waits for a, and for nobody else"
    host.look("a")
    host.put("a", State.STARTING)
    assert host.ready_in()["a"] == 600


@pytest.mark.parametrize("there", [State.RUNNING, State.FATAL, State.STOPPED])
def test_who_is_there_or_will_not_come_delays_nobody(there: State) -> None:
    host = Host("a", "b", "c", b=Ties(after=("a", "c")))
    host.usual(a=600, b=60, c=100)
    host.put("a", there)
    host.start("c")
    host.want("b")
    assert host.ready_in() == {"c": 100, "b": 160}


def test_a_start_that_is_waited_for_although_its_slot_was_taken_has_no_known_end() -> None:
    """It is stuck: it has given its slot up, and its usual length says nothing any more."""
    host = Host("a", "b", slots=1, b=Ties(after=("a",)))
    host.usual(a=600, b=60)
    host.start("a")
    host.members["a"] = replace(host.members["a"], stalled=True)
    host.want("b")
    assert host.ready_in() == {"b": None}


def test_what_has_its_slot_and_not_begun_takes_its_whole_length_from_now() -> None:
    host = Host("a", slots=1)
    host.usual(a=600)
    assert host.want("a") == [Go()]
    host.now += 200
    assert host.ready_in() == {"a": 600}
    host.put("a", State.STARTING)
    host.now += 200
    assert host.ready_in() == {"a": 400}
    host.now += 500
    assert host.ready_in() == {"a": 0}, "at any moment"


def test_nobody_can_tell_when_a_pause_before_a_restart_is_followed_by_health() -> None:
    host = Host("a", "b", b=Ties(after=("a",)))
    host.usual(a=100, b=50)
    host.put("a", State.BACKOFF)
    host.want("b")
    assert host.ready_in() == {"b": None}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "less than a minute"), (60, "about 1 m"), (61, "about 1 m"), (349, "about 6 m"), (5000, "about 1 h 23 m")],
)
def test_times_are_told_in_minutes(seconds: float, text: str) -> None:
    assert about(seconds) == text


@pytest.mark.parametrize("state", [State.RECLAIMING, State.STOPPED, State.STOPPING, State.RUNNING])
def test_whoever_asks_and_does_not_want_to_start_any_more_is_answered_and_takes_nobodys_place(state: State) -> None:
    """Stopped while it waited for its turn, with somebody else in the line."""
    host = Host("a", "b", "c", slots=1)
    host.start("a")
    assert all(isinstance(answer, Wait) for answer in host.want("b", "c"))
    host.put("b", state, wanted=False)
    assert host.ask("b") == host.look("b") == Wait("nobody wants it started any more")
    assert host.look("b", free=False) == Go()
    assert host.line() == ["c"]
    del host.members["b"]
    assert isinstance(host.ask("b"), Wait)
    host.put("a", State.RUNNING)
    assert (host.ask("c"), host.starting()) == (Go(), ["c"])
