"""What reading an engine's log costs, from the bytes of the file to the matches of the profile's rules."""

import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from bench.harness import Better, Measurement, bench, one_cpu_ms
from bench.log_diagnose import grep, mtail
from supervisor.core.log.live import LiveReader
from supervisor.profile import load_profile

RECORDED = Path(__file__).resolve().parents[1] / "tests/data/sglang/real-0.5.23-cpu/healthy-start-tp2.log"
CHUNK_BYTES = 256 * 1024  # as the tail hands them on
SIZE_BYTES = 40_000_000
HOSTILE_BYTES = 8_000_000
GB = 1e9
ACCESS = b'[2026-11-29 15:%(minute)02d:%(second)02d] INFO:     127.0.0.1:%(port)d - "POST /generate HTTP/1.1" 200 OK\n'
DECODE = (
    b"[2026-11-29 15:%(minute)02d:%(second)02d TP0] Decode batch, #running-req: 12, #token: %(port)d, "
    b"token usage: 0.31, cuda graph: True, gen throughput (token/s): 913.22, #queue-req: 0\n"
)
PREFILL = (
    b"[2026-11-29 15:%(minute)02d:%(second)02d TP0] Prefill batch, #new-seq: 1, #new-token: 77, #cached-token: 0, "
    b"token usage: 0.00, #running-req: 11, #queue-req: 0\n"
)
RECEIVE = (
    b"[2026-11-29 15:%(minute)02d:%(second)02d] Receive: obj=GenerateReqInput(rid='%(port)d', text='Write a poem')\n"
)
LINES_A_SECOND = 200
BEGINNING = itemgetter(slice(40))
# What somebody would write by hand to see the start and its failures.
PATTERN = (
    "Load weight (begin|end)|Capture .*graph (begin|end)|Memory pool end|ready to roll|Traceback|out of memory|SIGTERM"
)
# Lines that somebody writes who has read the profile: every pattern begins again and again, every mark is there.
HOSTILE = (
    b"[2026-11-29 15:00:00 TP0] quantization must be " + b"quantiz" * 2000,
    b"[2026-11-29 15:00:00 TP0] cuda_graph Invalid page_size " + b"cuda_graph" * 1500,
    b"[2026-11-29 15:00:00 TP0] Capture    - draft " + b"Capture    - draft " * 700,
    b"PermissionError: " + b"creat" * 3000,
    b"Capturing 1%| " + b"Capturing 0000000000000%" * 600,
    b"ValueError: must be --" + b"a-" * 7000,
    b"Traceback (most recent call last):\n" * 20,
    b"[rank7]: Traceback (most recent call last):",
    b"Capturing batches:  10%|#   | 1/8 [00:00<00:00, 22.90it/s]\r" * 20,
)


class Flood(NamedTuple):
    """A kind of log: `serving` lines of serving to one of a start, or lines made to cost time."""

    name: str
    serving: int
    size: int = SIZE_BYTES


FLOODS = (Flood("benign", 999), Flood("mixed", 19), Flood("hostile", 0, HOSTILE_BYTES))


@bench("ingestion")
def ingestion() -> Iterator[Measurement]:
    LiveReader(load_profile("sglang"), attempt=1)  # the daemon compiles a profile once, whatever it reads
    for flood in FLOODS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.log"
            size = write_log(path, flood)
            seconds = cpu_seconds(read_all, path)
            least_s = cpu_seconds(tell_apart, path)
            regex_s = cpu_seconds(search_all, path)
            grep_s = one_cpu_ms(grep(path, PATTERN), os.environ) / 1000
            mtail_speed = mtail(path, size)
        what = f"log to matches, {flood.name}"
        speed, per_gb = size / seconds / 1e6, seconds * GB / size
        peer = "readline + re, 7 patterns"
        yield Measurement(what, "MB/CPU s", speed, peer, size / regex_s / 1e6, Better.HIGHER, budget=40)
        yield Measurement(what, "MB/CPU s", speed, "mtail, 3 patterns", mtail_speed, Better.HIGHER)
        yield Measurement(what, "CPU s/GB", per_gb, peer, regex_s * GB / size, budget=1.5)
        yield Measurement(what, "CPU s/GB", per_gb, "lines cut and told apart in Python", least_s * GB / size)
        yield Measurement(what, "CPU s/GB", per_gb, "grep -E, 7 patterns", grep_s * GB / size)


@bench("log-steps")
def log_steps() -> Iterator[Measurement]:
    """How long the loop is kept by one step of reading: the longest of a flood, in CPU time."""
    for flood in FLOODS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.log"
            write_log(path, flood)
            longest = max(steps(path))
            batch = max(batches(path))
        what = f"longest step, {flood.name}"
        yield Measurement(what, "CPU ms", 1000 * longest, "re over 256 KiB at once", 1000 * batch)


def write_log(path: Path, flood: Flood) -> int:
    """A recorded start, thinned out by the lines of serving; or hostile lines."""
    chance = random.Random(flood.name)
    with path.open("wb") as log:
        while flood.serving == 0 and log.tell() < flood.size:
            log.write(chance.choice(HOSTILE)[: chance.choice([300, 2000, 16_000])] + b"\n")
        numbers = count()
        for line in cycle(RECORDED.read_bytes().splitlines(keepends=True)):
            if log.tell() >= flood.size:
                break
            log.writelines(map(serving_line, islice(numbers, flood.serving)))
            log.write(line)
        return log.tell()


def serving_line(number: int) -> bytes:
    second = number // LINES_A_SECOND
    form = (DECODE, ACCESS, PREFILL, RECEIVE)[number % 4]
    return form % {b"minute": second // 60 % 60, b"second": second % 60, b"port": 30000 + number % 30000}


def read_all(path: Path) -> int:
    """The daemon's way, without the wait for the next bytes."""
    reader = LiveReader(load_profile("sglang"), attempt=1)
    matches = 0
    with path.open("rb", buffering=0) as log:
        while chunk := log.read(CHUNK_BYTES):
            for step in reader.feed(chunk):
                matches += len(step)
    return matches + len(reader.finish())


def steps(path: Path) -> Iterator[float]:
    """What the loop's other tasks wait for, each time."""
    reader = LiveReader(load_profile("sglang"), attempt=1)
    with path.open("rb", buffering=0) as log:
        while chunk := log.read(CHUNK_BYTES):
            reading = reader.feed(chunk)
            begin = time.thread_time()
            while next(reading, None) is not None:
                end = time.thread_time()
                yield end - begin
                begin = end


def batches(path: Path) -> Iterator[float]:
    pattern = re.compile(PATTERN)
    with path.open("rb", buffering=0) as log:
        while chunk := log.read(CHUNK_BYTES):
            begin = time.thread_time()
            sum(1 for line in chunk.decode(errors="replace").split("\n") if pattern.search(line))
            yield time.thread_time() - begin


def tell_apart(path: Path) -> int:
    """The least that a reader in Python does, whatever it looks for: lines, and how they begin."""
    beginnings: set[bytes] = set()
    with path.open("rb", buffering=0) as log:
        while chunk := log.read(CHUNK_BYTES):
            beginnings.update(map(BEGINNING, chunk.split(b"\n")))
    return len(beginnings)


def search_all(path: Path) -> int:
    pattern = re.compile(PATTERN)
    with path.open(errors="replace") as log:
        return sum(1 for line in log if pattern.search(line))


def cpu_seconds(work: Callable[[Path], int], path: Path) -> float:
    begin = time.process_time()
    found = work(path)
    if not found:
        raise RuntimeError("cannot measure: the log's start was not recognised")
    return time.process_time() - begin
