"""The stand-in itself: what a played server allocates is listed, and goes some time after its death."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nvml.fake import H200_TOTAL, FakeNvml, client_environment

LIMIT_S = 30
ASK = """
import sys, pynvml
pynvml.nvmlInit()
for line in sys.stdin:
    answer = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        answer.append(f"{pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used}:{','.join(map(str, pids))}")
    print(*answer, flush=True)
"""
Used = dict[int, tuple[int, list[int]]]


@pytest.fixture
def ask(fake_nvml: FakeNvml) -> Iterator[Callable[[], Used]]:
    """A client that has the library loaded all the while: used bytes and pids per device."""
    fake_nvml.set_count(2)
    client = subprocess.Popen(
        [sys.executable, "-c", ASK],
        env=client_environment(fake_nvml),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )

    def answer() -> Used:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(b"?\n")
        parts = [part.split(":") for part in client.stdout.readline().decode().split()]
        return {
            index: (int(used), [int(pid) for pid in pids.split(",") if pid]) for index, (used, pids) in enumerate(parts)
        }

    with client:
        yield answer


def test_the_state_is_read_again_whenever_it_changes(fake_nvml: FakeNvml, ask: Callable[[], Used]) -> None:
    assert ask() == {0: (0, []), 1: (0, [])}
    fake_nvml.gpus[1].used = 5
    fake_nvml.write()
    assert ask() == {0: (0, []), 1: (5, [])}


def test_a_process_that_ends_keeps_its_memory_for_the_lag(fake_nvml: FakeNvml, ask: Callable[[], Used]) -> None:
    fake_nvml.lag_s = 0.3
    fake_nvml.write()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fake_nvml.allocate(process.pid, 0, 1000)
    assert ask()[0][1] == [process.pid]
    process.kill()
    process.communicate()
    died = time.monotonic()
    assert ask()[0][1] == [process.pid]
    until(lambda: ask()[0] == (0, []))
    assert time.monotonic() - died >= 0.28  # a file's time stamp lags the clock by up to 10 ms
    assert list(fake_nvml.allocations.iterdir()) == []


def test_a_device_cannot_hold_more_than_it_has(fake_nvml: FakeNvml, ask: Callable[[], Used]) -> None:
    fake_nvml.allocate(os.getpid(), 0, 2 * H200_TOTAL)
    assert ask()[0][0] == H200_TOTAL


def test_the_fake_engines_ranks_hold_memory_of_their_devices(
    fake_nvml: FakeNvml, ask: Callable[[], Used], tmp_path: Path
) -> None:
    options = ["--model-path", "/models/none", "--tp", "2", "--port", "0", "--speed", "200"]
    command = [sys.executable, "-m", "supervisor.simulator", *options, "--gpu-dir", str(fake_nvml.allocations)]
    with (tmp_path / "log").open("wb") as log:
        engine = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: all(used > 0 for used, _pids in ask().values()))
        pids = [pid for _used, listed in ask().values() for pid in listed]
        assert len(set(pids)) == 2
    finally:
        engine.kill()  # the ranks follow their parent
        engine.wait()
    until(lambda: ask() == {0: (0, []), 1: (0, [])})


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < give_up
