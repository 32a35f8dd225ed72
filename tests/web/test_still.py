"""A picture is of one moment, whatever happens while it is drawn."""

from __future__ import annotations

import asyncio
import threading

from supervisor.web.operations import _drawn
from supervisor.web.page import content
from supervisor.web.still import Still
from tests.metrics import fleet


async def test_what_changes_meanwhile_is_not_in_the_picture() -> None:
    control = fleet.control()
    still = Still(control)
    before = content(still, full=True)
    await control.put(fleet.running("kimi-k2"))
    await control.remove("spare")

    assert content(still, full=True) == before
    assert content(control, full=True) != before
    assert before == content(Still(fleet.control()), full=True)


async def test_decisions_go_on_while_a_picture_is_drawn() -> None:
    decided, seen = asyncio.Event(), threading.Event()

    def draw(still: Still) -> str:
        loop.call_soon_threadsafe(decided.set)
        assert seen.wait(20), "the loop stood still"
        return content(still, full=False)

    async def decide() -> None:
        await decided.wait()
        seen.set()

    loop = asyncio.get_running_loop()
    control = fleet.control()
    async with asyncio.timeout(30):
        drawn, _ = await asyncio.gather(_drawn(control, draw), decide())
    assert 'data-server="kimi-k2"' in drawn
