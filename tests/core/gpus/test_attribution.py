"""Whose each byte of a device's memory is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.gpus.attribution import OVERHEAD_PER_PROCESS, Account, account, idle_bytes, seen_by
from supervisor.devices import Gpu, GpuMemory, GpuProcess, ProcessOwner
from supervisor.events import Holder

MIB, GIB = 1 << 20, 1 << 30
TOTAL = 140 * GIB
KIMI = ProcessOwner(pid=10, user="sglang", uid=990, command="scheduler", server="kimi")
ALICE = ProcessOwner(pid=20, user="alice", uid=1000, command="python train.py")


def gpu(used: int, *processes: GpuProcess, index: int = 0) -> Gpu:
    return Gpu(index, memory=GpuMemory(TOTAL, used, TOTAL - used, 0), processes=processes)


def account_of(
    device: Gpu, *owners: ProcessOwner, baseline: int = 0, trusted: bool = True, lessee: str = ""
) -> Account:
    return account(device, 1.0, baseline, {owner.pid: owner for owner in owners}, trusted, lessee)


def test_an_idle_device_has_no_holders() -> None:
    idle = account_of(gpu(0))
    assert (idle.excess, idle.holders, idle.ended) == (0, (), ())


def test_a_server_and_a_stranger_are_told_apart_with_name_and_command() -> None:
    shared = account_of(gpu(30 * GIB, GpuProcess(10, 20 * GIB), GpuProcess(20, 10 * GIB)), KIMI, ALICE)
    assert shared.holders == (
        Holder(0, 20 * GIB, 10, "sglang", "scheduler", "server", "kimi"),
        Holder(0, 10 * GIB, 20, "alice", "python train.py", "foreign"),
    )


def test_what_a_server_left_behind_is_its_own_when_it_asks() -> None:
    left = account_of(gpu(5 * GIB, GpuProcess(10, 5 * GIB)), KIMI)
    assert [holder.kind for holder in seen_by("kimi", left.holders)] == ["own"]
    assert [holder.kind for holder in seen_by("glm", left.holders)] == ["server"]
    assert [holder.kind for holder in seen_by("", left.holders)] == ["server"]


def test_the_overhead_of_a_context_is_nobodys_fault() -> None:
    # The numbers of a real H200 with one process.
    one = account_of(gpu(22027239424, GpuProcess(10, 22017998848)), KIMI)
    assert one.overhead == 9240576
    assert [holder.kind for holder in one.holders] == ["server"]


def test_memory_without_a_process_is_unattributed() -> None:
    leaked = account_of(gpu(7 * GIB))
    assert leaked.holders == (Holder(0, 7 * GIB),)
    assert leaked.holders[0].kind == "unattributed"


def test_a_process_that_has_ended_is_listed_as_such() -> None:
    ended = account_of(gpu(5 * GIB, GpuProcess(10, 5 * GIB, alive=False)))
    assert ended.ended == (10,)
    (holder,) = ended.holders
    assert (holder.kind, holder.command, holder.bytes) == ("unattributed", "(ended, still listed)", 5 * GIB)


def test_a_living_process_that_nobody_could_look_up_is_foreign() -> None:
    (holder,) = account_of(gpu(5 * GIB, GpuProcess(33, 5 * GIB))).holders
    assert (holder.kind, holder.user) == ("foreign", "")


def test_one_process_of_unknown_size_holds_the_rest() -> None:
    hidden = account_of(gpu(9 * GIB, GpuProcess(10, None), GpuProcess(20, 4 * GIB)), KIMI, ALICE)
    assert [holder.bytes for holder in hidden.holders] == [5 * GIB, 4 * GIB]


def test_two_processes_of_unknown_size_leave_the_rest_unattributed() -> None:
    hidden = account_of(gpu(9 * GIB, GpuProcess(10, None), GpuProcess(20, None)), KIMI, ALICE)
    assert [holder.bytes for holder in hidden.holders] == [0, 0, 9 * GIB - 2 * OVERHEAD_PER_PROCESS]
    assert hidden.holders[2].kind == "unattributed"


def test_the_two_answers_of_the_driver_may_disagree() -> None:
    apart = account_of(gpu(4 * GIB, GpuProcess(10, 5 * GIB)), KIMI)
    assert apart.excess == 4 * GIB
    assert [holder.bytes for holder in apart.holders] == [5 * GIB]


def test_without_trustworthy_pids_the_lessee_holds_what_is_held() -> None:
    contained = account_of(gpu(5 * GIB, GpuProcess(4711, 5 * GIB, alive=False)), trusted=False, lessee="kimi")
    assert contained.holders == (Holder(0, 5 * GIB, command="(by lease)", kind="server", server="kimi"),)
    assert contained.ended == ()


def test_without_trustworthy_pids_and_lessee_it_is_unattributed() -> None:
    (holder,) = account_of(gpu(5 * GIB, GpuProcess(4711, 5 * GIB)), trusted=False).holders
    assert (holder.kind, holder.pid) == ("unattributed", 0)


def test_memory_that_cannot_be_read_is_not_zero() -> None:
    unknown = account_of(Gpu(0))
    assert unknown.used is None
    assert unknown.excess == 0


@pytest.mark.parametrize(
    ("device", "idle"),
    [
        (gpu(0), 0),
        (gpu(3 * MIB), 3 * MIB),
        (gpu(5 * GIB + MIB, GpuProcess(1, 5 * GIB)), MIB),
        (gpu(5 * GIB, GpuProcess(1, 6 * GIB)), 0),
        (gpu(5 * GIB, GpuProcess(1, None)), None),
        (Gpu(0, memory=GpuMemory(TOTAL, 5, 0)), None),
        (Gpu(0), None),
    ],
)
def test_what_an_idle_device_holds_is_never_a_process(device: Gpu, idle: int | None) -> None:
    assert idle_bytes(device) == idle


PROCESSES = st.lists(
    st.builds(GpuProcess, st.integers(0, 30), st.none() | st.integers(0, 40 * GIB), st.booleans()),
    max_size=5,
    unique_by=lambda process: process.pid,
)


@settings(max_examples=200)
@given(
    used=st.integers(0, TOTAL),
    baseline=st.integers(0, GIB),
    processes=PROCESSES,
    trusted=st.booleans(),
    lessee=st.sampled_from(["", "kimi"]),
)
def test_every_byte_has_an_owner(
    used: int, baseline: int, processes: list[GpuProcess], trusted: bool, lessee: str
) -> None:
    result = account_of(gpu(used, *processes), KIMI, ALICE, baseline=baseline, trusted=trusted, lessee=lessee)
    held = sum(holder.bytes for holder in result.holders)
    assert held + result.overhead >= result.excess
    listed = sum(process.bytes or 0 for process in processes) if trusted else 0
    if listed <= result.excess:  # else the driver contradicts itself
        assert held + result.overhead == result.excess
    assert all(holder.bytes >= 0 for holder in result.holders)
    assert {holder.kind for holder in result.holders} <= {"server", "foreign", "unattributed"}


@pytest.mark.parametrize(("trusted", "kind"), [(True, "unattributed"), (False, "server")])
def test_what_nobody_is_listed_for_is_the_lessees_only_where_pids_tell_nothing(*, trusted: bool, kind: str) -> None:
    (holder,) = account_of(gpu(5 * GIB), lessee="kimi", trusted=trusted).holders
    assert (holder.kind, holder.server) == (kind, "kimi" if kind == "server" else "")
