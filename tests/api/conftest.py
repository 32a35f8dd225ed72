"""Clients of a control API that runs on a real Unix socket in the test's own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.api.fake import FakeControl, served, snapshot


@pytest.fixture
def control() -> FakeControl:
    return FakeControl(snapshot("kimi", "running"), snapshot("draft"))


@pytest.fixture
async def client(control: FakeControl, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with served(control, tmp_path) as path, connected(path) as one:
        yield one


def connected(path: str) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=path)
    return httpx.AsyncClient(transport=transport, base_url="http://daemon", timeout=10)
