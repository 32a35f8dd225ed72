"""Rows: the daemon is killed, stopped or blind for a while; the servers do not care."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial

from tests.e2e.gpus import GIB, MemoryHolder
from tests.e2e.host import until
from tests.faults.row import THOROUGH, Row
from tests.faults.scene import Scene

PHASES = (
    "launch", "dist-init", "weights", "memory-pool", "verify-graph", "draft-weights", "draft-pool", "draft-graph",
    "draft-extend-graph", "warmup",
)  # fmt: skip
SPECULATIVE = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "/models/draft")
PATIENT = {phase: {"stall": "10m", "limit": "1h"} for phase in (*PHASES, "target-graph")}
PAUSE_S = 60.0 if THOROUGH else 10.0
STALL_S = round(PAUSE_S / 3)
SHORT = {phase: {"stall": f"{STALL_S}s", "limit": "1h"} for phase in (*PHASES, "tokenizer", "target-graph")}
KILLS = 8 if THOROUGH else 4


def killed_in_every_phase(scene: Scene) -> str:
    """One server waits in each phase, so that one death meets them all."""
    for phase in PHASES:
        scene.fake(phase, *SPECULATIVE, "--scenario", f"stall:phase={phase}", sole=True, deadlines=PATIENT)
    daemon = scene.start()
    for phase in PHASES:
        until(partial(in_phase, scene, phase), 60, f"somebody is in {phase}")
    before = {phase: scene.show(phase) for phase in PHASES}
    daemon.kill()
    blind_s = come_back(scene)
    for phase in PHASES:
        after = scene.show(phase)
        assert (after["attempt"], after["pid"]) == (before[phase]["attempt"], before[phase]["pid"]), phase
        until(partial(in_phase, scene, phase), 20, f"{phase} is known again")
        assert scene.starts(phase) == 1
    return f"{len(PHASES)} starts adopted in their phases, none begun again; {blind_s:.1f} s without a daemon"


def killed_in_every_state(scene: Scene) -> str:
    """One server rests in each state of the lifecycle, so that one death meets them all."""
    scene.fake("stopped", autostart=False)
    scene.fake("starting", "--scenario", "stall:phase=weights", sole=True, deadlines=PATIENT)
    scene.bad("running")
    scene.bad("draining", manner="deaf", stop={"grace": "25s"})
    scene.fake("stopping", "--scenario", "stall:phase=weights", "--scenario", "ignore-term", sole=True,
               deadlines=PATIENT, stop={"startup_grace": "25s"})  # fmt: skip
    scene.add("backoff", ["/bin/false"], restart={"backoff": "10m", "backoff_max": "10m"})
    scene.add("fatal", ["/no/such/program"])
    scene.engine("reclaiming", gpus=[0])
    scene.engine("quarantined", gpus=[1], reclaim_limit="1s")
    scene.nvml.gpus[1].used = 9 * GIB
    scene.nvml.write()
    with MemoryHolder(scene, 0, 20 * GIB) as stranger:
        first = scene.start()
        scene.is_running("draining")
        until(partial(loads, scene, "stopping"), 30, "it loads")
        for name in ("draining", "stopping"):
            assert scene.ctl("stop", "--no-wait", name).returncode == 0
        names = tuple(scene.servers)
        for name in names:
            scene.is_in(name, name)
        before = {name: scene.show(name) for name in names}
        first.kill()
        blind_s = come_back(scene)
        for name in names:
            scene.is_in(name, name)
            after = scene.show(name)
            assert (after["attempt"], after["pid"], after["goal"]) == tuple(
                before[name][key] for key in ("attempt", "pid", "goal")
            ), name
        stranger.end()
        scene.is_in("reclaiming", "running")
    for name in ("draining", "stopping"):
        scene.is_in(name, "stopped")
        assert not scene.processes(name)
    scene.nvml.gpus[1].used = 0  # or the end would wait for it
    scene.nvml.write()
    return f"{len(names)} states taken up again, stops went on to their end; {blind_s:.1f} s without a daemon"


def killed_again_and_again(scene: Scene) -> str:
    """A little later each time, so that the moment wanders through note, spawn, adoption and stop."""
    scene.fake("kimi", "--tp", "2", sole=True)
    scene.bad("quick")
    for step in range(KILLS):
        daemon = scene.launch()
        daemon.wait_until_said("ready")
        threading.Event().wait(0.4 * step / KILLS)  # the moment of the kill itself, not a wait for anything
        daemon.kill()
    scene.start()
    scene.is_running("kimi", 60)
    scene.is_running("quick")
    return f"{KILLS} kills, {scene.starts('kimi')} + {scene.starts('quick')} starts of two servers, never two at once"


def stopped_for_long(scene: Scene) -> str:
    """While a start goes on and a server serves; both stall deadlines are shorter than the pause."""
    scene.fake("loading", "--tp", "2", sole=True, speed=240 / (PAUSE_S * 1.6), deadlines=SHORT)
    scene.fake("serving", sole=True, serving={"stall": "5s", "stopped": "5s", "stuck": "5s"})
    daemon = scene.start()
    scene.is_running("serving")
    until(partial(loads, scene, "loading"), 120, "it loads")
    with scene.unobserved():
        daemon.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(PAUSE_S)  # the time that passes is what is tried
        daemon.process.send_signal(signal.SIGCONT)
        begun = time.monotonic()
        scene.show("serving")
        answered_s = time.monotonic() - begun
    scene.is_running("loading", 120)
    assert scene.lifecycle("loading") == ["reclaiming", "starting", "running"], scene.events("loading", "lifecycle")
    assert scene.lifecycle("serving") == ["reclaiming", "starting", "running"]
    assert not [event for event in scene.events("serving", "verdict") if event["after"] in ("stalled", "dead")]
    return f"{PAUSE_S:.0f} s stopped, stall deadlines of {STALL_S} and 5 s: nobody called stalled; answered {answered_s * 1000:.0f} ms after"


def come_back(scene: Scene) -> float:
    begun = time.monotonic()
    scene.start()
    return time.monotonic() - begun


def in_phase(scene: Scene, phase: str) -> bool:
    return bool((scene.show(phase)["start"] or {}).get("phase") == phase)


def loads(scene: Scene, name: str) -> bool:
    return bool((scene.show(name)["start"] or {}).get("phase") == "weights")


ROWS = (
    Row(
        "daemon killed while servers are in each phase of a start",
        "every start goes on under the next daemon, in its phase, as the same attempt",
        killed_in_every_phase,
    ),
    Row(
        "daemon killed while servers are in each state of the lifecycle",
        "every server is in its state again; what was being stopped is stopped, what rested rests",
        killed_in_every_state,
    ),
    Row(
        "daemon killed again and again, a little later each time",
        "never two copies, and in the end everybody serves",
        killed_again_and_again,
    ),
    Row(
        "daemon stopped (SIGSTOP) for longer than any stall deadline",
        "nobody is called stalled afterwards, no restart",
        stopped_for_long,
    ),
)
