"""The lifecycle table: what it allows, and that the printed diagram is the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from transitions import MachineError

from supervisor.core.lifecycle import RESTING, TABLE, Standing, State, Trigger, diagram, explanation

DOCS = Path(__file__).parents[2] / "docs" / "lifecycle.md"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.trigger}->{row.dest}")
def test_every_row_is_what_the_machine_does(row) -> None:
    for source in row.sources:
        standing = Standing(source)
        assert standing.may(row.trigger)
        assert standing.move(row.trigger) is row.dest


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("trigger", list(Trigger))
def test_what_the_table_does_not_allow_is_refused(state: State, trigger: Trigger) -> None:
    standing = Standing(state)
    allowed = any(row.trigger is trigger and state in row.sources for row in TABLE)
    assert standing.may(trigger) is allowed
    if not allowed:
        with pytest.raises(MachineError):
            standing.move(trigger)
        assert standing.state is state


def test_no_trigger_is_ambiguous() -> None:
    pairs = [(row.trigger, source) for row in TABLE for source in row.sources]
    assert len(pairs) == len(set(pairs))


def test_a_spawn_is_only_possible_after_the_devices_were_looked_at() -> None:
    assert {source for row in TABLE if row.dest is State.STARTING for source in row.sources} == {State.RECLAIMING}


def test_stopped_is_never_reached_from_a_state_with_processes() -> None:
    alive = {State.STARTING, State.RUNNING, State.DRAINING, State.STOPPING}
    assert not [row for row in TABLE if row.dest is State.STOPPED and alive & set(row.sources)]


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.STOPPED} | {row.dest for row in TABLE}
    left = {source for row in TABLE for source in row.sources}
    assert reached == left == set(State)
    assert set(RESTING) <= left


def test_the_document_holds_the_printed_diagram() -> None:
    text = DOCS.read_text()
    assert diagram() in text, "run `make docs`"
    assert explanation() in text, "run `make docs`"
