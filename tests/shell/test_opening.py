"""What all servers share is closed with the daemon, and what is lost by that is told."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import anyio
from structlog.testing import capture_logs

from supervisor.config import CgroupUse, Config, DaemonConfig
from supervisor.edge.fdstore import DescriptorStore
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.host import Host
from supervisor.shell.hub import Hub
from supervisor.shell.opening import open_host
from supervisor.shell.writer import StateWriter


async def opened(stack: AsyncExitStack, place: Path) -> Host:
    daemon = DaemonConfig(state_dir=str(place), log_dir=str(place / "log"), cgroups=CgroupUse.OFF)
    return await open_host(
        stack,
        Config(daemon=daemon),
        hub=Hub(),
        fleet=cast(FleetKeeper, None),
        writer=StateWriter(),
        store=DescriptorStore(lambda *_, **__: None),
        heard=lambda *_: None,
        record_exits=False,
    )


async def test_a_journal_whose_disk_takes_everything_ends_without_a_word(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with AsyncExitStack() as stack:
            host = await opened(stack, tmp_path)
            host.journal.append("event", "kimi", 1, 0.0, 0.0, b"{}")
    assert [line for line in lines if line["event"] == "journal"] == []


async def test_the_rows_that_no_disk_has_taken_are_counted_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    with capture_logs() as lines:
        async with AsyncExitStack() as stack:
            host = await opened(stack, tmp_path)
            for _ in range(3):
                host.journal.append("event", "kimi", 1, 0.0, 0.0, b"{}")
            with anyio.fail_after(20):
                while not host.journal.state().problem:
                    await anyio.sleep(0.01)
    (told,) = [line for line in lines if line["event"] == "journal"]
    assert told["rows"] == 3
    assert "unable to open database file" in told["problem"]
    assert told["problem"].endswith("its last rows are lost")
