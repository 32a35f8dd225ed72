"""Archiving a log: MB/s and CPU of each compressor, what a writer notices of the holes, and reading it all back."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from supervisor.edge.archive import LogArchive, live_path, log_bytes, segments

SIZE_BYTES = 512 * 2**20
SEGMENT_BYTES = 64 * 2**20
WRITE_BYTES = 64 * 1024


def main() -> None:
    """Print one line a compressor. The first argument is a directory on the disk that counts."""
    where = sys.argv[1] if len(sys.argv) > 1 else None
    print(f"{'':6} {'MB/s':>8} {'CPU s/GB':>9} {'ratio':>6} {'longest write ms':>17} {'read back MB/s':>15}")
    for suffix in ("gz", "zst"):
        with tempfile.TemporaryDirectory(dir=where) as place:
            print(measure(Path(place), suffix))


def measure(place: Path, suffix: str) -> str:
    write(live_path(place, 1), SIZE_BYTES)
    os.sync()  # what was written before is not this archive's affair
    longest = Writer(live_path(place, 1))
    archive = LogArchive(place, 1, suffix)
    began, cpu = time.perf_counter(), time.thread_time()
    while archive.archive(SIZE_BYTES, SEGMENT_BYTES):
        pass
    took_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu
    longest.stop()
    size = sum((place / one.name).stat().st_size for one in segments(place))
    began = time.perf_counter()
    read = sum(map(len, log_bytes(place, 1, 0, archive.archived)))
    read_s = time.perf_counter() - began
    assert read == archive.archived
    return (
        f"{suffix:6} {read / took_s / 1e6:8.0f} {cpu_s / (read / 1e9):9.2f} {read / size:6.1f} "
        f"{longest.worst_s * 1e3:17.1f} {read / read_s / 1e6:15.0f}"
    )


def write(path: Path, size: int) -> None:
    with path.open("ab") as out:
        number = 0
        while out.tell() < size:
            out.write(b"".join(map(line, range(number, number + 10_000))))
            number += 10_000


def line(number: int) -> bytes:
    """As an engine under load writes them; the numbers keep it from being too easy."""
    return (
        f"[2026-11-29 10:{number // 60 % 60:02d}:{number % 60:02d} TP{number % 8}] Decode batch. #running-req: "
        f"{number % 97}, #token: {number * 7919 % 99991}, token usage: 0.{number % 100:02d}, "
        f"gen throughput (token/s): {number * 104729 % 5003}.{number % 10}, #queue-req: {number % 3}\n"
    ).encode()


class Writer:
    """A server that goes on writing: how long did it wait at worst?"""

    def __init__(self, path: Path) -> None:
        self.worst_s = 0.0
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        data = b"x" * (WRITE_BYTES - 1) + b"\n"
        while not self._over.wait(0.005):
            began = time.perf_counter()
            os.write(self._file, data)
            self.worst_s = max(self.worst_s, time.perf_counter() - began)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._file)


if __name__ == "__main__":
    main()
