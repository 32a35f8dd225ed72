"""The records of servers on disk: what cannot be used is moved aside and told, never a reason not to start."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from supervisor.core.lifecycle import ALIVE, State
from supervisor.core.restart import Next
from supervisor.saved import SavedAttempt, SavedServer
from supervisor.shell.states import StateStore
from supervisor.snapshot import IncidentView

ATTEMPT = SavedAttempt(3, 10.0, 4711)
RUNNING = SavedServer("kimi", "boot", True, "running", 20.0, "healthy", 3, tree_alive=True, attempt=ATTEMPT)


def read(directory: Path, record: SavedServer) -> SavedServer | None:
    (directory / "kimi.json").write_bytes(msgspec.json.encode(record))
    return StateStore(directory, "boot").read("kimi")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "servers", "boot")
    assert store.read("kimi") is None
    store.put(RUNNING)
    assert store.read("kimi") == RUNNING
    store.clear("kimi")
    assert store.read("kimi") is None


def test_what_ends_with_its_daemon_is_left_with_its_past(tmp_path: Path) -> None:
    store, failed = (
        StateStore(tmp_path / "servers", "boot"),
        IncidentView(3, 10.0, 20.0, "killed", "weights", "weights"),
    )
    store.leave(replace(RUNNING, incidents=(failed,)))
    found = store.read("kimi")
    assert found is not None
    assert (found.left, found.incidents) == (True, (failed,))


def test_a_disk_that_does_not_take_the_past_must_not_leave_the_server_down(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "boot")
    store.put(RUNNING)
    (tmp_path / ".kimi.json.new").mkdir()  # nothing can be written there
    store.leave(RUNNING)
    assert store.read("kimi") is None


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("following", Next)
def test_every_word_of_ours_can_be_read_again(tmp_path: Path, state: State, following: Next) -> None:
    record = replace(RUNNING, state=state.value, next=following.value)
    assert read(tmp_path, record) == record


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (replace(RUNNING, state="dancing"), "it has the state 'dancing'"),
        (replace(RUNNING, next="holiday"), "it is followed by 'holiday'"),
        (replace(RUNNING, attempt=replace(ATTEMPT, ending="boredom")), "its attempt ended by 'boredom'"),
        (replace(RUNNING, state="quarantined", attempt=None), "it is quarantined without an attempt"),
        (replace(RUNNING, format=9), "it has format 9"),
        (replace(RUNNING, name="glm"), "is of glm"),
        *(
            (replace(RUNNING, state=state.value, attempt=None, tree_alive=False), "without an attempt")
            for state in ALIVE
        ),
    ],
)
def test_what_nobody_can_go_on_from_is_moved_aside_and_told(
    tmp_path: Path, record: SavedServer, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(tmp_path, record) is None
    assert why in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["kimi.broken"]
