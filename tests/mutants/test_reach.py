"""Which lines of the core a test runs."""

from __future__ import annotations

from supervisor.core.claims import Answer, weigh
from supervisor.core.gpus.leases import Leases
from supervisor.events import DevicesChecked
from tests.mutants.reach import reach


def weighed(event: DevicesChecked) -> set[int]:
    lines = reach(lambda: weigh(event, starting=True, waited_long=False)).lines
    assert set(lines) == {"claims"}
    return lines["claims"]


def test_two_ways_through_a_function_are_told_apart() -> None:
    clean, waiting = weighed(DevicesChecked(1, True)), weighed(DevicesChecked(1, False, "not its turn", waiting=True))
    assert clean - waiting, "the way out"
    assert waiting - clean, "the next question"


def test_a_test_meets_a_mistake_on_a_line_that_it_runs() -> None:
    met = reach(lambda: weigh(DevicesChecked(1, True), starting=True, waited_long=False))
    first = min(met.lines["claims"])
    assert met.meets("claims", range(first, first + 1))
    assert not met.meets("claims", range(first - 1, first))
    assert not met.meets("claiming", range(first, first + 1))


def test_what_is_run_has_its_effect_and_its_time() -> None:
    said: list[Answer] = []
    met = reach(lambda: said.append(weigh(DevicesChecked(1, None), starting=True, waited_long=False)))
    assert said == [Answer.PROCEED]
    assert met.seconds >= 0.0


def test_modules_below_are_named_with_their_folder() -> None:
    assert set(reach(Leases).lines) == {"gpus.leases"}
