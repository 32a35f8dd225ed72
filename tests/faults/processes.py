"""Rows: servers whose processes behave badly, and a kernel that makes no more of them."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.e2e.host import BIN, until
from tests.faults.bad_server import BOMB_AT_ONCE
from tests.faults.row import Row
from tests.faults.scene import Scene

STOP = {"grace": "1s", "startup_grace": "1s"}
IMPATIENT = {"stopped": "2s", "stuck": "3s", "stall": "5s"}


def bomb(scene: Scene) -> str:
    scene.bad("bomb", manner="bomb", stop=STOP)
    scene.bad("good")
    scene.start()
    scene.is_running("bomb", 60)
    scene.is_running("good", 60)
    until(lambda: len(scene.processes("bomb")) > BOMB_AT_ONCE // 4, 30, "it has grown")
    begun = time.monotonic()
    assert scene.ctl("stop", "bomb").returncode == 0
    took_s = time.monotonic() - begun
    assert not scene.processes("bomb")
    assert scene.show("good")["restarts"] == 0
    return f"{BOMB_AT_ONCE} processes at once, each living 0.15 s: stopped and proven empty in {took_s:.1f} s"


def manners(scene: Scene) -> str:
    """Deaf, surrounded by zombies, without a first thread, with a new title every 10 ms; the daemon dies in between."""
    kinds = ("deaf", "zombies", "headless", "titles")
    for kind in kinds:
        scene.bad(kind, manner=kind, stop=STOP)
    daemon = scene.start()
    for kind in kinds:
        scene.is_running(kind)
    pids = {kind: scene.show(kind)["pid"] for kind in kinds}
    os.kill(pids["headless"], signal.SIGUSR1)
    until(lambda: state_of(pids["headless"]) == "Z", 10, "its first thread has ended")
    daemon.kill()
    scene.start()
    for kind in kinds:
        assert scene.is_running(kind)["pid"] == pids[kind], f"{kind} is adopted"
    slowest = 0.0
    for kind in kinds:
        begun = time.monotonic()
        assert scene.ctl("stop", kind).returncode == 0, kind
        slowest = max(slowest, time.monotonic() - begun)
        assert not scene.processes(kind), kind
        assert scene.starts(kind) == 1, kind
    return f"{', '.join(kinds)}: adopted by the next daemon, each stopped within {slowest:.1f} s with a grace of 1 s"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stopped_server(scene: Scene) -> str:
    """The leader for a while, which is nobody's business; a rank for good, which ends in evidence and another start."""
    scene.fake("leader", sole=True, serving=IMPATIENT)
    scene.fake("rank", "--tp", "2", sole=True, serving=IMPATIENT, stop=STOP)
    scene.start()
    leader = scene.is_running("leader")["pid"]
    scene.is_running("rank")
    rank = next(pid for pid, command in scene.processes("rank").items() if "scheduler_TP1" in command)
    for pid in (leader, rank):
        os.kill(pid, signal.SIGSTOP)
    until(lambda: scene.show("rank")["attempt"] == 2, 60, "it is started again")
    os.kill(leader, signal.SIGCONT)
    scene.is_running("rank", 60)
    assert scene.is_running("leader")["pid"] == leader
    reason = next(event["reason"] for event in scene.events("rank", "lifecycle") if event["after"] == "stopping")
    return f"the leader's pause: let be; the rank's: {reason}, started again"


def no_processes(scene: Scene) -> str:
    """EAGAIN, then ENOMEM, from the kernel at the spawn itself."""
    assert scene.world is not None
    scene.bad("stays")
    scene.bad("dies", restart={"backoff": "50ms", "backoff_max": "200ms", "jitter": 0.0, "budget": 3, "same_cause": 3})
    scene.start()
    stays, victim = scene.is_running("stays")["pid"], scene.is_running("dies")["pid"]
    reasons = []
    for number in (errno.EAGAIN, errno.ENOMEM):
        scene.world.refuse_processes(number)
        os.kill(victim, signal.SIGKILL)
        told = os.strerror(number)
        until(lambda told=told: told in scene.show("dies")["lifecycle"]["reason"], 20, "it says why")
        tries = scene.show("dies")["attempt"]
        until(lambda tries=tries: scene.show("dies")["attempt"] > tries + 4, 30, "it is tried beyond the budget")
        reasons.append(told)
        scene.world.allow_processes()
        victim = scene.is_running("dies")["pid"]
    assert scene.show("stays")["pid"] == stays
    assert scene.starts("dies") == 3
    return f"{', '.join(reasons)}: tried beyond the budget of 3, served as soon as there were processes"


def no_descriptors(scene: Scene) -> str:
    """The daemon has no descriptor left while a server must be started again and clients ask."""
    scene.bad("stays")
    scene.bad("dies", restart={"backoff": "50ms", "backoff_max": "200ms", "jitter": 0.0, "budget": 3, "same_cause": 3})
    daemon = scene.start()
    stays, victim = scene.is_running("stays")["pid"], scene.is_running("dies")["pid"]
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    open_now = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    with scene.unobserved():
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (open_now - 2, limits[1]))
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(scene.said().splitlines()) > 0 and not alive(victim), 20, "the server has ended")
        lines = scene.said_lines()
        until(lambda: scene.said_lines() > lines, 30, "the daemon has something to say")
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        begun = time.monotonic()
        scene.is_running("dies", 60)
        back_s = time.monotonic() - begun
    assert scene.show("stays")["pid"] == stays
    return f"no descriptor left: nobody else ended; {back_s:.1f} s after there were some again the server served"


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and bool(Path(f"/proc/{pid}/cmdline").read_bytes())


def cgroup_gone(scene: Scene) -> str:
    """Its processes are moved away and the group is removed: the sweep must find them without it."""
    scene.fake("kimi", "--tp", "2", sole=True, stop=STOP)
    daemon = scene.start()
    scene.is_running("kimi")
    root = scene.cgroup()
    assert root is not None
    group = next(path.parent for path in root.rglob("cgroup.procs") if path.read_text())
    members = (group / "cgroup.procs").read_text().split()
    for pid in members:
        (root.parent / "cgroup.procs").write_text(pid)
    group.rmdir()
    assert scene.is_running("kimi")["healthy"]
    daemon.kill()
    scene.start()
    assert scene.is_running("kimi")["attempt"] == 1, "adopted without its group"
    assert scene.ctl("stop", "kimi").returncode == 0
    assert not scene.processes("kimi")
    assert scene.ctl("start", "kimi", "--wait", "--timeout", "30s").returncode == 0
    assert scene.ctl("stop", "kimi").returncode == 0
    return f"{len(members)} processes found without their group, adopted and ended; the next start made a new one"


def hung_py_spy(scene: Scene) -> str:
    """The evidence of a stalled start asks for stacks, and py-spy never answers."""
    hang_py_spy(scene)
    stall = {"weights": {"stall": "1s"}}
    once = scene.root / "once"
    scene.fake("kimi", "--tp", "2", "--scenario", f"stall:phase=weights,once={once}", sole=True, deadlines=stall)
    scene.start()
    begun = time.monotonic()
    until(lambda: scene.show("kimi")["attempt"] == 2, 60, "it is started again")
    took_s = time.monotonic() - begun
    scene.is_running("kimi", 60)
    asked = (scene.root / "asked").read_text().split()
    assert asked, "py-spy was asked"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in asked), 10, "no py-spy is left")
    return (
        f"{len(asked)} that never answered: given up, none left; the second start came {took_s:.1f} s after the first"
    )


def hang_py_spy(scene: Scene) -> None:
    """Have the daemon run in an environment whose py-spy never answers; who was asked is noted in `asked`."""
    environment = scene.root / "environment"
    (environment / "bin").mkdir(parents=True)
    environment.joinpath("lib").symlink_to(BIN.parent / "lib")
    shutil.copy(BIN.parent / "pyvenv.cfg", environment)
    python = environment / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    program = python.with_name("py-spy")
    program.write_text(f"#!/bin/sh\necho $$ >> {scene.root}/asked\nexec sleep 600\n")
    program.chmod(0o755)
    scene.prefix = [str(python)]


def killed_over_evidence(scene: Scene) -> str:
    """The daemon dies while it waits for the stacks of a stalled start: its bundle is half written."""
    hang_py_spy(scene)
    stall, once = {"weights": {"stall": "1s"}}, scene.root / "once"
    scene.fake("kimi", "--scenario", f"stall:phase=weights,once={once}", sole=True, deadlines=stall)
    daemon, asked = scene.start(), scene.root / "asked"
    until(lambda: asked.exists() and asked.read_text().endswith("\n"), 60, "the stacks are asked for")
    daemon.kill()
    for pid in asked.read_text().split():
        os.kill(int(pid), signal.SIGKILL)  # nobody else does: its parent is dead
    scene.start()
    (bundle,) = json.loads(scene.ctl("bundle", "kimi", "--list", "--json").stdout)["bundles"]
    assert not bundle["complete"]
    assert "processes.txt" in bundle["files"]
    assert bundle["missing"][-1].endswith("its daemon ended while it was being written")
    assert bundle["reason"], "its daemon has said what it is about"
    counted = 'sglsup_server_evidence_kept_total{server="kimi",result="cut"} 1\n'
    until(lambda: counted in scene.metrics(), 20, "it is counted")
    scene.is_running("kimi", 60)
    assert bundle["path"] in scene.ctl("why", "kimi", "--attempt", "1").stdout
    return f"{len(bundle['files'])} files of it were whole: listed as incomplete, counted, named by why"


def no_memory(scene: Scene) -> str:
    """The daemon may map no more memory while clients ask and a server must be started again."""
    scene.bad("stays")
    scene.bad("dies")
    daemon = scene.start()
    stays, victim = scene.is_running("stays")["pid"], scene.is_running("dies")["pid"]
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
    scene.bugs_expected = True  # an allocation may fail anywhere
    with scene.unobserved():
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (daemon.memory_bytes("VmSize"), limits[1]))
        os.kill(victim, signal.SIGKILL)
        for _ in range(20):
            scene.ctl("status")
        alive_still = daemon.process.poll() is None
        if alive_still:
            resource.prlimit(daemon.pid, resource.RLIMIT_AS, limits)
        else:
            scene.start()
    scene.is_running("dies", 60)
    assert scene.show("stays")["pid"] == stays
    how = "the daemon lived" if alive_still else "the daemon died and the next one adopted"
    return f"{how}; nobody else ended, the server that did serves again; {len(scene.bugs())} errors told"


def no_watches(scene: Scene) -> str:
    """The user's inotify instances are used up, as on many a machine full of containers."""
    assert scene.world is not None
    scene.world.refuse_watches()
    scene.fake("kimi", "--tp", "2", sole=True)
    scene.start()
    begun = time.monotonic()
    scene.is_running("kimi", 60)
    took_s = time.monotonic() - begun
    assert (scene.show("kimi")["start"] or {}).get("timeline"), "its log is read"
    return f"the log is looked at instead of watched: ready after {took_s:.1f} s with its phases known"


ROWS = (
    Row("ENOMEM: no more memory for the daemon", "servers serve, all goes on afterwards", no_memory),
    Row("no inotify instance left", "logs are read all the same", no_watches, preload=True),
    Row("fork bomb (bounded), without cgroups", "stopped as a whole, others serve on", bomb),
    Row("fork bomb (bounded), in a cgroup", "stopped as a whole, others serve on", bomb, cgroups=True),
    Row(
        "servers that ignore TERM, leave zombies, have no first thread, change their title; daemon killed meanwhile",
        "adopted, none taken for another, all stopped",
        manners,
    ),
    Row(
        "leader stopped by SIGSTOP for a while; rank stopped for good",
        "the pause harms nobody; the rank ends in evidence, kill and restart",
        stopped_server,
    ),
    Row("EAGAIN and ENOMEM at the spawn", "others serve on, tried again until it works", no_processes, preload=True),
    Row("EMFILE: no descriptor left in the daemon", "nobody is killed, all goes on afterwards", no_descriptors),
    Row(
        "cgroup removed under its server, daemon killed meanwhile",
        "found, adopted and ended all the same",
        cgroup_gone,
        cgroups=True,
    ),
    Row(
        "daemon killed while it writes a bundle of evidence",
        "the next one finishes it as far as it was written, and it looks whole to nobody",
        killed_over_evidence,
    ),
    Row("py-spy hangs", "the restart waits no longer than the evidence's limit, nothing is left", hung_py_spy),
)
