"""Probes tell the daemon's life from a server's readiness from the end of its start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from supervisor.api.pulse import Pulse
from supervisor.snapshot import FacetView
from tests.api.fake import FakeControl, served_on_tcp, snapshot
from tests.metrics import fleet


@pytest.fixture
def control() -> FakeControl:
    return FakeControl(snapshot("kimi", "running"), snapshot("spare"))


@pytest.fixture
async def tcp(control: FakeControl) -> AsyncIterator[httpx.AsyncClient]:
    async with served_on_tcp(control) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        yield client


async def asked(client: httpx.AsyncClient, path: str) -> tuple[int, str]:
    answer = await client.get(path)
    return answer.status_code, answer.text


async def test_a_daemon_that_answers_lives(tcp: httpx.AsyncClient) -> None:
    assert await asked(tcp, "/livez") == (200, "ok\n")


async def test_a_decision_that_is_never_taken_is_no_life(tcp: httpx.AsyncClient, control: FakeControl) -> None:
    control.beat = Pulse(overdue_s=12.0)
    assert await asked(tcp, "/livez") == (503, "a decision is overdue for 12 s\n")


async def test_ready_is_every_server_that_is_wanted(tcp: httpx.AsyncClient, control: FakeControl) -> None:
    assert await asked(tcp, "/readyz") == (200, "kimi: running, readiness success\n")
    await control.put(fleet.starting("big"))
    assert await asked(tcp, "/readyz") == (503, "big: starting, weights\n")


async def test_ready_of_one_server(tcp: httpx.AsyncClient, control: FakeControl) -> None:
    await control.put(fleet.starting("big"))
    assert (await asked(tcp, "/readyz?server=kimi"))[0] == 200
    assert (await asked(tcp, "/readyz?server=big"))[0] == 503
    assert await asked(tcp, "/readyz?server=spare") == (503, "spare: stopped\n")


async def test_a_start_that_is_over_stays_over_when_readiness_fails(
    tcp: httpx.AsyncClient, control: FakeControl
) -> None:
    await control.put(snapshot("kimi", "running", readiness=FacetView("failure", 100.0, "3 probes failed")))
    assert await asked(tcp, "/startupz?server=kimi") == (200, "kimi: running, readiness failure\n")
    assert await asked(tcp, "/readyz?server=kimi") == (503, "kimi: running, readiness failure\n")


async def test_nothing_wanted_is_nothing_missing(tcp: httpx.AsyncClient, control: FakeControl) -> None:
    await control.remove("kimi")
    assert await asked(tcp, "/readyz") == (200, "ok: no server is wanted up\n")


@pytest.mark.parametrize("path", ["/readyz", "/startupz"])
async def test_an_unknown_name_is_told_apart_from_one_that_is_not_ready(tcp: httpx.AsyncClient, path: str) -> None:
    assert (await asked(tcp, f"{path}?server=nobody"))[0] == 404
    assert (await asked(tcp, f"{path}?sever=kimi"))[0] == 400


async def test_reasons_stay_inside(tcp: httpx.AsyncClient, control: FakeControl) -> None:
    """They may quote the log, and anybody on the host may ask."""
    await control.put(snapshot("kimi", "fatal", goal="up", lifecycle=FacetView("fatal", 1.0, "dead: secret words")))
    assert await asked(tcp, "/readyz") == (503, "kimi: fatal\n")
