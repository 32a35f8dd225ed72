"""Rows: the wall clock jumps by a day; what is decided depends on the monotonic clock alone."""

from __future__ import annotations

import re
import time
from functools import partial

from tests.e2e import api
from tests.e2e.host import until
from tests.faults.deaths import SHORT, come_back, loads
from tests.faults.row import Row
from tests.faults.scene import Scene
from tests.faults.world import DAY_S

JUMPS = (1, -2, 1)  # days: a day ahead, a day back, the right time again


def jumps_while_loading_and_serving(scene: Scene) -> str:
    """Ahead and back, while one server loads and another one serves; then the daemon dies in the wrong time."""
    assert scene.world is not None
    scene.fake("loading", "--tp", "2", sole=True, speed=20, deadlines=SHORT)
    scene.fake("serving", sole=True, serving={"stall": "5s", "stopped": "5s", "stuck": "5s"})
    daemon = scene.start()
    scene.is_running("serving")
    until(partial(loads, scene, "loading"), 60, "it loads")
    day = 0
    for jump in JUMPS[:2]:
        day += jump
        scene.world.jump_clock(day)
        assert shown_days_ahead(scene) == day, "the daemon's clock has jumped"
        assert scene.ctl("status").returncode in (0, 3)
        assert scene.ctl("why", "loading").returncode == 0
        assert api.get(scene.socket, "/v1/info")["uptime_s"] >= 0
    pid = scene.show("loading")["pid"]
    daemon.kill()
    come_back(scene)  # a day behind: the log that it reads again comes from the future
    assert scene.show("loading")["pid"] == pid
    scene.world.jump_clock(day + JUMPS[2])
    scene.is_running("loading", 120)
    for name in ("loading", "serving"):
        shown = scene.show(name)
        assert (shown["restarts"], shown["attempt"]) == (0, 1), shown
        assert scene.starts(name) == 1
    assert 0 < scene.show("serving")["uptime_s"] < 300
    return "a day ahead, a day back and a daemon that came back in between: no stall, no restart, uptime counted right"


def jumps_while_waiting(scene: Scene) -> str:
    """A backoff and a stop are under way when the clock jumps: neither gets longer nor shorter."""
    assert scene.world is not None
    scene.add("backoff", ["/bin/false"], restart={"backoff": "4s", "backoff_max": "4s", "jitter": 0.0})
    scene.bad("deaf", manner="deaf", stop={"grace": "3s"})
    scene.start()
    scene.is_running("deaf")
    scene.is_in("backoff", "backoff")
    waits_s = scene.show("backoff")["backoff_s"]
    scene.ctl("stop", "--no-wait", "deaf")
    for day in (1, -1):
        scene.world.jump_clock(day)
        shown = scene.show("backoff")
        assert shown["lifecycle"]["value"] == "backoff"
        assert 0 < shown["backoff_s"] <= waits_s
    until(lambda: scene.show("backoff")["attempt"] >= 2, 20, "it is tried again")
    scene.is_in("deaf", "stopped")
    stop_s = scene.show("deaf")["stop"]["empty_s"]
    assert 2.9 < stop_s < 15, stop_s
    return f"a backoff of 4 s and a grace of 3 s stayed what they were ({stop_s:.1f} s to empty)"


def shown_days_ahead(scene: Scene) -> int:
    shown = float(re.search(r"^sglsup_snapshot_timestamp_seconds (\S+)$", scene.metrics(), re.M)[1])  # type: ignore[index]
    return round((shown - time.time()) / DAY_S)


ROWS = (
    Row(
        "wall clock jumps a day ahead, then a day back, while one server loads and one serves; the daemon dies meanwhile",
        "no stall, no restart, the log's stamps are believed as far as they can be",
        jumps_while_loading_and_serving,
        preload=True,
    ),
    Row(
        "wall clock jumps during a backoff and a grace period",
        "neither gets longer nor shorter",
        jumps_while_waiting,
        preload=True,
    ),
)
