"""The format is negotiated, and both doors lead to the same page."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from supervisor.metrics.operations import prefers_openmetrics
from tests.api.conftest import connected
from tests.api.fake import served, served_on_tcp
from tests.metrics import fleet

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_2, True),
        ("application/openmetrics-text", True),
        ("text/plain;version=0.0.4", False),
        ("text/plain, application/openmetrics-text;q=0.2", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        ("", False),
        ("*/*", False),
    ],
)
def test_who_asks_for_openmetrics_gets_it(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


async def test_over_tcp_and_over_the_socket(tmp_path: Path) -> None:
    control = fleet.control()
    async with (
        served_on_tcp(control) as port,
        served(control, tmp_path) as path,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as tcp,
        connected(path) as local,
    ):
        text = await tcp.get("/metrics")
        assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert (await local.get("/metrics")).text == text.text
        other = await tcp.get("/metrics", headers={"accept": PROMETHEUS_2})
        assert other.headers["content-type"].startswith("application/openmetrics-text")
        assert other.text.endswith("# EOF\n")


async def test_discovery_over_tcp() -> None:
    async with served_on_tcp(fleet.control()) as port, httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{port}/sd")

    assert answer.headers["content-type"] == "application/json"
    assert [entry["targets"] for entry in answer.json()] == [["127.0.0.1:30001"]]
    assert answer.json()[0]["labels"]["server"] == "qwen3-32b"
