"""The GPU reader child, driving the real nvidia-ml-py against the stand-in library."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from supervisor.devices import Gpu, GpuAbsent, GpuBlind, GpuProcess, GpuReport, GpuSample, RemappedRows, XidSeen
from supervisor.edge.gpu.nvml import INITIAL_PID_NAMESPACE, is_alive
from tests.nvml.fake import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    H200_RESERVED,
    H200_TOTAL,
    NOT_SUPPORTED,
    UNINITIALIZED,
    UNKNOWN_ERROR,
    VERSION_MISMATCH,
    FakeNvml,
    client_environment,
)

GIB = 1 << 30
LONG_S = 600  # a period that does not end within a test: every sample is asked for


class Reader:
    """The child, asked line by line."""

    def __init__(self, environment: dict[str, str], period_s: float = LONG_S) -> None:
        command = [sys.executable, "-m", "supervisor.edge.gpu", str(period_s), str(os.getpid())]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
        )

    def report(self) -> GpuReport:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), f"the reader ended: {self.process.wait()}"
        report: GpuReport = msgspec.json.decode(line, type=GpuReport)
        return report

    def sample(self) -> GpuSample:
        report = self.report()
        assert isinstance(report, GpuSample)
        return report

    def ask(self, period_s: float = LONG_S) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{period_s}\n".encode())

    def again(self) -> GpuSample:
        self.ask()
        return self.sample()

    def gpu(self, index: int = 0) -> Gpu:
        return self.again().devices[index]

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            return self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@pytest.fixture
def started() -> Iterator[list[Reader]]:
    readers: list[Reader] = []
    yield readers
    for reader in readers:
        reader.close()


@pytest.fixture
def reader(fake_nvml: FakeNvml, started: list[Reader]) -> Reader:
    """Started on a machine with two H200s, its first sample taken."""
    fake_nvml.set_count(2)
    started.append(Reader(client_environment(fake_nvml)))
    started[0].sample()
    return started[0]


def start(fake_nvml: FakeNvml, started: list[Reader]) -> Reader:
    started.append(Reader(client_environment(fake_nvml)))
    return started[-1]


# --- what a sample holds ---


def test_an_idle_h200_reads_as_the_real_one_did(reader: Reader) -> None:
    sample = reader.again()
    assert sample.driver == "580.159.04"
    assert [gpu.index for gpu in sample.devices] == [0, 1]
    gpu = sample.devices[0]
    assert (gpu.name, gpu.pci) == ("NVIDIA H200", "00000000:00:06.0")
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert gpu.memory is not None
    assert (gpu.memory.total, gpu.memory.used, gpu.memory.reserved) == (H200_TOTAL, 0, H200_RESERVED)
    assert gpu.memory.free == 150109880320  # as logged on the real device
    assert gpu.processes == ()
    assert (gpu.temperature_c, gpu.power_w, gpu.clock_limits) == (37, 77.0, ())
    assert (gpu.ecc_volatile, gpu.ecc_aggregate, gpu.recovery, gpu.lost) == (0, 0, "none", "")
    assert gpu.rows is not None
    assert not gpu.rows.pending
    assert gpu.problems == ()
    assert 0 < sample.took_s < 5


def test_memory_is_listed_per_process_with_the_overhead_of_a_context(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.allocate(os.getpid(), 1, 22017998848)
    free, held = reader.again().devices
    assert free.processes == ()
    assert held.processes is not None
    (process,) = held.processes
    assert (process.pid, process.bytes, process.alive) == (os.getpid(), 22017998848, True)
    assert held.memory is not None
    assert held.memory.used == 22027239424  # as logged on the real device


def test_a_dead_process_stays_listed_and_is_called_dead(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.lag_s = 600
    fake_nvml.write()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    fake_nvml.allocate(ended.pid, 0, GIB)
    ended.wait()
    processes = reader.gpu().processes
    assert processes is not None
    assert [(process.pid, process.bytes, process.alive) for process in processes] == [(ended.pid, GIB, False)]
    fake_nvml.lag_s = 0
    fake_nvml.write()
    assert reader.gpu().processes == ()


def test_a_size_that_the_driver_does_not_tell_is_none(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.gpus[0].processes[os.getpid()] = None
    fake_nvml.write()
    processes = reader.gpu().processes
    assert processes is not None
    assert processes[0].bytes is None


def test_health_fields_are_read(fake_nvml: FakeNvml, reader: Reader) -> None:
    gpu = fake_nvml.gpus[0]
    gpu.ecc, gpu.rows, gpu.recovery, gpu.clocks = (2, 7), (1, 2, 1, 1), 4, 0x8 | 0x40 | 0x1
    fake_nvml.write()
    seen = reader.gpu()
    assert (seen.ecc_volatile, seen.ecc_aggregate, seen.recovery) == (2, 7, "drain-and-reset")
    assert seen.clock_limits == ("hardware-slowdown", "hardware-thermal")
    assert seen.rows == RemappedRows(pending=True, failure=True)


def test_a_recovery_action_of_a_newer_driver_keeps_its_number(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.gpus[0].recovery = 42
    fake_nvml.write()
    assert reader.gpu().recovery == "action-42"


# --- what a driver does not offer, or fails at ---


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "clock_limits"),
        ("nvmlDeviceGetTotalEccErrors", "ecc_volatile"),
        ("nvmlDeviceGetRemappedRows", "rows"),
        ("nvmlDeviceGetFieldValues", "recovery"),
    ],
)
def test_an_unsupported_field_is_none_and_no_problem(
    fake_nvml: FakeNvml, reader: Reader, function: str, field: str, code: int
) -> None:
    fake_nvml.fail(function, code)
    gpu = reader.gpu()
    assert json.loads(msgspec.json.encode(gpu))[field] is None
    assert gpu.problems == ()
    assert gpu.memory is not None


def test_a_failing_field_is_none_and_named(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.fail("nvmlDeviceGetTemperature", UNKNOWN_ERROR)
    gpu = reader.gpu()
    assert gpu.temperature_c is None
    assert gpu.problems == ("temperature: Unknown Error",)


def test_an_old_driver_has_the_first_version_of_memory_only(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", FUNCTION_NOT_FOUND)
    memory = reader.gpu().memory
    assert memory is not None
    assert (memory.used, memory.reserved) == (H200_RESERVED, None)


def test_an_old_driver_has_the_second_version_of_processes_only(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", FUNCTION_NOT_FOUND)
    fake_nvml.allocate(os.getpid(), 0, GIB)
    processes = reader.gpu().processes
    assert processes is not None
    assert processes[0].pid == os.getpid()


def test_a_driver_without_process_lists_says_none_not_nobody(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", NOT_SUPPORTED)
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v2", NOT_SUPPORTED)
    assert reader.gpu().processes is None


def test_a_lost_gpu_is_told_from_its_healthy_neighbour(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", GPU_IS_LOST, device=1)
    healthy, lost = reader.again().devices
    assert healthy.lost == ""
    assert lost.lost == "GPU is lost"
    assert lost.uuid.startswith("GPU-00000001")


def test_a_gpu_that_was_lost_before_we_came_is_listed(fake_nvml: FakeNvml, started: list[Reader]) -> None:
    fake_nvml.set_count(2)
    fake_nvml.fail("nvmlDeviceGetHandleByIndex_v2", GPU_IS_LOST, device=0)
    lost, healthy = start(fake_nvml, started).sample().devices
    assert (lost.index, lost.lost, lost.uuid) == (0, "GPU is lost", "")
    assert healthy.memory is not None


# --- Xids ---


def test_an_xid_is_told_at_once_and_followed_by_a_sample(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.xid(1, 79)
    seen = reader.report()
    assert isinstance(seen, XidSeen)
    assert (seen.device, seen.xid) == (1, 79)
    assert reader.sample().at >= seen.at


def test_an_xid_is_told_even_while_a_call_hangs(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.hang("nvmlDeviceGetTemperature")
    reader.ask()
    fake_nvml.xid(0, 119)
    assert isinstance(reader.report(), XidSeen)
    reader.process.kill()


def test_several_xids_come_in_order(fake_nvml: FakeNvml, reader: Reader) -> None:
    for code in (62, 45, 119):
        fake_nvml.xid(0, code)
    codes = []
    while len(codes) < 3:
        report = reader.report()
        codes += [report.xid] if isinstance(report, XidSeen) else []
    assert codes == [62, 45, 119]


def test_a_driver_without_events_still_gives_samples(fake_nvml: FakeNvml, started: list[Reader]) -> None:
    fake_nvml.fail("nvmlEventSetCreate", NOT_SUPPORTED)
    reader = start(fake_nvml, started)
    assert reader.sample().devices
    assert reader.again().devices


# --- beginning and end ---


def test_no_library_is_absent(started: list[Reader]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    started.append(Reader(environment))
    report = started[0].report()
    if isinstance(report, GpuSample):
        pytest.skip("this machine has a real NVML: its absence cannot be seen here")
    assert isinstance(report, GpuAbsent)
    assert "Not Found" in report.reason
    assert started[0].process.wait(timeout=10) == 0


def test_a_driver_that_is_not_loaded_is_absent(fake_nvml: FakeNvml, started: list[Reader]) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    assert isinstance(start(fake_nvml, started).report(), GpuAbsent)


def test_a_machine_without_devices_is_absent(fake_nvml: FakeNvml, started: list[Reader]) -> None:
    fake_nvml.set_count(0)
    report = start(fake_nvml, started).report()
    assert isinstance(report, GpuAbsent)
    assert report.reason == "NVML finds no GPU"


def test_a_driver_that_does_not_fit_its_library_is_blind(fake_nvml: FakeNvml, started: list[Reader]) -> None:
    fake_nvml.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    report = start(fake_nvml, started).report()
    assert isinstance(report, GpuBlind)
    assert "mismatch" in report.reason


def test_a_driver_that_goes_away_ends_the_child_with_a_word(fake_nvml: FakeNvml, reader: Reader) -> None:
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", UNINITIALIZED)
    reader.ask()
    report = reader.report()
    assert isinstance(report, GpuBlind)
    assert report.reason == "NVML stopped answering: Uninitialized"
    assert reader.process.wait(timeout=10) == 0


def test_the_end_of_its_input_ends_it(reader: Reader) -> None:
    assert reader.close() == 0


def test_ctrl_c_at_the_terminal_is_not_its_affair(reader: Reader) -> None:
    reader.process.send_signal(signal.SIGINT)
    assert reader.again().devices


def test_it_dies_with_its_parent_even_while_it_hangs(fake_nvml: FakeNvml) -> None:
    fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2")
    parent = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'supervisor.edge.gpu', '1', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", parent], env=client_environment(fake_nvml), stdout=subprocess.PIPE, timeout=30
    )
    assert ends_within(10, int(answer.stdout))


def ends_within(limit_s: float, pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([handle], [], [], limit_s)
    os.close(handle)
    return bool(ready)


def test_a_stranger_as_parent_means_that_ours_died_first(fake_nvml: FakeNvml) -> None:
    command = [sys.executable, "-m", "supervisor.edge.gpu", "1", "1"]
    answer = subprocess.run(
        command, env=client_environment(fake_nvml), stdin=subprocess.PIPE, stdout=subprocess.PIPE, timeout=30
    )
    assert answer.stdout == b""


def test_a_pid_namespace_of_ones_own_is_told_and_its_pids_are_not_the_drivers(fake_nvml: FakeNvml) -> None:
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no pid namespace can be made here (unshare needs root)")
    fake_nvml.gpus[0].processes[os.getpid()] = GIB  # of the host, where this test runs
    fake_nvml.write()
    inner = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'supervisor.edge.gpu', '600', str(os.getpid())]\n"
        "subprocess.run(command, stdin=subprocess.DEVNULL)\n"
    )
    command = [*unshare, sys.executable, "-c", inner]
    answer = subprocess.run(command, env=client_environment(fake_nvml), stdout=subprocess.PIPE, timeout=30)
    sample = msgspec.json.decode(answer.stdout.splitlines()[0], type=GpuReport)
    assert isinstance(sample, GpuSample)
    assert sample.own_pid_namespace
    assert sample.devices[0].processes == (GpuProcess(os.getpid(), GIB, alive=False),)


def test_outside_a_container_the_pid_namespace_is_the_first(reader: Reader) -> None:
    initial = os.readlink("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE
    assert reader.again().own_pid_namespace is not initial


def test_the_child_imports_little(fake_nvml: FakeNvml) -> None:
    """Its memory counts in the daemon's: nothing but the standard library and pynvml."""
    code = "import sys, supervisor.edge.gpu.__main__; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    loaded = {name.partition(".")[0] for name in answer.stdout.split()}
    assert not loaded & {"anyio", "asyncio", "msgspec", "httpx", "structlog", "psutil", "subprocess"}


@pytest.mark.parametrize(
    ("pid", "alive"), [pytest.param(os.getpid(), True, id="our own"), (0, False), (2**22 + 1, False)]
)
def test_alive_is_what_our_proc_knows(pid: int, alive: bool) -> None:
    assert is_alive(pid) is alive


def test_every_line_is_one_report_with_nothing_that_we_do_not_know(fake_nvml: FakeNvml, started: list[Reader]) -> None:
    reader = start(fake_nvml, started)
    assert reader.process.stdout is not None
    sent: dict[str, Any] = json.loads(reader.process.stdout.readline())
    fields = {"at", "took_s", "driver", "own_pid_namespace", "devices", "type"}
    assert set(sent) == fields
    assert set(sent["devices"][0]) | {"lost"} == set(Gpu.__struct_fields__)


def test_a_process_without_its_first_thread_lives(headless: int) -> None:
    assert is_alive(headless)
