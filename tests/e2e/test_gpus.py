"""GPUs from the operator's chair: who has them, who is in the way, what is out of use; the driver is a stand-in."""

from __future__ import annotations

import getpass
import re
import threading
import time
from collections.abc import Iterator

import pytest

from tests.e2e import api
from tests.e2e.gpus import GIB, GpuHost, MemoryHolder, devices_of
from tests.e2e.host import until
from tests.nvml import FakeNvml

HARDWARE_FAULT = "crash:phase=weights,cause=gpu-hardware-fault"


@pytest.fixture
def host(fake_nvml: FakeNvml) -> Iterator[GpuHost]:
    fake_nvml.set_count(4)
    fake_nvml.lag_s = 0.3
    fake_nvml.write()
    with GpuHost(fake_nvml) as made:
        yield made


def test_a_start_waits_for_a_strangers_memory_and_names_him(host: GpuHost) -> None:
    host.engine("kimi", "--tp", "2", gpus=[0, 1])
    with MemoryHolder(host, 1, 20 * GIB) as stranger:
        host.start()
        reason = host.wait_reason("kimi", "held by")
        assert f"GPU 1: held by pid {stranger.pid} of {getpass.getuser()}" in reason
        assert "train.py) with 21.5 GB" in reason
        shown = host.ctl("gpus").stdout
        assert re.search(r"^1 .* leased to kimi .*21\.5 GB", shown, re.M), shown
        assert f"GPU 1: 21.5 GB held by pid {stranger.pid} of {getpass.getuser()}" in shown
        stranger.end()
        host.wait_for("kimi", "lifecycle", "running")
    server = host.show("kimi")
    assert (server["restarts"], server["gpus"]) == (0, [0, 1])
    until(lambda: host.gpu(0)["memory"]["server"] > GIB, 20, "a look has seen its memory, which may be later")
    assert host.gpu(0)["memory"]["foreign"] == 0


def test_a_policy_of_fail_gives_up_and_names_him(host: GpuHost) -> None:
    host.engine("kimi", gpus=[1], on_foreign="fail")
    with MemoryHolder(host, 1, 20 * GIB) as stranger:
        host.start()
        assert f"held by pid {stranger.pid}" in host.wait_for("kimi", "lifecycle", "fatal")["reason"]
        assert host.lifecycle("kimi") == ["reclaiming", "fatal"]
        assert host.gpu(1)["state"] == "in-use", "what is given up is nobody's any more"


def test_stopped_means_that_the_memory_is_back(host: GpuHost) -> None:
    host.nvml.lag_s = 4.0
    host.nvml.write()
    host.engine("kimi", "--tp", "2", gpus=[0, 1])
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    stopping = host.ctl("stop", "--no-wait", "kimi")
    assert stopping.returncode == 0
    host.wait_reason("kimi", "waiting for the memory of ended processes")
    host.wait_for("kimi", "lifecycle", "stopped")
    server, stop = host.show("kimi"), host.show("kimi")["stop"]
    assert not host.processes("kimi")
    assert 3.9 <= stop["free_s"] - stop["empty_s"] < 7, stop
    assert [host.gpu(index)["state"] for index in (0, 1)] == ["free", "free"]
    assert host.gpu(0)["memory"]["used"] == 0
    assert server["stop_stage"] in ("term", "kill")


def test_a_process_left_behind_is_killed_counted_and_holds_up_no_start(host: GpuHost) -> None:
    host.engine("kimi", gpus=[0], autostart=False)
    daemon = host.start()
    with MemoryHolder(host, 0, 9 * GIB, SGLSUP_TREE="kimi:7:feed") as leftover:
        host.ctl("start", "kimi")
        host.wait_for("kimi", "lifecycle", "running")
        assert leftover.ended_by() == -9
    daemon.wait_until_said("memory holder killed", pid=leftover.pid, kind="own", server="kimi")


def test_memory_of_nobody_puts_the_device_out_and_a_release_brings_it_back(host: GpuHost) -> None:
    host.engine("kimi", gpus=[2], reclaim_limit="1s", autostart=False)
    host.start()
    host.wait_gpu(2, "free")
    host.nvml.gpus[2].used = 9 * GIB
    host.nvml.write()
    host.ctl("start", "kimi")
    reason = host.wait_for("kimi", "lifecycle", "quarantined")["reason"]
    assert reason.startswith("GPU 2 is quarantined: 9.7 GB held by nobody for ")
    assert "GPU 2: quarantined since" in host.ctl("gpus").stdout
    assert host.ctl("wait", "kimi").returncode == 1

    host.nvml.gpus[2].used = 0
    host.nvml.write()
    assert host.ctl("gpu", "release", "2").stdout == "GPU 2: released\n"
    assert host.ctl("start", "--wait", "--timeout", "30s", "kimi").returncode == 0


def test_an_xid_puts_the_device_out_beyond_the_daemons_death(host: GpuHost) -> None:
    daemon = host.start()
    host.wait_gpu(1, "free")
    host.nvml.xid(1, 79)
    host.nvml.xid(3, 13)
    assert host.wait_gpu(1, "quarantined")["reason"].startswith("Xid 79: ")
    until(lambda: host.gpu(3)["last_xid"] is not None, 10.0, "the second event")
    assert host.gpu(3)["last_xid"]["xid"] == 13
    assert host.gpu(3)["state"] == "free", "13 is the program's fault"
    daemon.wait_until_said("gpu quarantined", gpu=1, kind="xid")
    path = host.state_dir / "devices.json"
    until_stored = time.monotonic() + 10
    while not (path.exists() and b"Xid 79" in path.read_bytes()):
        assert time.monotonic() < until_stored
    daemon.kill()

    host.start()
    assert host.wait_gpu(1, "quarantined")["reason"].startswith("Xid 79: ")
    assert host.ctl("gpu", "release", "1").returncode == 0
    host.wait_gpu(1, "free")
    assert host.ctl("gpu", "release", "1").returncode == 1, "it is not quarantined any more"


def test_a_server_that_counts_its_devices_moves_to_healthy_ones(host: GpuHost) -> None:
    host.engine("kimi", "--tp", "2", gpus={"count": 2})
    host.start()
    first = host.wait_for("kimi", "lifecycle", "running")
    assert host.show("kimi")["gpus"] == [0, 1]
    assert devices_of(host.nvml, set(host.processes("kimi"))) == {0, 1}
    host.nvml.xid(0, 79)
    host.wait_gpu(0, "quarantined")
    host.ctl("restart", "kimi")
    host.wait_for("kimi", "lifecycle", "running", since=first["id"])
    assert host.show("kimi")["gpus"] == [1, 2]
    assert devices_of(host.nvml, set(host.processes("kimi"))) == {1, 2}
    assert [host.gpu(index)["server"] for index in range(4)] == ["", "kimi", "kimi", ""]
    host.ctl("stop", "kimi")
    assert [host.gpu(index)["state"] for index in range(4)] == ["quarantined", "free", "free", "free"]
    assert host.show("kimi")["gpus"] == []


def test_a_server_waits_for_another_ones_devices_and_gets_them(host: GpuHost) -> None:
    host.engine("kimi", gpus={"count": 4})
    host.engine("glm", gpus={"count": 1}, reclaim_limit="1s", autostart=False)
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    host.ctl("start", "glm")
    host.wait_reason("glm", "1 GPUs wanted, 0 to be had: 0 are quarantined, 4 leased to others")
    host.ctl("stop", "kimi")
    host.wait_for("glm", "lifecycle", "running")
    assert "quarantined" not in host.lifecycle("glm")


def test_a_server_that_was_stopped_leaves_its_devices_to_others_beyond_the_daemons_death(host: GpuHost) -> None:
    """Its last record is written right before the lease ends."""
    host.engine("kimi", gpus={"count": 4})
    host.engine("glm", gpus={"count": 1}, autostart=False)
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    host.ctl("stop", "kimi")
    daemon.kill()
    host.start()
    assert host.show("kimi")["gpus"] == []
    host.ctl("start", "glm")
    host.wait_for("glm", "lifecycle", "running")


def test_a_server_whose_record_is_lost_keeps_its_devices(host: GpuHost) -> None:
    """Nobody else starts on them, not even while nothing can be seen of them."""
    host.engine("kimi", gpus={"count": 2})
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    daemon.kill()
    (host.state_dir / "servers" / "kimi.json").unlink()
    host.start()
    assert host.show("kimi")["gpus"] == [0, 1]


def test_failures_blamed_on_one_device_put_it_out(host: GpuHost) -> None:
    host.engine("kimi", "--scenario", HARDWARE_FAULT, gpus=[3], autostart=False)
    daemon = host.start()
    seen = 0
    for _ in range(3):
        host.ctl("start", "kimi")
        seen = host.wait_for("kimi", "lifecycle", "fatal", since=seen)["id"]
    daemon.wait_until_said("gpu blamed", gpu=3, server="kimi")
    assert "3 failures blamed on it, last: kimi: gpu-hardware-fault" in host.wait_gpu(3, "quarantined")["reason"]
    host.ctl("start", "kimi")
    assert "GPU 3 is quarantined" in host.wait_for("kimi", "lifecycle", "quarantined", since=seen)["reason"]


def test_a_driver_that_hangs_blinds_us_and_holds_up_nothing(host: GpuHost, capsys: pytest.CaptureFixture[str]) -> None:
    host.engine("kimi", gpus=[0], autostart=False)
    host.start()
    host.wait_gpu(0, "free")
    with Poller(host.socket) as poller:
        host.nvml.hang("nvmlDeviceGetMemoryInfo_v2")
        host.ctl("start", "kimi")
        host.wait_sight("blind")
        host.wait_for("kimi", "lifecycle", "running")
    started = next(event for event in host.events("kimi", "lifecycle") if event["after"] == "starting")
    assert "the GPU feed is blind: the GPU reader has been silent for" in started["reason"]
    assert host.ctl("gpus").stdout.startswith("GPUs: blind for ")
    with capsys.disabled():
        print(f"\nNVML hangs: an answer took {poller.middle_ms:.1f} ms, at worst {poller.worst_ms:.0f} ms")
    assert poller.middle_ms < 50
    host.nvml.mend()
    host.wait_sight("seeing", 30)
    assert host.ctl("stop", "kimi").returncode == 0
    assert host.gpu(0)["state"] == "free"


def test_without_a_gpu_everything_else_works_and_says_so(host: GpuHost) -> None:
    host.nvml.set_count(0)
    host.engine("kimi", gpus=[0])
    host.start()
    started = host.wait_for("kimi", "lifecycle", "starting")
    assert "the GPU feed is absent: NVML finds no GPU" in started["reason"]
    host.wait_for("kimi", "lifecycle", "running")
    assert host.ctl("gpus").stdout == "GPUs: absent: NVML finds no GPU\n"
    assert host.ctl("stop", "kimi").returncode == 0


def test_a_device_that_the_machine_does_not_have_is_no_reason_to_wait(host: GpuHost) -> None:
    host.engine("kimi", gpus=[7], autostart=False)
    host.start()
    host.wait_gpu(0, "free")
    host.ctl("start", "kimi")
    assert "there is no GPU 7: the machine has 4" in host.wait_for("kimi", "lifecycle", "fatal")["reason"]


class Poller(threading.Thread):
    """Asks the daemon's loop for a sign of life again and again; how long they took. Use as a context manager."""

    def __init__(self, socket: str) -> None:
        super().__init__(daemon=True)
        self._socket = socket
        self._over = threading.Event()
        self._took: list[float] = []

    def run(self) -> None:
        while not self._over.wait(0.01):
            begun = time.monotonic()
            api.get(self._socket, "/v1/gpus")
            self._took.append(1000 * (time.monotonic() - begun))

    @property
    def worst_ms(self) -> float:
        return max(self._took)

    @property
    def middle_ms(self) -> float:
        return sorted(self._took)[len(self._took) // 2]

    def __enter__(self) -> Poller:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(10)
