"""The device book around a server's life: leases, refusals, blame, what the next daemon knows."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from supervisor.config import GpuPlan, OnForeign, ServerConfig
from supervisor.devices import Gpu, GpuBlind, GpuMemory, GpuProcess, GpuSample, XidSeen
from supervisor.events import DevicesChecked
from supervisor.shell import clock
from supervisor.shell.devices import Devices
from supervisor.snapshot import DiagnosisView, ServerSnapshot
from tests.shell import made

GIB = 1 << 30
KIMI = ServerConfig("kimi", gpus=GpuPlan(indices=(0,)))
ANY = ServerConfig("kimi", gpus=GpuPlan(count=1))


class Host:
    """Devices that are told what the driver says; time goes on by a second with each look."""

    def __init__(self, directory: Path, owner: str = "") -> None:
        self.changes = 0
        self.devices = Devices(directory, lambda pid: owner, self._changed)
        self._at = clock.monotonic() + 1000

    def _changed(self) -> None:
        self.changes += 1

    async def look(self, *used: int, processes: tuple[GpuProcess, ...] = (), times: int = 2) -> None:
        for _ in range(times):
            self._at += 1
            gpus = tuple(
                Gpu(index, f"GPU-{index}", memory=GpuMemory(140 * GIB, size, 0), processes=processes)
                for index, size in enumerate(used)
            )
            await self.devices.take(GpuSample(self._at, devices=gpus))

    def check(self, config: ServerConfig = KIMI, *, start: bool = True) -> DevicesChecked:
        return self.devices.check(config, 1, 0.0, start=start)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def failed(cause: str, name: str = "kimi") -> ServerSnapshot:
    return made.snapshot(name, "reclaiming", diagnosis=DiagnosisView(cause), started=0.0)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_start_leases_and_an_end_proves_what_was_leased(host: Host) -> None:
    await host.look(0, 0)
    assert host.check().clean is True
    assert host.devices.leased("kimi") == (0,)
    await host.look(9 * GIB, 0)
    assert host.check(start=False).clean is False
    await host.look(0, 9 * GIB)
    assert host.check(start=False).clean is True
    host.devices.release_lease("kimi")
    assert host.devices.leased("kimi") == ()


async def test_an_end_without_a_lease_has_nothing_to_prove(host: Host) -> None:
    await host.look(9 * GIB)
    assert host.check(start=False) == DevicesChecked(1, True)
    assert host.check(ServerConfig("cpu")) == DevicesChecked(1, True)


async def test_after_an_end_the_old_devices_are_proven_though_others_are_free(host: Host) -> None:
    await host.look(0, 0)
    assert host.check(ANY).devices == (0,)
    await host.devices.take(XidSeen(1.0, 0, 79))
    await host.look(9 * GIB, 0)
    assert host.check(ANY, start=False).devices == (0,)
    assert host.check(ANY, start=False).clean is False
    assert host.check(ANY).devices == (1,)


async def test_what_passes_by_itself_is_waited_for_with_many_looks(host: Host) -> None:
    await host.look(9 * GIB)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.look, 0)  # two looks later the memory is back
        found = await host.devices.settled(KIMI, 1, 0.0, start=True)
    assert found.clean is True


def at_once(look: Coroutine[Any, Any, DevicesChecked]) -> DevicesChecked:
    """The answer of a look that makes not a single pause."""
    with pytest.raises(StopIteration) as answered:
        look.send(None)
    found: DevicesChecked = answered.value.value
    return found


async def test_what_does_not_pass_by_itself_is_told_at_once(host: Host, holder: subprocess.Popen[bytes]) -> None:
    await host.look(9 * GIB, processes=(GpuProcess(holder.pid, 9 * GIB),))
    nowhere = ServerConfig("kimi", gpus=GpuPlan(indices=(7,)))
    assert "held by pid" in at_once(host.devices.settled(KIMI, 1, 0.0, start=True)).reason
    assert at_once(host.devices.settled(nowhere, 1, 0.0, start=True)).refuse


async def test_the_wait_for_what_passes_has_an_end(host: Host) -> None:
    await host.look(9 * GIB)
    found = await host.devices.settled(KIMI, 1, 0.0, start=True)
    assert found.clean is False
    assert "held by nobody whom the driver names" in found.reason


async def test_refusals_tell_whether_to_wait(host: Host) -> None:
    before = host.check()
    assert (before.clean, before.waiting) == (False, True)
    await host.look(0)
    assert host.check(ServerConfig("glm", gpus=GpuPlan(count=1))).waiting
    assert host.check(ServerConfig("kimi", gpus=GpuPlan(indices=(7,)))).refuse
    await host.devices.take(XidSeen(1.0, 0, 79))
    assert host.check().quarantined == (0,)
    assert not host.check().waiting


async def test_a_blind_feed_holds_up_no_start(host: Host) -> None:
    await host.devices.take(GpuBlind(1.0, "a driver call hangs"))
    assert host.check() == DevicesChecked(1, None, "the GPU feed is blind: a driver call hangs", devices=(0,))
    assert host.devices.leased("kimi") == (0,)


async def test_what_the_server_left_behind_is_killed_and_counted_once(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    host = Host(tmp_path, owner="kimi")
    await host.look(9 * GIB, processes=(GpuProcess(holder.pid, 9 * GIB),))
    assert host.check().clean is False
    assert host.check().clean is False
    assert holder.wait(10) == -9
    assert host.devices.killed == {("kimi", "own"): 1}


async def test_a_stranger_lives_unless_the_policy_says_so(host: Host, holder: subprocess.Popen[bytes]) -> None:
    await host.look(9 * GIB, processes=(GpuProcess(holder.pid, 9 * GIB),))
    assert f"held by pid {holder.pid}" in host.check().reason
    assert holder.poll() is None
    kill = ServerConfig("kimi", gpus=GpuPlan(indices=(0,)), on_foreign=OnForeign.KILL_SAME_USER)
    host.check(kill)
    assert holder.wait(10) == -9
    assert host.devices.killed == {("kimi", "foreign"): 1}


async def test_whose_a_stranger_is_counts_only_once_its_user_was_looked_up(
    host: Host, holder: subprocess.Popen[bytes]
) -> None:
    """The user database may not answer: nobody is killed on a guess."""
    own = pwd.getpwuid(os.geteuid()).pw_name
    kill = ServerConfig("kimi", gpus=GpuPlan(indices=(0,)), user=own, on_foreign=OnForeign.KILL_SAME_USER)
    await host.look(9 * GIB, processes=(GpuProcess(holder.pid, 9 * GIB),))
    assert host.check(kill).clean is False
    assert holder.poll() is None
    await host.devices.settled(kill, 1, 0.0, start=True)
    assert holder.wait(10) == -9


async def test_failures_put_the_only_device_out(host: Host) -> None:
    await host.look(0)
    host.check()
    for _ in range(3):
        assert host.devices.view().gpus[0].state == "leased"
        host.devices.blame(failed("gpu-hardware-fault"))
    assert host.devices.view().gpus[0].reason.endswith("last: kimi: gpu-hardware-fault")


async def test_other_failures_are_no_devices_fault(host: Host) -> None:
    await host.look(0)
    host.check()
    for _ in range(5):
        host.devices.blame(failed("gpu-oom-runtime"))
        host.devices.blame(made.snapshot("kimi", "reclaiming"))
    assert host.devices.view().gpus[0].state == "leased"


async def test_the_next_daemon_knows_quarantines_at_once_and_the_rest_from_the_end(tmp_path: Path) -> None:
    host = Host(tmp_path)
    stored = tmp_path / "devices.json"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.devices.run)
        await host.look(300 << 20, 0)
        await host.devices.take(XidSeen(1.0, 1, 79))
        with anyio.fail_after(10):
            while not (stored.exists() and b"Xid 79" in stored.read_bytes()):
                await anyio.lowlevel.checkpoint()
        await host.look(100 << 20, 0)
        tasks.cancel_scope.cancel()
    assert json.loads(stored.read_bytes())[0]["baseline"] == 100 << 20
    heir = Host(tmp_path)
    assert heir.devices.view().gpus[1].state == "quarantined"
    await heir.look(150 << 20, 0)
    assert heir.check().clean is True
    assert heir.devices.release(1)
    assert not heir.devices.release(1)
    assert heir.changes == 3


async def test_the_next_daemon_knows_a_first_baseline_at_once(tmp_path: Path) -> None:
    """While a server has the device nobody can learn it anew, and what is idle would look like a leak."""
    host = Host(tmp_path)
    stored = tmp_path / "devices.json"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.devices.run)
        await host.look(300 << 20)
        with anyio.fail_after(10):
            while not stored.exists():
                await anyio.lowlevel.checkpoint()
        killed = stored.read_bytes()
        tasks.cancel_scope.cancel()
    assert json.loads(killed)[0]["baseline"] == 300 << 20


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff"])
def test_a_broken_file_is_moved_aside_and_kept(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "devices.json").write_bytes(text)
    assert Host(tmp_path).devices.view().gpus == ()
    assert (tmp_path / "devices.broken").read_bytes() == text


async def test_a_disk_that_cannot_be_written_costs_no_decision(tmp_path: Path) -> None:
    (tmp_path / ".devices.json.new").mkdir()  # in the way of the draft, whoever we are
    host = Host(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.devices.run)
        await host.look(0)
        await host.devices.take(XidSeen(1.0, 0, 79))
        tasks.cancel_scope.cancel()
    assert host.check().quarantined == (0,)
    assert os.listdir(tmp_path) == [".devices.json.new"]


async def test_a_process_that_cannot_be_asked_who_it_is_holds_up_nothing(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    asked: list[int] = []
    answers, answer = threading.Event(), threading.Event()
    answers.set()

    def server_of(pid: int) -> str:
        asked.append(pid)
        if not answers.is_set():
            answer.wait(20)  # as the read of an environ whose process is stuck with its memory lock
        return "glm"

    host = Host(tmp_path)
    host.devices = Devices(tmp_path, server_of, lambda: None, identify_limit_s=0.1)
    held = GpuProcess(holder.pid, 20 * GIB)
    await host.look(20 * GIB, processes=(held,), times=1)
    answers.clear()
    began = time.monotonic()
    try:
        await host.look(20 * GIB, processes=(held, GpuProcess(os.getpid(), GIB)), times=3)
        seen = {one.pid: (one.kind, one.server) for one in host.devices.view().gpus[0].holders if one.pid}
        assert seen == {holder.pid: ("server", "glm"), os.getpid(): ("foreign", "")}, "known ones stay known"
        refused = host.check(msgspec.structs.replace(KIMI, on_foreign=OnForeign.FAIL))
        assert (refused.clean, refused.refuse) == (False, False), "nobody knows who it is: no reason to give up"
        assert len(asked) == 2, "what hangs is not asked again and again"
        answers.set()
    finally:
        answer.set()
    assert time.monotonic() - began < 5


async def test_a_nameless_holder_is_no_reason_to_kill_or_give_up(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    answer = threading.Event()

    def server_of(pid: int) -> str:
        answer.wait(20)
        return ""

    host = Host(tmp_path)
    host.devices = Devices(tmp_path, server_of, lambda: None, identify_limit_s=0.1)
    try:
        await host.look(20 * GIB, processes=(GpuProcess(holder.pid, 20 * GIB),))
        for policy in OnForeign:
            found = host.check(msgspec.structs.replace(KIMI, on_foreign=policy))
            assert (found.clean, found.refuse) == (False, False), policy
    finally:
        answer.set()
    assert holder.poll() is None
