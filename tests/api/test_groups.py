"""Groups are shown with their members, and who starts or waits for a start is part of every status."""

from __future__ import annotations

import httpx
import pytest

from supervisor.api.words import describe
from supervisor.config import Config, GroupConfig, GroupOrder, ServerConfig
from supervisor.core.fleet.view import FleetView
from tests.api.fake import FakeControl, snapshot


@pytest.fixture
def control() -> FakeControl:
    made = FakeControl(snapshot("a", "running"), snapshot("b", "running"))
    servers = {name: ServerConfig(name) for name in ("a", "b")}
    pair = GroupConfig("pair", ("b", "a", "gone"), GroupOrder.LISTED, together=True)
    made.configuration = Config(servers=servers, groups={"pair": pair})
    return made


async def test_a_group_names_its_members_that_are_there(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/groups")).json() == {
        "groups": [{"name": "pair", "members": ["b", "a"], "order": "listed", "together": True}]
    }


@pytest.mark.parametrize("path", ["/v1/status", "/v1/servers"])
async def test_the_status_tells_who_starts_and_for_how_long(
    client: httpx.AsyncClient, control: FakeControl, path: str
) -> None:
    assert (await client.get(path)).json()["starts"] is None

    control.starts = FleetView(2, ("a",), ("b", "c"), control.now.monotonic + 720, ("a", "c"), ("a",))
    assert (await client.get(path)).json()["starts"] == {
        "slots": 2,
        "starting": ["a"],
        "waiting": ["b", "c"],
        "ready_s": 720.0,
        "unknown": ["a", "c"],
        "overdue": ["a"],
    }


async def test_what_is_late_is_ready_at_any_moment_and_what_nobody_knows_is_null(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    control.starts = FleetView(0, ("a",), (), control.now.monotonic - 5)
    assert (await client.get("/v1/status")).json()["starts"]["ready_s"] == 0
    control.starts = FleetView(0, ("a",), (), None, ("a",))
    assert (await client.get("/v1/status")).json()["starts"]["ready_s"] is None


def test_a_server_whose_end_waits_for_others_says_so() -> None:
    control = FakeControl()
    held = snapshot("a", "running", ends="to be stopped after proxy")
    assert describe(held, control.now).endswith(", to be stopped after proxy")
