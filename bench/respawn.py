"""How long it takes from a server's death to its next process, without any backoff: our own time alone.

The deaths come within a minute of the starts, so that restarts go by the preflight of these (docs/check.md).
"""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Measurement, bench
from bench.peers import supervisord_folder
from bench.site import peer_configuration, running, wait_for
from bench.sleepers import our_sleepers
from supervisor.edge.journal import Entry
from supervisor.edge.journal.reader import read_all

SERVERS = 6  # one death each: a second death of one server in a row is another matter for its restart policy
LIMIT_S = 30.0


@bench("respawn")
def respawn() -> Iterator[Measurement]:
    folder = supervisord_folder()
    own, decided = (statistics.median(column) * 1000 for column in zip(*kill_ours(), strict=True))
    peer = None
    if folder:
        with tempfile.TemporaryDirectory() as scratch:
            peer = statistics.median(kill_peers(folder, Path(scratch))) * 1000
    yield Measurement("kill -9 to the next process, backoff 0", "ms", own, "supervisord", peer)
    what = "of it from the exit to the order to spawn, tree and devices proven free"
    yield Measurement(what, "ms", decided, "supervisord", peer, budget=20)


def kill_ours() -> Iterator[tuple[float, float]]:
    """Seconds to the next process, and of these, until its start was decided; the rest is the launcher's and exec's."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        commands = {f"s{index}": announcing(scratch / f"s{index}") for index in range(SERVERS)}
        with our_sleepers(commands, restart='{backoff = "0s", backoff_max = "0s"}') as ours:
            took = [seconds_to_next(scratch / name) for name in commands]
            time.sleep(1.0)  # the journal is written in batches
            rows = list(read_all(str(ours.state_dir / "journal.db")))
        yield from zip(took, (decision_s(rows, name) for name in commands), strict=True)


def decision_s(rows: list[Entry], server: str) -> float:
    """From the event of the first exit to the action that spawns the next attempt."""
    exited = next(row for row in rows if row.server == server and b'"type":"Exited"' in row.payload)
    spawn = b'"type":"Spawn"'
    ordered = next(row for row in rows if row.server == server and row.id > exited.id and spawn in row.payload)
    return ordered.mono - exited.mono


def kill_peers(folder: Path, scratch: Path) -> Iterator[float]:
    config = scratch / "supervisord.conf"
    programs = "".join(
        f"[program:s{index}]\ncommand={scratch}/s{index}.sh\nstartsecs=0\nautorestart=true\n"
        for index in range(SERVERS)
    )
    for index in range(SERVERS):
        script = scratch / f"s{index}.sh"
        script.write_text(f"#!/bin/sh\n{announcing(scratch / f's{index}')[2]}\n")
        script.chmod(0o755)
    config.write_text(peer_configuration(str(scratch), 0) + programs)
    with running([str(folder / "supervisord"), "-c", str(config)], scratch / "out") as daemon:
        wait_for(lambda: len(daemon.children()) == SERVERS, daemon, scratch / "out")
        for index in range(SERVERS):
            yield seconds_to_next(scratch / f"s{index}")


def announcing(path: Path) -> list[str]:
    """A process that writes its pid to a file of its own before it sleeps."""
    return ["sh", "-c", f"echo $$ > {path}.new; mv {path}.new {path}; exec sleep 3600"]


def seconds_to_next(path: Path) -> float:
    before = pid_in(path, other_than=0)
    began = time.perf_counter()
    os.kill(before, signal.SIGKILL)
    pid_in(path, other_than=before)
    return time.perf_counter() - began


def pid_in(path: Path, other_than: int) -> int:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        text = path.read_text() if path.exists() else ""
        if text.strip() and int(text) != other_than:
            return int(text)
        time.sleep(0.0005)
    raise TimeoutError(f"cannot measure: {path} names no new process after {LIMIT_S} s")
