"""A server of another engine, told from the operator's chair: nothing but `engine = "vllm"` is different."""

import contextlib
import http.client
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bench.site import free_ports, health_status
from tests.e2e.host import SPEED, Host, until

TP2 = ("--tensor-parallel-size", "2")


def add(host: Host, *arguments: str, speed: float = SPEED, **table: Any) -> int:
    """A fake vLLM named kimi; its port."""
    port = free_ports(1)[0]
    own = ["--engine", "vllm", "--port", str(port), "--speed", str(speed), *TP2, *arguments]
    host.add("kimi", [sys.executable, "-m", "supervisor.simulator", *own], port=port, engine="vllm", **table)
    return port


def test_a_start_that_stalls_is_explained_and_the_next_one_serves(host: Host) -> None:
    once = f"once={host.root}/once"
    deadlines = {"compile": {"stall": "2s", "limit": "40s"}}
    port = add(host, "--scenario", f"stall:phase=compile,rank=TP1,{once}", deadlines=deadlines)
    host.start()

    host.wait_for("kimi", "phase", "compile")
    stalled = host.wait_for("kimi", "verdict", "stalled")
    assert stalled["reason"].startswith("stalled in compile: no progress for ")
    host.wait_for("kimi", "lifecycle", "backoff", since=stalled["id"])
    assert not host.processes("kimi", attempt=1)
    assert "stalled in compile" in host.why("kimi")

    again = host.wait_for("kimi", "lifecycle", "running", since=stalled["id"])
    assert again["attempt"] == 2
    assert health_status(port) == 200
    shown = host.show("kimi")
    assert (shown["capacity_tokens"], {rank["rank"] for rank in shown["start"]["ranks"]}) == (933888, {"TP0", "TP1"})


def test_a_configuration_that_cannot_work_is_not_tried_again(host: Host) -> None:
    add(host, "--scenario", "crash:phase=launch,cause=parallelism-invalid")
    host.start()
    fatal = host.wait_for("kimi", "lifecycle", "fatal")
    assert fatal["attempt"] == 1
    story = host.why("kimi")
    assert "parallelism-invalid" in story
    assert "--tensor-parallel-size" in story, "the advice speaks this engine's words"
    assert host.ctl("wait", "kimi").returncode == 1


def worker(host: Host, rank: int) -> int:
    (pid,) = (pid for pid, title in host.processes("kimi").items() if title.startswith(f"VLLM::Worker_TP{rank}"))
    return pid


@pytest.mark.slow
def test_a_killed_worker_ends_the_server_with_0_and_that_is_no_success(host: Host) -> None:
    add(host)
    host.start()
    running = host.wait_for("kimi", "lifecycle", "running")
    os.kill(worker(host, 1), signal.SIGKILL)
    again = host.wait_for("kimi", "lifecycle", "running", since=running["id"])
    assert again["attempt"] == 2
    story = host.why("kimi")
    assert "VllmWorker-1 died unexpectedly (exit code: -9)" in story
    assert "insufficient-evidence" not in story


@pytest.mark.slow
def test_a_worker_that_stops_while_requests_wait_is_found_though_health_says_200(host: Host) -> None:
    quick = "launch=5,dist-init=2,weights=5,compile=5,memory-pool=1,target-graph=2,warmup=1"
    # the engine itself gives up after 300 s: at full speed it would be the first
    port = add(host, "--phase-seconds", quick, speed=10, serving={"stall": "2s", "stopped": "2s"})
    host.start()
    running = host.wait_for("kimi", "lifecycle", "running")
    os.kill(worker(host, 1), signal.SIGSTOP)
    request = in_background(lambda: ask(port))
    until(lambda: health_status(port) == 200, 10, "the engine's own health, which asks no worker")
    stalled = host.wait_for("kimi", "verdict", "stalled", since=running["id"], limit_s=40)
    assert "scheduler TP1 (pid" in stalled["reason"] or "no token" in stalled["reason"]
    host.wait_for("kimi", "lifecycle", "running", since=stalled["id"], limit_s=90)
    request.join(20)
    assert not request.is_alive()


def ask(port: int) -> None:
    """Until the server ends, and the connection with it."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked.request("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": 4}')
    with contextlib.suppress(OSError, http.client.HTTPException):
        asked.getresponse().read()
    asked.close()


def in_background(body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_stop_is_orderly(host: Host) -> None:
    add(host)
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    assert host.ctl("stop", "kimi").returncode == 0
    assert host.show("kimi")["exit"]["code"] == 0
    assert not host.processes("kimi")
