"""What one status call costs: watch loops and health checks make thousands of them.

Both daemons have the same number of sleeping servers and are asked in turn. The round trip is what the user waits for:
the whole command. The answer is the daemon's part of it: one request on a fresh connection until its last byte.
"""

import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from bench.harness import Measurement, bench, compile_ours, cpu_ms
from bench.peers import supervisord_folder
from bench.site import supervisord
from bench.sleepers import our_sleepers

COUNTS = (1, 8, 64)
RUNS = 9
CALL = "<?xml version='1.0'?><methodCall><methodName>supervisor.getAllProcessInfo</methodName><params/></methodCall>"
ASKED = b"GET /v1/status HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n"
PEER_ASKED = (
    "POST /RPC2 HTTP/1.1\r\nHost: d\r\nConnection: close\r\n"
    f"Content-Type: text/xml\r\nContent-Length: {len(CALL)}\r\n\r\n"
    f"{CALL}"
).encode()


@bench("cli")
def cli() -> Iterator[Measurement]:
    compile_ours()
    folder = supervisord_folder()
    for count in COUNTS:
        with our_sleepers({f"s{index}": ["sleep", "3600"] for index in range(count)}) as ours:
            own = [*ours.client, "status"]
            if folder is None:
                yield from _compared(count, own, ours.client[-1], None, "")
                continue
            with supervisord(folder, count) as (_, client):
                peer_socket = f"{client[-1].rpartition('/')[0]}/control.sock"
                yield from _compared(count, own, ours.client[-1], [*client, "status"], peer_socket)


def _compared(
    count: int, own: Sequence[str], own_socket: str, peer: Sequence[str] | None, peer_socket: str
) -> Iterator[Measurement]:
    what = f"{count} server{'s' * (count != 1)}"
    for text, unit, measure, budget in (
        ("sglctl status, {}", "ms CPU", cpu_ms, 100.0),
        ("round trip of sglctl status, {}", "ms", wall_ms, None),
    ):
        theirs = measure(peer, RUNS) if peer is not None else None
        yield Measurement(text.format(what), unit, measure(own, RUNS), "supervisorctl status", theirs, budget=budget)
    ours, theirs = in_turn(
        lambda: answer_ms(own_socket, ASKED), (lambda: answer_ms(peer_socket, PEER_ASKED)) if peer_socket else None
    )
    yield Measurement(f"answer to a status request, {what}", "ms", ours, "supervisord's getAllProcessInfo", theirs)


def in_turn(own: Callable[[], float], peer: Callable[[], float] | None) -> tuple[float, float | None]:
    """Medians of several runs each, one after the other, so that a busy moment hits both."""
    ours, theirs = [], []
    for _ in range(5 * RUNS):
        ours.append(own())
        if peer is not None:
            theirs.append(peer())
    return statistics.median(ours), statistics.median(theirs) if theirs else None


def wall_ms(command: Sequence[str], runs: int) -> float:
    """Median wall time of the command."""
    return statistics.median(_one_wall_ms(command) for _ in range(runs))


def _one_wall_ms(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return 1000 * (time.perf_counter() - begun)


def answer_ms(path: str, request: bytes) -> float:
    """From the connection to the last byte of the answer."""
    begun = time.perf_counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(request)
        size = 0
        while data := connection.recv(65536):
            size += len(data)
    if not size:
        raise RuntimeError(f"no answer on {path}")
    return 1000 * (time.perf_counter() - begun)
