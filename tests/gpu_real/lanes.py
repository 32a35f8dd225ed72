"""What keeps servers of one GPU from starting: settings that cannot work, a port and memory that strangers have."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu_real.holder import __file__ as holder_file
from tests.gpu_real.night import Nights, moment

HELD_BYTES = 120 << 30
HOPELESS = {  # server → model, what is wrong with it
    "nowhere": "no such folder",
    "truncated": "its fifth shard is cut to a third",
    "noweights": "a configuration and a tokenizer, no weights",
    "target-long": "its draft's context is shorter than its own",
    "greedy": "--mem-fraction-static 0.999",
}
PLACED, DIRTY = "placed", "dirty"
SETTLED_S = 3.0
TAKEN_S = 4.0  # after the spawn: nobody has looked at the port or the memory yet

_leasing = threading.Lock()  # one GPU each: nobody may take the other lane's while its server is down for a moment


def hopeless(*names: str) -> list[tuple[float, Any]]:
    """A story each."""
    return [(45.0, _named(name, lambda nights, name=name: settings_error(nights, name))) for name in names]


def _named(name: str, story: Any) -> Any:
    story.__name__ = name
    return story


def settings_error(nights: Nights, name: str) -> None:
    """First as it is asked for, then in spite of what was found before the start."""
    night = f"{'9' if name == 'greedy' else '7'} {name}"
    since = launched(nights, name)
    first = nights.first(name, "lifecycle", ("fatal", "quarantined", "backoff"), since, 120)
    if not nights.host.show(name)["attempt"]:
        nights.tell(f"{night}: asked", what=HOPELESS[name], followed_by=f"{first['after']}: {first['reason']}")
        since = launched(nights, name, "--force")
        first = nights.first(name, "lifecycle", ("fatal", "quarantined", "backoff"), since, 120)
    time.sleep(SETTLED_S)
    show = nights.host.show(name)
    nights.tell(
        night,
        what=HOPELESS[name],
        followed_by=f"{first['after']}: {first['reason']}",
        attempts=show["attempt"],
        state=show["state"],
        findings=show["findings"],
        **nights.word(name, show["attempt"]),
        events=nights.events(name, since, time.time()),
    )


def launched(nights: Nights, name: str, *options: str) -> int:
    """Asked for, and beyond the look for devices."""
    with _leasing:
        since = nights.start(name, *options)
        nights.first(name, "lifecycle", ("starting", "fatal", "quarantined"), since, 60)
    return since


def port_taken(nights: Nights) -> None:
    """By somebody who never answers: before the start, and again while the engine loads."""
    port = nights.host.show(PLACED)["port"]
    with listener(port):
        since = nights.start(PLACED)
        reason = nights.host.wait_reason(PLACED, f"port {port}")
    left = time.time()
    nights.tell("6 a port taken before", what="a stranger listens before the start", waits_because=reason)
    spawned = nights.first(PLACED, "lifecycle", ("starting",), since, 30)
    nights.tell("6 it is free", starts_after_s=round(moment(spawned) - left, 2))
    time.sleep(TAKEN_S)
    with listener(port):
        taken, mark = time.time(), nights.now()
        nights.first(PLACED, "lifecycle", ("reclaiming",), mark, 150)
        nights.host.wait_reason(PLACED, f"port {port}", 30)
        show = nights.host.show(PLACED)
    nights.tell("6 waits again", reason=show["lifecycle"]["reason"])
    what = f"a stranger listens {TAKEN_S:.0f} s after the spawn, and leaves when the start waits for the port"
    nights.account("6 a port taken meanwhile", PLACED, what, mark, show["attempt"], taken)
    nights.host.ctl("stop", PLACED)


@contextlib.contextmanager
def listener(port: int) -> Iterator[None]:
    """A process of somebody else that accepts and never answers."""
    program = f"import socket; s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True); input()"
    stranger = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with _until_killed(stranger):
        yield


@contextlib.contextmanager
def memory_held() -> Iterator[int]:
    """A process of somebody else that holds most of GPU 0; its pid."""
    words = [sys.executable, str(Path(holder_file).resolve()), "0", str(HELD_BYTES)]
    stranger = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ))
    with _until_killed(stranger):
        yield stranger.pid


@contextlib.contextmanager
def _until_killed(stranger: subprocess.Popen[bytes]) -> Iterator[None]:
    assert stranger.stdout is not None
    assert stranger.stdin is not None
    try:
        assert stranger.stdout.readline() == b"up\n", "the stranger has what he wants"
        yield
    finally:
        stranger.kill()
        stranger.wait(30)
        stranger.stdin.close()
        stranger.stdout.close()


def memory_taken(nights: Nights) -> None:
    """Most of GPU 0 is a stranger's: before the start, then while the engine imports."""
    with contextlib.ExitStack() as his:
        with _leasing:
            pid = his.enter_context(memory_held())
            since = nights.start(DIRTY)
            reason = nights.host.wait_reason(DIRTY, f"pid {pid}", 30)
        table = nights.host.ctl("gpus").stdout.splitlines()
        time.sleep(SETTLED_S)
        waited = nights.events(DIRTY, since, time.time())
    left = time.time()
    spawned = nights.first(DIRTY, "lifecycle", ("starting",), since, 60)
    ready = nights.healthy(DIRTY, since)
    nights.tell(
        "8 memory taken before",
        what=f"a stranger (pid {pid}) holds 120 GiB of GPU 0, and ends",
        waits_because=reason,
        gpus=table,
        events=waited,
        starts_after_s=round(moment(spawned) - left, 2),
        healthy=ready["reason"],
        capacity=nights.host.show(DIRTY)["capacity_tokens"],
    )
    with _leasing:
        nights.host.ctl("stop", DIRTY)
        since = nights.start(DIRTY)
        nights.first(DIRTY, "lifecycle", ("starting",), since, 60)
    taken_meanwhile(nights, since)


def taken_meanwhile(nights: Nights, since: int) -> None:
    time.sleep(TAKEN_S)
    with memory_held() as pid:
        ready = nights.healthy(DIRTY, since)
        time.sleep(SETTLED_S)
        show = nights.host.show(DIRTY)
        why = nights.host.ctl("why", DIRTY).stdout.splitlines()
        status = nights.host.ctl("status", DIRTY).stdout.splitlines()
        stopped = nights.host.ctl("stop", DIRTY).stdout.strip()
        gone = nights.host.show(DIRTY)["stop"]
    nights.tell(
        "8 memory taken meanwhile",
        what=f"a stranger (pid {pid}) takes 120 GiB of GPU 0 {TAKEN_S:.0f} s after the spawn",
        healthy=ready["reason"],
        verdict=show["verdict"],
        capacity=[show["capacity_tokens"], show["capacity_expected"]],
        would_have_killed=show["would_have_killed"],
        status=status,
        why=why,
        stopped_beside_him=[stopped, gone],
        events=nights.events(DIRTY, since, time.time()),
    )


LEFT: list[tuple[float, Any]] = [(160.0, memory_taken), *hopeless("noweights", "target-long")]
RIGHT: list[tuple[float, Any]] = [*hopeless("greedy", "nowhere", "truncated"), (120.0, port_taken)]
