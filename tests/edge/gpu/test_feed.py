"""The feed of GPU reports: whatever happens to the child, the daemon gets an answer and is never held up."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.devices import GpuAbsent, GpuBlind, GpuReport, GpuSample, XidSeen
from supervisor.edge.gpu.feed import FeedTimings, GpuFeed, Sight
from supervisor.edge.gpu.process import ReaderProcess, launch_reader
from tests.nvml.fake import DRIVER_NOT_LOADED, UNINITIALIZED, FakeNvml, client_environment

# Short silences and pauses; periods long enough that a sample comes when asked for.
TIMINGS = FeedTimings(
    active_s=30, idle_s=60, silent_periods=0, silent_min_s=0.4, backoff_s=0.01, backoff_max_s=0.05, absent_retry_s=300
)
STEADY = msgspec.structs.replace(TIMINGS, silent_min_s=60)
LIMIT_S = 20


@pytest.fixture
def launch(fake_nvml: FakeNvml) -> Callable[[float], ReaderProcess]:
    return lambda period_s: launch_reader(period_s, client_environment(fake_nvml))


def script(code: str, environment: dict[str, str] | None = None) -> Callable[[float], ReaderProcess]:
    """A child that says what the test wants."""

    def launch(period_s: float) -> ReaderProcess:
        command = [sys.executable, "-c", code]
        return ReaderProcess(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))

    return launch


async def take(feed: GpuFeed) -> GpuReport:
    with anyio.fail_after(LIMIT_S):
        return await anext(feed)


async def sample(feed: GpuFeed) -> GpuSample:
    report = await take(feed)
    assert isinstance(report, GpuSample)
    return report


async def blind(feed: GpuFeed) -> str:
    report = await take(feed)
    assert isinstance(report, GpuBlind)
    return report.reason


async def test_the_reader_takes_no_code_from_the_present_directory(
    launch: Callable[[float], ReaderProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon is started wherever somebody is, and PyPI's Supervisor has a package of our name."""
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor" / "__init__.py").write_text("print('somebody else')")
    monkeypatch.chdir(tmp_path)
    async with GpuFeed(STEADY, launch) as feed:
        assert (await sample(feed)).devices


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
async def steady(launch: Callable[[float], ReaderProcess]) -> AsyncIterator[GpuFeed]:
    async with GpuFeed(STEADY, launch) as feed:
        yield feed


# --- seeing ---


async def test_samples_come_and_sight_is_seeing(steady: GpuFeed) -> None:
    assert steady.status.sight is Sight.BLIND
    assert (await sample(steady)).devices[0].name == "NVIDIA H200"
    assert steady.status.sight is Sight.SEEING
    assert steady.status.reason == ""
    assert steady.status.restarts == 0


async def test_hurry_and_relax_look_at_once(steady: GpuFeed) -> None:
    first = await sample(steady)
    steady.hurry()
    second = await sample(steady)
    steady.relax()
    third = await sample(steady)
    assert first.at < second.at < third.at


async def test_relaxing_again_and_again_asks_for_nothing(steady: GpuFeed) -> None:
    await sample(steady)
    steady.relax()
    await sample(steady)
    steady.relax()
    with anyio.move_on_after(0.3) as silence:
        await anext(steady)
    assert silence.cancelled_caught


async def test_samples_come_by_themselves_once_a_period(launch: Callable[[float], ReaderProcess]) -> None:
    async with GpuFeed(msgspec.structs.replace(STEADY, active_s=0.01), launch) as feed:
        times = [(await sample(feed)).at for _ in range(5)]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 0.04


async def test_an_xid_comes_between_samples(fake_nvml: FakeNvml, steady: GpuFeed) -> None:
    await sample(steady)
    fake_nvml.xid(0, 79)
    report = await take(steady)
    assert isinstance(report, XidSeen)
    assert (report.device, report.xid) == (0, 79)
    assert isinstance(await take(steady), GpuSample)


async def test_it_is_an_async_iterator(steady: GpuFeed) -> None:
    with anyio.fail_after(LIMIT_S):
        async for report in steady:
            assert isinstance(report, GpuSample)
            break


async def test_closing_ends_the_child(launch: Callable[[float], ReaderProcess]) -> None:
    async with GpuFeed(STEADY, launch) as feed:
        await sample(feed)
        pid = feed.status.pid
        assert pid is not None
    assert not exists(pid)
    assert feed.status.pid is None


async def test_closing_a_feed_that_never_looked_is_fine() -> None:
    async with GpuFeed(STEADY):
        pass


async def test_giving_up_a_wait_loses_nothing(fake_nvml: FakeNvml, steady: GpuFeed) -> None:
    await sample(steady)
    with anyio.move_on_after(0.05):
        await anext(steady)
    fake_nvml.xid(0, 31)
    assert isinstance(await take(steady), XidSeen)


# --- blind ---


async def test_a_driver_call_that_hangs_makes_blind_and_a_mended_driver_seeing(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    async with GpuFeed(TIMINGS, launch) as feed:
        await sample(feed)
        hung = feed.status.pid
        fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2")
        feed.hurry()
        reason = await blind(feed)
        assert "a driver call hangs" in reason
        assert feed.status.sight is Sight.BLIND
        assert hung is not None
        assert not exists(hung)
        fake_nvml.mend()
        assert (await sample(feed)).devices
        assert feed.status.sight is Sight.SEEING
        assert feed.status.restarts == 1
        assert feed.status.abandoned == ()


async def test_a_driver_that_hangs_at_its_start_is_given_longer(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    fake_nvml.hang("nvmlInitWithFlags")
    async with GpuFeed(msgspec.structs.replace(TIMINGS, first_line_s=0.8), launch) as feed:
        begun = anyio.current_time()
        assert "hangs" in await blind(feed)
        assert anyio.current_time() - begun >= 0.8


async def test_a_later_reader_is_given_as_long_as_the_driver_was_seen_to_need(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    timings = msgspec.structs.replace(TIMINGS, first_line_s=60, again_min_s=0.5, again_times=0)
    async with GpuFeed(timings, launch) as feed:
        await sample(feed)
        fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2")
        feed.hurry()
        assert "a driver call hangs" in await blind(feed)
        first = feed.status.restarts
        with anyio.move_on_after(LIMIT_S / 2):
            while feed.status.restarts < first + 2:
                with anyio.move_on_after(0.2):
                    await anext(feed)
        assert feed.status.restarts >= first + 2, "not after a minute each"


async def test_hurry_shortens_the_wait_of_a_silence_that_has_begun(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    slow = FeedTimings(active_s=0.1, idle_s=600, silent_periods=3, silent_min_s=0.2, backoff_s=0.01)
    async with GpuFeed(slow, launch) as feed, anyio.create_task_group() as tasks:
        await sample(feed)
        feed.relax()
        await sample(feed)
        fake_nvml.hang("nvmlDeviceGetTemperature")
        tasks.start_soon(later, feed.hurry)
        assert "hangs" in await blind(feed)  # with the idle period it would take half an hour


class Clock:
    """The real one, put forward."""

    def __init__(self) -> None:
        self.forward_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.forward_s


async def test_the_quiet_of_a_long_period_is_no_silence_when_a_stop_wants_an_answer(
    launch: Callable[[float], ReaderProcess],
) -> None:
    """Else a stop finds the feed "silent" for as long as nobody has asked it, and proves no memory free."""
    clock = Clock()
    timings = FeedTimings(active_s=1, idle_s=600, silent_periods=3, silent_min_s=5)
    async with GpuFeed(timings, launch, clock) as feed:
        await sample(feed)
        feed.relax()
        await sample(feed)
        clock.forward_s += 9.2
        feed.hurry()
        await sample(feed)
        assert feed.status.restarts == 0


async def test_who_asks_again_and_again_does_not_put_off_the_end_of_a_silence(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    clock = Clock()
    timings = FeedTimings(active_s=1, idle_s=600, silent_periods=3, silent_min_s=5, backoff_s=0.01)
    async with GpuFeed(timings, launch, clock) as feed:
        await sample(feed)
        fake_nvml.hang("nvmlDeviceGetTemperature")
        for _ in range(4):
            feed.hurry()
            clock.forward_s += 2.0
        assert "hangs" in await blind(feed)


async def later(call: Callable[[], None]) -> None:
    await anyio.lowlevel.checkpoint()
    call()


async def test_a_child_that_is_killed_is_replaced(steady: GpuFeed) -> None:
    await sample(steady)
    pid = steady.status.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await blind(steady) == "the GPU reader was killed by SIGKILL"
    await sample(steady)
    assert steady.status.pid != pid


async def test_a_driver_that_goes_away_is_named(fake_nvml: FakeNvml, steady: GpuFeed) -> None:
    await sample(steady)
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", UNINITIALIZED)
    steady.hurry()
    assert await blind(steady) == "NVML stopped answering: Uninitialized"


async def test_the_same_blindness_is_told_once(fake_nvml: FakeNvml, steady: GpuFeed) -> None:
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", UNINITIALIZED)
    await blind(steady)
    with anyio.move_on_after(0.5) as silence:
        await anext(steady)
    assert silence.cancelled_caught
    assert steady.status.restarts > 1
    fake_nvml.mend()
    await sample(steady)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('no JSON', flush=True); input()", "cannot understand the GPU reader"),
        ('print(\'{"type":"GpuSample"}\', flush=True); input()', "missing required field `at`"),
        ("print('x' * 2_000_000, flush=True); input()", "a line without end"),
        ("raise SystemExit(3)", "exited with status 3"),
        ("import os; os.close(1); os.dup2(2, 1); input()", "closed its output"),
    ],
)
async def test_a_child_that_talks_nonsense_is_no_more_than_blindness(code: str, reason: str) -> None:
    async with GpuFeed(msgspec.structs.replace(STEADY, reap_s=0.2), script(code)) as feed:
        assert reason in await blind(feed)


async def test_a_child_that_cannot_be_started_is_blindness() -> None:
    def refuse(period_s: float) -> ReaderProcess:
        raise OSError(24, "Too many open files")

    async with GpuFeed(STEADY, refuse) as feed:
        assert await blind(feed) == "cannot start the GPU reader: [Errno 24] Too many open files"


async def test_a_reader_of_the_feed_that_is_slow_itself_is_no_silence(launch: Callable[[float], ReaderProcess]) -> None:
    async with GpuFeed(msgspec.structs.replace(TIMINGS, active_s=0.05), launch) as feed:
        await sample(feed)
        time.sleep(0.6)  # noqa: ASYNC251 - longer than the silence that is borne
        await sample(feed)
        assert feed.status.restarts == 0


# --- a child that cannot be killed ---


class Undead(ReaderProcess):
    """Sleeps in the kernel: SIGKILL does not end it, as far as the feed can see."""

    buried = False

    def kill(self) -> None:
        super().kill()
        self._process.wait()

    async def ended(self) -> None:
        await anyio.sleep_forever()

    def exit_code(self) -> int | None:
        return super().exit_code() if self.buried else None


async def test_children_that_survive_the_kill_are_left_behind_three_at_most() -> None:
    children: list[Undead] = []

    def launch(period_s: float) -> ReaderProcess:
        command = [sys.executable, "-c", "input()"]
        children.append(Undead(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)))
        return children[-1]

    timings = msgspec.structs.replace(TIMINGS, first_line_s=0.05, reap_s=0.05)
    async with GpuFeed(timings, launch) as feed:
        reason = ""
        while "kernel" not in reason:
            reason = await blind(feed)
        pids = ", ".join(str(child.pid) for child in children)
        assert reason == f"3 GPU readers hang inside the kernel (pids {pids})"
        assert feed.status.abandoned == tuple(child.pid for child in children)

        children[0].buried = True  # the kernel lets one go at last: there is room for another try
        assert "hangs" in await blind(feed)
        assert len(children) == 4
    for child in children:
        child.buried = True
        assert child.exit_code() is not None


# --- absent ---


async def test_no_gpu_is_absent_and_nothing_runs(fake_nvml: FakeNvml, steady: GpuFeed) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    report = await take(steady)
    assert isinstance(report, GpuAbsent)
    assert report.reason == "Driver Not Loaded"
    assert (steady.status.sight, steady.status.pid, steady.status.restarts) == (Sight.ABSENT, None, 0)
    with anyio.move_on_after(0.2):
        await anext(steady)
    assert steady.status.pid is None


async def test_a_start_that_wants_gpus_looks_again_for_a_driver_loaded_since(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    async with GpuFeed(STEADY, launch) as feed, anyio.create_task_group() as tasks:
        await take(feed)
        fake_nvml.mend()
        tasks.start_soon(later, feed.hurry)
        assert (await sample(feed)).devices


async def test_absence_is_looked_into_again_after_a_while(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    async with GpuFeed(msgspec.structs.replace(STEADY, absent_retry_s=0.05), launch) as feed:
        await take(feed)
        fake_nvml.mend()
        assert (await sample(feed)).devices


# --- what it costs the loop ---


async def test_the_loop_never_waits_for_the_driver(
    fake_nvml: FakeNvml, launch: Callable[[float], ReaderProcess]
) -> None:
    """A call that hangs for good, and a child killed for it: the loop's own clock goes on all the while."""
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.01)
            turns += 1

    async with GpuFeed(TIMINGS, launch) as feed, anyio.create_task_group() as tasks:
        await sample(feed)
        fake_nvml.hang("nvmlDeviceGetComputeRunningProcesses_v3")
        feed.hurry()
        tasks.start_soon(tick)
        await blind(feed)
        tasks.cancel_scope.cancel()
    assert turns >= 10  # of some 40 in 0.4 s; the lag itself is measured in bench/nvml_hang.py
