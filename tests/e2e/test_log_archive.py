"""A server's numbered lines, archived by daemons that are killed: each is there once."""

import sys
import threading
from pathlib import Path

import pytest

from supervisor.edge.archive import live_path, log_bytes, segments
from tests.e2e.host import Host, until

COUNT = 400_000
RATE_BYTES_S = 1.5e6

_TALKS = """
import sys, time
count, rate = int(sys.argv[1]), float(sys.argv[2])
began, written, step = time.monotonic(), 0, 2000
for first in range(0, count, step):
    text = "".join(f"{number:012d} a line of a server that talks and talks, all day long\\n"
                   for number in range(first, first + step))
    sys.stdout.write(text)
    sys.stdout.flush()
    written += len(text)
    time.sleep(max(0.0, written / rate - (time.monotonic() - began)))
print("end")
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_line_is_lost_or_doubled_over_restarts_of_the_daemon(host: Host) -> None:
    host.add("loud", [sys.executable, "-c", _TALKS, str(COUNT), str(RATE_BYTES_S)], log={"rotate_size": "1MiB"})
    directory = host.log_dir / "loud"

    for life_s in (6.5, 1.0, 5.5):
        daemon = host.start()
        threading.Event().wait(life_s)  # the moment of its death
        daemon.kill()
    host.start()
    until(lambda: b"end\n" in tail(directory), 60, "the server has said all")
    until(lambda: segments(directory)[-1].end > 21e6, 30, "most of it is archived")

    numbers = [int(line[:12]) for line in b"".join(log_bytes(directory, 1)).splitlines() if line != b"end"]
    assert numbers == list(range(COUNT))
    made = segments(directory)
    assert [one.begin for one in made] == [0, *(one.end for one in made[:-1])]
    assert live_path(directory, 1).stat().st_blocks * 512 < 8e6


def tail(directory: Path) -> bytes:
    with live_path(directory, 1).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 100))
        return file.read()
