"""What `sglsup diagnose` costs on a log of hours of serving, beside grep -c and mtail in the same run."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Better, Measurement, bench, one_cpu_ms

RECORDED = Path(__file__).resolve().parents[1] / "tests/data/sglang/real-0.5.23-cpu/healthy-start-tp2.log"
READY = b"The server is fired up and ready to roll!\n"
SIZE_BYTES = 400_000_000
SERVED = (
    b"[2026-11-29 %(clock)s TP0] Decode batch, #running-req: 12, #token: 20311, token usage: 0.31, cuda graph: True, "
    b"gen throughput (token/s): 913.22, #queue-req: 0\n"
    b'[2026-11-29 %(clock)s] INFO:     10.0.0.7:58886 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    b"[2026-11-29 %(clock)s TP0] Prefill batch, #new-seq: 1, #new-token: 77, #cached-token: 0, token usage: 0.00, "
    b"#running-req: 11, #queue-req: 0\n"
)
ODD = b"[2026-11-29 %(clock)s] Some record that no rule knows, one in a hundred\n"
# The same questions as a metric program would ask them: how often did it say that, and did it end?
MTAIL = """
counter crashes
counter ready
counter batches
/hit an exception|out of memory|[Ww]atchdog timeout|Received sigquit/ {
  crashes++
}
/fired up and ready to roll/ {
  ready++
}
/Decode batch/ {
  batches++
}
"""


@bench("diagnose")
def diagnose() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        size = write_log(log)
        ours = speed(size, [sys.executable, "-m", "supervisor.main", "diagnose", "--json", str(log)])
        theirs = speed(size, grep(log, "Scheduler hit an exception|Load weight"))
        yield Measurement("diagnose a log", "MB/CPU s", ours, "grep -c, 2 words", theirs, Better.HIGHER)
        yield Measurement("diagnose a log", "MB/CPU s", ours, "mtail, 3 patterns", mtail(log, size), Better.HIGHER)


def grep(log: Path, pattern: str) -> list[str]:
    """The command that reads all of a log: with its output thrown away grep stops at the first hit, hence the pipe."""
    return ["sh", "-c", 'grep -cE -- "$1" "$2" | cat', "sh", pattern, str(log)]


def speed(size: int, command: list[str]) -> float:
    return size / 1e6 / (one_cpu_ms(command, os.environ) / 1000)


def mtail(log: Path, size: int) -> float | None:
    """Debian's mtail reads the whole file once; None where it is not installed."""
    if shutil.which("mtail") is None:
        return None
    program = log.with_name("engine.mtail")
    program.write_text(MTAIL)
    command = ["mtail", "--one_shot", "--one_shot_format=json", "--progs", str(program), "--logs", str(log)]
    return speed(size, [*command, "--address=127.0.0.1", "--port=0", f"--log_dir={log.parent}"])


def write_log(path: Path) -> int:
    """A recorded start and then hours of serving."""
    hour = b"".join(minute(n) for n in range(60))
    with path.open("wb") as log:
        start, ready, _ = RECORDED.read_bytes().partition(READY)
        log.write(start + ready)
        while log.tell() < SIZE_BYTES:
            log.write(hour)
        return log.tell()


def minute(number: int) -> bytes:
    lines = []
    for second in range(60):
        clock = b"16:%02d:%02d" % (number, second)
        lines.append(SERVED.replace(b"%(clock)s", clock) * 33 + ODD.replace(b"%(clock)s", clock))
    return b"".join(lines)
