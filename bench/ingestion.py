"""What reading an engine's log costs, from the bytes of the file to the matches of the profile's rules."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.harness import Better, Measurement, bench, one_cpu_ms
from supervisor.core.grammar import LogReader
from supervisor.lines import LineCutter
from supervisor.profile import load_profile

RECORDED = Path(__file__).resolve().parents[1] / "tests/data/sglang/real-0.5.23-cpu/healthy-start-tp2.log"
CHUNK_BYTES = 256 * 1024
SERVING_LINES = 999  # to one line of a start: what a busy server prints all day
SIZE_BYTES = 40_000_000
GB = 1e9
ACCESS = b'[2026-11-29 15:53:53] INFO:     127.0.0.1:58886 - "POST /generate HTTP/1.1" 200 OK\n'
DECODE = (
    b"[2026-11-29 15:53:54 TP0] Decode batch, #running-req: 12, #token: 20311, token usage: 0.31, "
    b"cuda graph: True, gen throughput (token/s): 913.22, #queue-req: 0\n"
)
# What somebody would write by hand to see the start and its failures.
PATTERN = (
    "Load weight (begin|end)|Capture .*graph (begin|end)|Memory pool end|ready to roll|Traceback|out of memory|SIGTERM"
)


@bench("ingestion")
def ingestion() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        size = write_log(path)
        seconds = cpu_seconds(lambda: read_all(path))
        grep_s = one_cpu_ms(["grep", "-cE", PATTERN, str(path)], os.environ) / 1000
        regex_s = cpu_seconds(lambda: search_all(path))
    what = "log to matches"
    yield Measurement(what, "CPU s/GB", seconds * GB / size, "grep -E, 7 patterns", grep_s * GB / size)
    yield Measurement(what, "CPU s/GB", seconds * GB / size, "readline + re, 7 patterns", regex_s * GB / size)
    yield Measurement(
        what, "MB/CPU s", size / seconds / 1e6, "readline + re, 7 patterns", size / regex_s / 1e6, Better.HIGHER
    )


def write_log(path: Path) -> int:
    """A recorded start, thinned out by the lines of serving."""
    serving = ACCESS + DECODE
    block = serving * (SERVING_LINES // 2)
    with path.open("wb") as log:
        while log.tell() < SIZE_BYTES:
            for line in RECORDED.read_bytes().splitlines(keepends=True):
                log.write(block + line)
                if log.tell() >= SIZE_BYTES:
                    break
        return log.tell()


def read_all(path: Path) -> int:
    """The daemon's way, without the wait for the next bytes."""
    cutter, reader = LineCutter(), LogReader(load_profile("sglang"), attempt=1)
    matches = 0
    with path.open("rb") as log:
        while chunk := log.read(CHUNK_BYTES):
            matches += len(reader.read(cutter.feed(chunk)))
    return matches + len(reader.finish())


def search_all(path: Path) -> int:
    pattern = re.compile(PATTERN)
    with path.open(errors="replace") as log:
        return sum(1 for line in log if pattern.search(line))


def cpu_seconds(work: Callable[[], int]) -> float:
    begin = time.process_time()
    found = work()
    if not found:
        raise RuntimeError("cannot measure: the log's start was not recognised")
    return time.process_time() - begin
