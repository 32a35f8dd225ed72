"""Stops all servers at the daemon's end, as its next life is to find them."""

from __future__ import annotations

from supervisor.core.lifecycle import State
from supervisor.events import StopRequested
from supervisor.shell.ends import Ends
from supervisor.shell.hub import Hub
from supervisor.shell.roster import Roster


async def stop_servers(roster: Roster, ends: Ends, hub: Hub) -> None:
    """Whoever needs others first; as long as their own deadlines allow: each stop ends in stopped or quarantined.

    Our own end is nobody's wish about a server: what was wanted up is started again by the next daemon.
    """
    wanted = {*_wanted_up(roster), *roster.returning}
    await ends.stop_all("shutdown")
    seen = -1
    while not all(loop.rests for loop in roster.loops()):
        for name in (late := _wanted_up(roster)):  # somebody has started it meanwhile: it would never rest
            await ends.request(name, StopRequested("shutdown"))
        wanted.update(late)
        seen = await hub.changed(seen)
    await roster.evidence_kept()  # of who failed just before
    for loop in roster.loops():
        if loop.name in wanted and loop.server.state is not State.QUARANTINED:
            roster.forget(loop.name)


def _wanted_up(roster: Roster) -> list[str]:
    return [loop.name for loop in roster.loops() if loop.snapshot().goal == "up"]
