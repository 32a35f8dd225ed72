"""g:NAME and NAME:* stand for a group's members to every verb; what ends does so from the last to the first."""

from __future__ import annotations

import asyncio
import json

import pytest

from supervisor.cli.reading import starts_line
from supervisor.config import Config, GroupConfig, ServerConfig
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl


@pytest.fixture
def control() -> FakeControl:
    made = FakeControl(snapshot("a", "running"), snapshot("b", "running"), snapshot("c"))
    servers = {name: ServerConfig(name) for name in "abc"}
    made.configuration = Config(servers=servers, groups={"pair": GroupConfig("pair", ("a", "b"))})
    return made


def asked(control: FakeControl) -> list[tuple[str, str]]:
    return [(name, type(event).__name__) for name, event in control.requests]


@pytest.mark.parametrize("name", ["g:pair", "pair:*", "pair:"])
async def test_status_of_a_group(sglctl: Sglctl, name: str) -> None:
    outcome = await sglctl("status", name)
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("verb", "kind", "order"),
    [
        ("stop", "StopRequested", "ba"),
        ("drain", "StopRequested", "ba"),
        ("restart", "RestartRequested", "ba"),
        ("pause", "PauseRequested", "ab"),
    ],
)
async def test_what_ends_goes_from_the_last_to_the_first(
    sglctl: Sglctl, control: FakeControl, verb: str, kind: str, order: str
) -> None:
    assert (await sglctl(verb, "g:pair")).code == 0
    assert asked(control) == [(name, kind) for name in order]


async def test_a_group_and_a_server_are_started_in_the_order_given(sglctl: Sglctl, control: FakeControl) -> None:
    for name in "ab":
        await control.put(snapshot(name))
    assert (await sglctl("start", "c", "g:pair")).out == "c: started\na: started\nb: started\n"
    assert [name for name, _ in control.requests] == ["c", "a", "b"]


async def test_all_are_asked_before_the_first_is_waited_for(sglctl: Sglctl, control: FakeControl) -> None:
    """a may wait for b: who waits for a before b has been asked would wait for ever."""
    for name in "ab":
        await control.put(snapshot(name))
    starting = asyncio.create_task(sglctl("start", "--wait", "a", "b"))
    await control.waiters(1)
    assert [name for name, _ in control.requests] == ["a", "b"]
    for name in "ab":
        await control.put(snapshot(name, "running"))
    assert await starting == (0, "a: started\nb: started\n", "")


async def test_a_verb_for_one_server_tells_of_each_member(sglctl: Sglctl) -> None:
    outcome = await sglctl("pid", "g:pair")
    assert (outcome.code, outcome.out) == (0, "==> a <==\n4242\n==> b <==\n4242\n")
    documents = (await sglctl("pid", "--json", "g:pair")).out.splitlines()
    assert [json.loads(one)["name"] for one in documents] == ["a", "b"]


async def test_several_logs_cannot_be_followed_at_once(sglctl: Sglctl) -> None:
    outcome = await sglctl("tail", "-f", "g:pair")
    assert outcome == (2, "", "error: cannot do this for 2 servers at once; name one of a, b\n")


async def test_an_unknown_group_is_told(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("stop", "g:piar", "a") == (
        4,
        "g:piar: ERROR (no such group)\n",
        'no such group: piar, did you mean "pair"?\n',
    )
    assert control.requests == []


async def test_each_server_is_a_group_of_its_own_name_to_supervisorctl(sglctl: Sglctl, control: FakeControl) -> None:
    assert (await sglctl("stop", "a:*")).out == "a: stopped\n"
    assert asked(control) == [("a", "StopRequested")]


async def test_the_json_of_the_status_has_the_starts(sglctl: Sglctl) -> None:
    assert json.loads((await sglctl("status", "--json")).out)["starts"] is None


@pytest.mark.parametrize(
    ("ready_s", "unknown", "overdue", "line"),
    [
        (720.0, [], [], "2 starting, 1 waiting for their start; all ready in about 12 m"),
        (5.0, [], [], "2 starting, 1 waiting for their start; all ready in about 1 m"),
        (720.0, ["c"], [], "2 starting, 1 waiting for their start; not counting c: all ready in about 12 m"),
        (None, ["a"], [], "2 starting, 1 waiting for their start"),
        (
            720.0,
            ["a", "c"],
            ["a"],
            "2 starting, 1 waiting for their start; overdue: a; not counting a, c: all ready in about 12 m",
        ),
        (
            None,
            ["a", "b", "c"],
            ["a", "b"],
            "2 starting, 1 waiting for their start; overdue: a, b; when all are ready nobody can tell",
        ),
    ],
)
def test_a_boot_is_told_in_one_line(ready_s: float | None, unknown: list[str], overdue: list[str], line: str) -> None:
    starts = {"slots": 2, "starting": ["a", "b"], "waiting": ["c"], "ready_s": ready_s, "unknown": unknown}
    assert starts_line({**starts, "overdue": overdue}) == line
