"""Rows: a server's log file is deleted, truncated, replaced, or on a disk that is full or hangs."""

from __future__ import annotations

import os
import re
import signal
import threading
from functools import partial
from pathlib import Path

from tests.e2e.host import until
from tests.faults.deaths import loads
from tests.faults.row import THOROUGH, Row, freezes, mounts
from tests.faults.scene import Scene
from tests.faults.volume import Volume

SLOW = 12  # a start of some twenty seconds: it is under way when its log goes
TRIES = 30 if THOROUGH else 15  # of a start
THREADS_MORE = 8  # the call that hangs, and those of other work that had not begun before
FORGED = (
    b"[2026-11-29 10:00:00] The server is fired up and ready to roll!\n"
    b"[2026-11-29 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    b"torch.OutOfMemoryError: CUDA out of memory.\n"
)


def taken_away(scene: Scene) -> str:
    """While one server loads and one serves, each in another way."""
    ways = {"deleted": delete, "truncated": truncate, "replaced": replace, "directory": make_directory}
    for way in ways:
        scene.fake(f"loading-{way}", sole=True, speed=SLOW)
        scene.bad(f"serving-{way}")
    scene.start()
    for way in ways:
        scene.is_running(f"serving-{way}")
        until(partial(loads, scene, f"loading-{way}"), 60, "it loads")
    for way, spoil in ways.items():
        for name in (f"loading-{way}", f"serving-{way}"):
            spoil(Path(scene.show(name)["log_path"]))
    for way in ways:
        for name in (f"loading-{way}", f"serving-{way}"):
            shown = scene.is_running(name, 90)
            assert (shown["restarts"], shown["attempt"]) == (0, 1), (name, shown["lifecycle"])
            told = scene.ctl("tail", name)
            assert told.returncode == 0 or told.stderr.startswith("error: cannot read"), told
            assert scene.ctl("why", name).returncode == 0
    for name in scene.servers:
        assert scene.ctl("stop", name).returncode == 0
    return (
        f"{', '.join(ways)}: {len(ways)} starts became ready and {len(ways)} servers served on; every one was stopped"
    )


def delete(log: Path) -> None:
    log.unlink()


def truncate(log: Path) -> None:
    os.truncate(log, 0)


def replace(log: Path) -> None:
    """By a file that says it is ready, and dead: nobody writes there but the forger."""
    forged = log.with_suffix(".forged")
    forged.write_bytes(FORGED)
    forged.replace(log)


def make_directory(log: Path) -> None:
    log.unlink()
    log.mkdir()


def on_a_full_disk(scene: Scene) -> str:
    """The engine cannot write a line any more; one that is to start finds no room for its log."""
    scene.fake("loading", sole=True, speed=SLOW)
    scene.bad("serving")
    scene.bad("waiting", autostart=False)
    with Volume(scene.log_dir, "8m", scene.environment) as disk:
        scene.prefix = disk.prefix
        scene.start()
        scene.is_running("serving")
        until(partial(loads, scene, "loading"), 60, "it loads")
        disk.fill()
        scene.ctl("start", "waiting")
        reason = scene.wait_reason("waiting", "is full")
        threading.Event().wait(1.0)  # lines are lost meanwhile
        shown = scene.show("loading")
        assert shown["attempt"] == 1, shown["lifecycle"]
        disk.empty()
        scene.is_running("waiting", 60)
        scene.is_running("loading", 90)
        assert scene.show("loading")["attempt"] == 1
        assert scene.show("serving")["restarts"] == 0
        scene.end_inside(None)
    return f"a start lost lines and became ready, another one waited: {reason.replace(str(scene.root), '…')}"


def on_a_disk_that_hangs(scene: Scene) -> str:
    """A frozen file system. Every try of a start asks it, everybody who reads a log may, and no call comes back."""
    again = {"backoff": "100ms", "backoff_max": "200ms", "jitter": 0.0, "budget": 1000, "same_cause": 1000}
    scene.bad("serving")
    scene.bad("dies", restart=again)
    with Volume.of_image(scene.log_dir, scene.root / "disk.img", scene.environment) as disk:
        scene.prefix = disk.prefix
        scene.start()
        pid, victim = scene.is_running("serving")["pid"], scene.is_running("dies")["pid"]
        before = scene.threads()
        disk.freeze()
        os.kill(victim, signal.SIGKILL)
        until(partial(tried_in_vain, scene, TRIES), 120, "it is tried again and again")
        at_most = scene.threads()
        assert at_most <= before + THREADS_MORE, f"{at_most} threads after {TRIES} tries, {before} before"
        assert hanging_told(scene) > 0
        assert "has not answered for" in scene.ctl("status").stderr
        assert scene.show("serving")["pid"] == pid
        reason = str(scene.show("dies")["lifecycle"]["reason"])
        disk.thaw()
        scene.is_running("dies", 60)
        until(lambda: hanging_told(scene) == 0, 60, "all calls have come back")
        scene.end_inside(None)
    told = reason.replace(str(scene.root), "…")
    return f"{TRIES} tries ({told}): {before} threads before, {at_most} then; served when the disk was back"


def tried_in_vain(scene: Scene, times: int) -> bool:
    return int(scene.show("dies")["attempt"]) > times and "has not answered" in scene.said()


def hanging_told(scene: Scene) -> int:
    found = re.search(r"^sglsup_calls_hanging (\S+)$", scene.metrics(), re.M)
    assert found is not None
    return round(float(found[1]))


ROWS = (
    Row(
        "log file deleted, truncated, replaced by a forged one, replaced by a directory; while loading and while serving",
        "starts become ready by their probes, nobody is restarted, forged lines decide nothing",
        taken_away,
    ),
    Row(
        "disk of the logs full",
        "nobody is killed for lines that cannot be written, a start waits for room and says so",
        on_a_full_disk,
        needs=mounts,
    ),
    Row(
        "disk of the logs hangs (frozen) while a start is tried again and again",
        "one call waits, not one a try: the daemon's threads stay few, who serves serves on; all goes on afterwards",
        on_a_disk_that_hangs,
        needs=freezes,
    ),
)
