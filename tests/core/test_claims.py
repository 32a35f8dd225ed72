"""What a look at the devices lets a server do: go on, wait with or without an end, give up, be put aside."""

from __future__ import annotations

import pytest

from supervisor.core.claims import Answer, weigh
from supervisor.events import DevicesChecked, Holder

GONE = Holder(0, 1 << 30, kind="unattributed")
OURS = Holder(0, 1 << 30, 7, kind="own")
THEIRS = Holder(1, 1 << 30, 99, kind="foreign")
SIBLING = Holder(1, 1 << 30, 98, kind="server", server="other")


def seen(*holders: Holder, **changes) -> DevicesChecked:
    return DevicesChecked(1, False, "held", holders, **changes)


@pytest.mark.parametrize("starting", [True, False])
def test_a_look_that_saw_nothing_in_the_way_or_nothing_at_all_holds_nobody_back(starting: bool) -> None:
    for clean in (True, None):
        assert weigh(DevicesChecked(1, clean), starting=starting, waited_long=True) is Answer.PROCEED


@pytest.mark.parametrize("holders", [(GONE,), (OURS,), (GONE, THEIRS), (OURS, SIBLING), ()])
@pytest.mark.parametrize("starting", [True, False])
def test_what_may_be_our_own_is_waited_for_with_an_end_whoever_else_is_there(starting: bool, holders) -> None:
    assert weigh(seen(*holders), starting=starting, waited_long=False) is Answer.WAIT
    assert weigh(seen(*holders), starting=starting, waited_long=True) is Answer.ISOLATE


@pytest.mark.parametrize(
    "look", [seen(THEIRS), seen(THEIRS, SIBLING), seen(ports=("nginx",)), seen(OURS, ports=("x",))]
)
@pytest.mark.parametrize("waited_long", [True, False])
def test_others_hold_a_start_back_without_an_end_and_no_rest(look: DevicesChecked, waited_long: bool) -> None:
    assert weigh(look, starting=True, waited_long=waited_long) is Answer.WAIT_FOR_OTHERS
    assert weigh(look, starting=False, waited_long=waited_long) is Answer.PROCEED


def test_a_refusal_and_a_bad_device_end_a_start() -> None:
    assert weigh(seen(THEIRS, refuse=True), starting=True, waited_long=False) is Answer.GIVE_UP
    assert weigh(seen(THEIRS, refuse=True), starting=False, waited_long=False) is Answer.PROCEED
    assert weigh(seen(quarantined=(1,)), starting=True, waited_long=False) is Answer.ISOLATE
    assert weigh(seen(GONE, quarantined=(1,)), starting=False, waited_long=False) is Answer.WAIT


def test_whose_turn_has_not_come_waits_whatever_else_is_seen() -> None:
    for starting in (True, False):
        assert weigh(seen(GONE, waiting=True), starting=starting, waited_long=True) is Answer.WAIT_FOR_OTHERS
