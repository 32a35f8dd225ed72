"""Rows: `/health` hangs, dribbles, leads in circles or never ends; nobody is killed for it, nobody else waits for it."""

from __future__ import annotations

from tests.e2e.host import until
from tests.faults.row import Row
from tests.faults.scene import Scene

KINDS = ("hang", "dribble", "redirect", "huge", "endless-head")
PROBE = {"timeout": "1s", "interval": "200ms"}
MIB = 2**20
ROOM_BYTES = 24 * MIB


def spoilt_while_serving(scene: Scene) -> str:
    """All serve well first; then each spoils its answers in its own way."""
    for kind in KINDS:
        scene.bad(kind, kind, well=True, readiness=PROBE, detectors={"canary": "observe"})
    scene.fake("good", sole=True, readiness=PROBE)
    daemon = scene.start()
    for name in (*KINDS, "good"):
        scene.is_running(name)
    before = daemon.memory_bytes("VmRSS")
    pids = {name: scene.show(name)["pid"] for name in KINDS}
    for name in KINDS:
        scene.spoil(name)
    for name in KINDS:
        if name != "huge":  # 200 and more body than anybody reads: a success
            until(lambda name=name: not scene.show(name)["healthy"], 20, f"{name} is noticed")
    assert {name: scene.show(name)["pid"] for name in KINDS} == pids, "nobody is killed for an answer"
    assert scene.show("good")["healthy"]
    grown = daemon.memory_bytes() - before
    assert grown < ROOM_BYTES, f"{grown / MIB:.0f} MiB"
    told = {scene.show(name)["verdict"]["value"] for name in KINDS}
    return f"noticed, not killed (verdicts {', '.join(sorted(told))}); {grown / MIB:.1f} MiB more for 100 MB answers"


ROWS = (
    Row(
        "/health of a serving server hangs, dribbles a byte a second, redirects to itself, sends 100 MB, or headers without end",
        "not ready, not killed; other servers and the daemon's memory do not notice",
        spoilt_while_serving,
    ),
)
