"""The kernel's own words are understood, nobody else's; full disks are seen before they hurt."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from supervisor.edge.hostwatch import (
    KernelFact,
    LogLost,
    OomKill,
    XidReported,
    free_bytes,
    kernel_facts,
    open_kernel_log,
    parse,
)

# As Linux 5.15 and 6.8 wrote them, and the NVIDIA driver 550 and 580.
SUMMARY = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/sglsup/servers/kimi,task_memcg=/sglsup/servers/kimi,task=sglang::schedul,pid=4711,uid=1000"
)
HOST_SUMMARY = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/system.slice/sglsup.service,task=python,pid=99,uid=0"
)
KILLED = (
    "Memory cgroup out of memory: Killed process 4711 (sglang::schedul) total-vm:9000kB, anon-rss:1kB, file-rss:0kB,"
    " shmem-rss:0kB, UID:1000 pgtables:40kB oom_score_adj:0"
)
HOST_KILLED = "Out of memory: Killed process 99 (py (x) thon) total-vm:9000kB, anon-rss:8000kB, UID:0"


def record(text: str, facility: int = 0, level: int = 4) -> bytes:
    return f"{facility << 3 | level},1234,5678901,-;{text}\n SUBSYSTEM=test\n".encode()


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (SUMMARY, OomKill(4711, "sglang::schedul", "/sglsup/servers/kimi", "/sglsup/servers/kimi")),
        (HOST_SUMMARY, OomKill(99, "python", "/system.slice/sglsup.service", "")),
        (KILLED, OomKill(4711, "sglang::schedul")),
        (HOST_KILLED, OomKill(99, "py (x")),
        (
            "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            XidReported("0000:65:00", 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00): 31, pid=77, name=python, Ch 00000008, intr 00000000. MMU Fault",
            XidReported("0000:1b:00", 31, "pid=77, name=python, Ch 00000008, intr 00000000. MMU Fault"),
        ),
        ("NVRM: Xid (PCI:0000:1b:00): 154", XidReported("0000:1b:00", 154)),
        ("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", None),
        ("usb 1-1: new high-speed USB device", None),
        ("", None),
    ],
)
def test_what_the_kernel_says(text: str, fact: KernelFact | None) -> None:
    assert parse(record(text)) == fact


def test_what_a_user_writes_into_the_log_is_no_fact() -> None:
    """Anybody with access to /dev/kmsg can write these very words; the kernel marks them as a user's."""
    assert parse(record(SUMMARY, facility=1)) is None
    assert parse(record(SUMMARY, facility=3)) is None


@pytest.mark.parametrize("data", [b"", b"no semicolon", b";", b"x,1,2,-;" + SUMMARY.encode(), b"4,1,2,-;\xff\xfe\x00"])
def test_broken_records_are_skipped(data: bytes) -> None:
    assert parse(data) is None


@pytest.fixture
def log() -> Iterator[tuple[socket.socket, int]]:
    """One record a read, as /dev/kmsg gives them."""
    writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader.setblocking(False)
    with writer, reader:
        yield writer, reader.fileno()


async def test_facts_come_as_they_are_logged(log: tuple[socket.socket, int]) -> None:
    writer, descriptor = log
    facts: list[KernelFact] = []
    with anyio.fail_after(10):
        async with aclosing(kernel_facts(descriptor)) as feed:
            writer.send(record("noise"))
            writer.send(record(KILLED))
            writer.send(record("NVRM: Xid (PCI:0000:65:00): 79, gone"))
            async for fact in feed:
                facts.append(fact)
                if len(facts) == 2:
                    break
    assert facts == [OomKill(4711, "sglang::schedul"), XidReported("0000:65:00", 79, "gone")]


async def test_records_that_were_overwritten_before_they_were_read_are_told_of(
    log: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/kmsg answers one read with EPIPE and goes on with the oldest record that is left."""
    writer, descriptor = log
    answers = [OSError(errno.EPIPE, "overwritten"), record("NVRM: Xid (PCI:0000:65:00): 79, gone")]

    def read(_: int, __: int) -> bytes:
        answer = answers.pop(0) if answers else b""
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("supervisor.edge.hostwatch.os.read", read)
    writer.send(b"readable")
    with anyio.fail_after(10):
        facts = [fact async for fact in kernel_facts(descriptor)]
    assert facts == [LogLost(), XidReported("0000:65:00", 79, "gone")]


async def test_a_closed_log_ends_the_feed(log: tuple[socket.socket, int]) -> None:
    writer, descriptor = log
    writer.close()
    with anyio.fail_after(10):
        assert [fact async for fact in kernel_facts(descriptor)] == []


def test_a_log_that_may_not_be_read_is_no_error(tmp_path: Path) -> None:
    assert open_kernel_log(str(tmp_path / "kmsg")) is None


def test_the_real_log_opens_at_its_end() -> None:
    descriptor = open_kernel_log()
    if descriptor is None:
        pytest.skip("the kernel's log cannot be read here (not root, or a container)")
    try:
        with pytest.raises(BlockingIOError):
            [os.read(descriptor, 8192) for _ in range(2)]  # the first may meet a line that was logged just now
    finally:
        os.close(descriptor)


async def test_space_of_a_file_system(tmp_path: Path) -> None:
    free, whole = await free_bytes(str(tmp_path)), os.statvfs(tmp_path)
    assert free is not None
    assert 0 < free <= whole.f_blocks * whole.f_frsize


async def test_space_of_nothing(tmp_path: Path) -> None:
    assert await free_bytes(str(tmp_path / "nowhere")) is None
