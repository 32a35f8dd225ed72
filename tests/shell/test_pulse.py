"""The books go on across daemons, and a disk that cannot be written costs no server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from supervisor.config import ServerConfig
from supervisor.core.gpus.views import GpusView
from supervisor.core.traffic import HostTraffic
from supervisor.edge.journal import JournalState
from supervisor.events import AnyEvent, Probed, ProbeOutcome, TreeSampled
from supervisor.profile import load_profile
from supervisor.shell.logfeed import LogFeed
from supervisor.shell.pulse import PulseKeeper
from tests.metrics import fleet

ABSENT = GpusView("absent", 0.0, "")
SERVER = ServerConfig("kimi-k2", fleet.COMMAND)


def keeper(folder: Path) -> PulseKeeper:
    return PulseKeeper(folder, folder / "log", lambda: 0.25)


async def beating(one: PulseKeeper, folder: Path) -> None:
    """Run it until the counts are on disk, then end it as the daemon's end does."""
    async with asyncio.timeout(20), anyio.create_task_group() as tasks:
        tasks.start_soon(one.run, lambda: {"kimi-k2": SERVER}, lambda: ABSENT)
        while not (folder / "tally.json").exists():
            await asyncio.sleep(0.02)
        tasks.cancel_scope.cancel()


async def test_the_next_daemon_counts_on(tmp_path: Path) -> None:
    first = keeper(tmp_path)
    first.observe(fleet.starting())
    first.observe(fleet.running("kimi-k2", attempt=4))
    await beating(first, tmp_path)

    second = keeper(tmp_path)
    assert second.pulse(["kimi-k2"]).accounts["kimi-k2"].starts == 1
    assert not (tmp_path / ".tally.json.new").exists()


async def test_what_is_on_disk_is_measured(tmp_path: Path) -> None:
    logs, bundle = tmp_path / "log/kimi-k2", tmp_path / "evidence/kimi-k2/000001"
    for directory in (logs, bundle):
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(b"x" * 100_000)
    one = keeper(tmp_path)
    one.observe(fleet.starting())
    await beating(one, tmp_path)

    pulse = one.pulse(["kimi-k2"])
    assert pulse.stored["kimi-k2"].log_bytes >= 100_000
    assert pulse.stored["kimi-k2"].evidence_bytes >= 100_000
    assert pulse.stored["kimi-k2"].evidence_bundles == 1
    assert {disk.use for disk in pulse.disks} == {"log", "state"}
    assert all(0 < disk.free_bytes <= disk.total_bytes for disk in pulse.disks)
    assert pulse.overdue_s == 0.25


@pytest.mark.parametrize("broken", [b"{", b'{"servers": 3}', b"\xff"])
def test_a_broken_book_is_moved_aside(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "tally.json").write_bytes(broken)

    assert keeper(tmp_path).pulse([]).accounts == {}
    assert (tmp_path / "tally.broken").read_bytes() == broken


async def test_a_place_that_cannot_be_written_costs_nothing_but_the_book(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    one = keeper(gone)
    one.observe(fleet.starting())
    with anyio.move_on_after(0.2):
        await one.run(lambda: {"kimi-k2": SERVER}, lambda: ABSENT)

    assert one.pulse(["kimi-k2"]).accounts["kimi-k2"].attempt == 3


def test_the_watchdogs_last_meal_is_told(tmp_path: Path) -> None:
    one = keeper(tmp_path)
    assert one.pulse([]).watchdog_wall is None
    one.fed_watchdog()
    assert (one.pulse([]).watchdog_wall or 0) > 1_700_000_000


def test_a_file_that_cannot_be_read_is_told_and_what_is_in_force_stays(tmp_path: Path) -> None:
    one = keeper(tmp_path)
    loaded = one.pulse([]).config_loaded_wall
    one.read_config(usable=False)
    assert (one.pulse([]).config_ok, one.pulse([]).config_loaded_wall) == (False, loaded)
    one.read_config(usable=True)
    assert one.pulse([]).config_ok
    assert one.pulse([]).config_loaded_wall >= loaded


async def test_what_passes_through_mailboxes_and_the_host_is_kept_for_the_next_daemon(tmp_path: Path) -> None:
    host = HostTraffic(2, requests={"listServers 200 read": 1})
    first = PulseKeeper(tmp_path, tmp_path / "log", lambda: 0.0, lambda: host)
    first.observe(fleet.starting())
    first.hear("kimi-k2", Probed(3, ProbeOutcome.REFUSED))
    first.hear("kimi-k2", TreeSampled(3, 0.0, 0, 0, members=9))
    assert first.pulse(["kimi-k2"]).processes == {"kimi-k2": 9}
    await beating(first, tmp_path)

    second = PulseKeeper(tmp_path, tmp_path / "log", lambda: 0.0, lambda: host)
    assert second.pulse(["kimi-k2"]).accounts["kimi-k2"].traffic.checks == {"health refused": 1}
    assert second.pulse([]).host.orphans_reaped == 2
    second.observe(fleet.starting())
    (tmp_path / "tally.json").unlink()
    await beating(second, tmp_path)
    assert second.pulse([]).host == HostTraffic(4, requests={"listServers 200 read": 2})


async def test_what_has_not_changed_is_the_same_book_as_before(tmp_path: Path) -> None:
    first = keeper(tmp_path)
    first.observe(fleet.starting())
    first.observe(fleet.running())
    await beating(first, tmp_path)
    before = first.pulse(["kimi-k2", "qwen3-32b"]).accounts

    first.hear("kimi-k2", Probed(3, ProbeOutcome.OK))
    with anyio.move_on_after(0.05):
        await first.run(lambda: {"kimi-k2": SERVER, "qwen3-32b": SERVER}, lambda: ABSENT)
    after = first.pulse(["kimi-k2", "qwen3-32b"]).accounts
    assert after["kimi-k2"] is not before["kimi-k2"]
    assert after["kimi-k2"].traffic.checks == {"health ok": 1}
    assert after["qwen3-32b"] is before["qwen3-32b"]


async def test_how_far_reading_is_behind_and_which_engine_it_is(tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    (tmp_path / "venv/lib/python3.12/site-packages/sglang-0.5.23.dist-info").mkdir(parents=True)
    (tmp_path / "growing.log").write_bytes(b"x" * 1000)
    reader = LogFeed(str(tmp_path / "growing.log"), 1, load_profile("sglang"), _nobody, offset=400)
    gone = LogFeed(str(tmp_path / "gone.log"), 1, load_profile("sglang"), _nobody)
    server = ServerConfig("kimi-k2", (str(python), "-m", "sglang.launch_server"))
    one = keeper(tmp_path)
    one.observe(fleet.starting())
    async with asyncio.timeout(20), anyio.create_task_group() as tasks:
        tasks.start_soon(one.run, lambda: {"kimi-k2": server}, lambda: ABSENT, lambda: {"kimi-k2": reader, "x": gone})
        while not one.pulse([]).log_lag_bytes:
            await asyncio.sleep(0.02)
        tasks.cancel_scope.cancel()

    assert one.pulse([]).log_lag_bytes == {"kimi-k2": 600}
    assert one.pulse([]).stored["kimi-k2"].engine_version == "0.5.23"


async def _nobody(_: AnyEvent) -> None:
    pass


async def test_a_journal_that_cannot_be_written_is_told_and_what_it_has_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [JournalState("/j", 0, 0, 9, "cannot write /j: full"), JournalState("/j", 12, 3, 0, "")]
    one = PulseKeeper(tmp_path, tmp_path / "log", lambda: 0.0, period_s=0.01)
    assert (one.pulse([]).journal_lost, one.pulse([]).journal_problem) == (0, "")
    async with asyncio.timeout(20), anyio.create_task_group() as tasks:
        tasks.start_soon(one.run, dict, lambda: ABSENT, dict, lambda: states[0])
        while "cannot write /j" not in (said := capsys.readouterr().out):
            await anyio.sleep(0.01)
        assert "waiting" in said
        assert one.pulse([]).journal_problem == "cannot write /j: full"
        states.pop(0)
        while "journal" not in (said := capsys.readouterr().out):
            await anyio.sleep(0.01)
        assert "lost" in said
        assert one.pulse([]).journal_lost == 3
        tasks.cancel_scope.cancel()
