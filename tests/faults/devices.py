"""Rows: the GPU driver hangs, loses a device, talks nonsense; its reader dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.gpus import GIB
from tests.e2e.host import until
from tests.faults.row import THOROUGH, Row
from tests.faults.scene import Scene
from tests.nvml.fake import GPU_IS_LOST

LOOKS = (
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature",
)  # fmt: skip


TIMES = 3 if THOROUGH else 2


def hang(scene: Scene) -> str:
    """No call returns any more: a server serves, one is to start, one is to stop."""
    scene.engine("serving", gpus=[0])
    scene.engine("stopping", gpus=[1], reclaim_limit="3s")
    scene.engine("starting", gpus=[2], autostart=False)
    scene.start()
    for name in ("serving", "stopping"):
        scene.is_running(name)
    pid = scene.show("serving")["pid"]
    for function in LOOKS:
        scene.nvml.hang(function)
    scene.wait_sight("blind", 60)
    assert scene.ctl("stop", "--no-wait", "stopping").returncode == 0
    scene.ctl("start", "starting")
    until(lambda: not scene.processes("stopping"), 30, "a stop needs no driver")
    held = scene.show("starting")["lifecycle"]
    scene.nvml.mend()
    scene.wait_sight("seeing", 60)
    scene.is_in("stopping", "stopped", 60)
    scene.is_running("starting", 60)
    assert scene.show("serving")["pid"] == pid
    assert (scene.show("serving")["restarts"], scene.gpu(0)["server"]) == (0, "serving")
    return f"said blind, killed nobody; a start while blind was {held['value']} ({held['reason']}); seeing again after the mend"


def lost(scene: Scene) -> str:
    scene.engine("there", gpus=[0])
    scene.engine("lost", gpus=[1])
    scene.start()
    pids = {name: scene.is_running(name)["pid"] for name in ("there", "lost")}
    for function in LOOKS:
        scene.nvml.fail(function, GPU_IS_LOST, device=1)
    until(lambda: scene.gpu(1)["state"] in ("lost", "quarantined"), 60, "it is noticed")
    shown = scene.gpu(1)
    assert {name: scene.show(name)["pid"] for name in pids} == pids, "what the driver says of a device kills no server"
    assert scene.gpu(0)["state"] == "leased"
    assert scene.ctl("gpus").returncode == 0
    scene.nvml.mend()
    return f"{shown['state']} ({shown['reason']}); the server on it was let be, the other device is in use as before"


def nonsense(scene: Scene) -> str:
    """Sizes that cannot be, names that a terminal would obey, processes of no number."""
    scene.engine("kimi", gpus=[0])
    first, second, third, fourth = scene.nvml.gpus
    third.name = "H200 \x1b]0;owned\x07 <script>alert(1)</script> " + "x" * 40
    scene.nvml.write()
    scene.start()
    pid = scene.is_running("kimi")["pid"]
    first.used = 2**64 - 1
    second.total, second.used = 0, 5 * GIB
    third.temperature, third.power = 2**31 - 1, 2**31 - 1
    fourth.processes = {0: 2**63, 2**31 - 1: None, 1: 2**64 - 1}
    fourth.ecc = (2**63, 2**63)
    scene.nvml.write()
    until(lambda: is_confused(scene), 60, "it is read")
    for words in (("gpus",), ("gpus", "--json"), ("status",), ("why", "kimi")):
        done = scene.ctl(*words)
        assert done.returncode == 0, done
        assert "\x1b" not in done.stdout
    assert "<script>" not in scene.page("/")
    scene.metrics()
    assert scene.show("kimi")["pid"] == pid
    sight = scene.gpus()["sight"]
    states = [scene.gpu(index)["state"] for index in range(4)]
    scene.nvml.set_count(4)
    assert scene.ctl("stop", "kimi").returncode == 0
    return f"sight {sight}, devices {', '.join(states)}; all views answered without control characters; nobody killed"


def is_confused(scene: Scene) -> bool:
    """By the figure of one device, or because the feed has given up."""
    memory = scene.gpu(3).get("memory") or {}
    return scene.gpus()["sight"] != "seeing" or any(
        value > 2**40 for value in memory.values() if isinstance(value, int)
    )


def reader_dies(scene: Scene) -> str:
    scene.engine("kimi", gpus=[0])
    daemon = scene.start()
    pid = scene.is_running("kimi")["pid"]
    killed = set[int]()
    while len(killed) < TIMES:
        until(lambda: bool(readers(daemon.pid) - killed), 90, "there is a reader")
        reader = min(readers(daemon.pid) - killed)
        os.kill(reader, signal.SIGKILL if len(killed) % 2 else signal.SIGSTOP)
        killed.add(reader)
    until(lambda: bool(readers(daemon.pid) - killed), 90, "there is a reader again")
    scene.wait_sight("seeing", 90)
    assert scene.show("kimi")["pid"] == pid
    assert not [old for old in killed if Path(f"/proc/{old}").exists()], "a reader that hung is ended"
    return f"{len(killed)} readers stopped or killed, each replaced; seeing in the end, nobody killed"


def readers(daemon: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{daemon}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline")
            if command.exists() and b"supervisor.edge.gpu" in command.read_bytes():
                found.add(int(child))
    return found


ROWS = (
    Row("NVML hangs", "blind is said, never taken for free or for failed; nobody is killed", hang),
    Row("NVML loses a device", "the device is put out of use, no server is killed for it", lost),
    Row("NVML returns garbage", "every view answers, nobody is killed", nonsense),
    Row("NVML reader killed and stopped", "replaced each time, nobody is killed", reader_dies),
)
