"""Whoever needs another server ends before it, and starts after it."""

from __future__ import annotations

from supervisor.config.groups import Ties
from supervisor.core.fleet.ends import by_need, dependants, in_the_way
from supervisor.core.fleet.member import Member
from supervisor.core.lifecycle import State

TIES = {
    "store": Ties(),
    "kimi": Ties(requires=("store",)),
    "proxy": Ties(requires=("kimi",)),
    "canary": Ties(requires=("store", "proxy")),
    "glm": Ties(after=("store",)),
}


def members(**states: State) -> dict[str, Member]:
    return {name: Member(name, states.get(name, State.RUNNING), wanted=True) for name in TIES}


def test_dependants_are_told_from_the_far_end() -> None:
    assert dependants(TIES, "store") == ("canary", "proxy", "kimi")
    assert dependants(TIES, "kimi") == ("canary", "proxy")
    assert dependants(TIES, "glm") == ()


def test_a_server_ends_when_those_who_require_it_have_no_process() -> None:
    assert in_the_way(TIES, "kimi", members(), ()) == ("proxy",)
    assert in_the_way(TIES, "kimi", members(proxy=State.STOPPING), ()) == ("proxy",)
    assert in_the_way(TIES, "kimi", members(proxy=State.RECLAIMING), ()) == ()
    assert in_the_way(TIES, "kimi", members(proxy=State.QUARANTINED), ()) == ()


def test_one_that_merely_comes_after_it_is_waited_for_only_when_it_ends_as_well() -> None:
    found = members(canary=State.STOPPED, kimi=State.STOPPED)
    assert in_the_way(TIES, "store", found, ()) == ()
    assert in_the_way(TIES, "store", found, ("glm",)) == ("glm",)
    assert in_the_way(TIES, "store", found | {"glm": Member("glm", State.DRAINING, wanted=True)}, ()) == ("glm",)
    assert in_the_way(TIES, "store", found | {"glm": Member("glm", State.RUNNING, wanted=False)}, ()) == ("glm",)


def test_starts_follow_needs_and_else_the_configuration() -> None:
    assert by_need(TIES, ("canary", "glm", "proxy", "kimi", "store")) == ("store", "glm", "kimi", "proxy", "canary")
    assert by_need(TIES, ("proxy", "glm")) == ("proxy", "glm")
    assert by_need({}, ("b", "a")) == ("b", "a")
