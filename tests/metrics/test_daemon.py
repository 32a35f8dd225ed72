"""The real daemon's books and probes: counters outlive it, and `sglsup run` answers a container's probes."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.site import free_ports
from tests.e2e.host import BIN, Host, until
from tests.metrics.test_sheet import Samples, samples


def asked(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def scraped(port: int) -> Samples:
    status, page = asked(port, "/metrics")
    assert status == 200
    return samples(page, openmetrics=False)


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"sglsup_{name}", tuple(sorted(labels.items()))]


@pytest.fixture
def listening() -> tuple[Host, int]:
    (port,) = free_ports(1)
    host = Host(cgroups="off")
    host.settings["listen"] = f"127.0.0.1:{port}"
    return host, port


def test_counters_outlive_a_daemon_that_is_killed(listening: tuple[Host, int]) -> None:
    host, port = listening
    crash = f"crash:phase=weights,cause=scheduler-software-bug,once={host.root}/once"
    with host:
        host.fake("a", "--scenario", crash)
        daemon = host.start()
        host.wait_for("a", "lifecycle", "running")
        ready = {"server": "a", "result": "ready"}
        until(lambda: value(scraped(port), "server_startup_duration_seconds_count", **ready) == 1, 10, "it is stored")
        before = scraped(port)
        assert value(before, "server_starts_total", server="a") == 2
        assert value(before, "server_restarts_total", server="a", reason="crash") == 1
        assert value(before, "server_ready", server="a") == 1
        assert value(before, "server_phase_duration_seconds_count", server="a", phase="weights", result="failed") == 1
        assert value(before, "server_health_checks_total", server="a", check="health", outcome="ok") >= 1
        assert value(before, "server_log_lines_total", server="a") > 10
        assert value(before, "server_evidence_kept_total", server="a", result="failed") == 0
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(10)

        host.start()
        host.ctl("wait", "a", "--timeout", "30s")
        after = scraped(port)
        none_fell(before, after)
        until(lambda: value(scraped(port), "adoptions_total", result="adopted") == 1, 10, "the adoption is stored")
        assert value(scraped(port), "server_processes", server="a") >= 1
        assert value(after, "server_restarts_total", server="a", reason="crash") >= 1


def none_fell(before: Samples, after: Samples) -> None:
    """A counter that falls is taken for one that began anew, and all of it is counted again."""
    counted = [one for one in before if one[0].endswith(("_total", "_count", "_bucket"))]
    assert len(counted) > 200
    for name, labels in counted:
        assert after[name, labels] >= before[name, labels], (name, labels)


def test_counters_outlive_an_upgrade(listening: tuple[Host, int]) -> None:
    host, port = listening
    with host:
        host.fake("a")
        host.start()
        host.wait_for("a", "lifecycle", "running")
        ready = {"server": "a", "result": "ready"}
        until(lambda: value(scraped(port), "server_startup_duration_seconds_count", **ready) == 1, 10, "it is stored")
        before = scraped(port)

        done = host.ctl("upgrade")

        assert done.returncode == 0, done.stderr
        after = scraped(port)
        none_fell(before, after)
        assert value(after, "server_starts_total", server="a") == 1
        assert value(after, "server_ready", server="a") == 1


def test_page_and_probes_of_a_daemon(listening: tuple[Host, int]) -> None:
    host, port = listening
    with host:
        host.fake("a", "--phase-seconds", "weights=400", speed=100)
        host.start()
        host.wait_for("a", "phase", "weights")
        assert asked(port, "/livez") == (200, "ok\n")
        assert asked(port, "/startupz?server=a") == (503, "a: starting, weights\n")
        assert 'data-server="a" data-state="starting"' in asked(port, "/")[1]
        host.wait_for("a", "lifecycle", "running")
        assert asked(port, "/startupz?server=a")[0] == 200
        assert asked(port, "/readyz")[0] == 200
        assert asked(port, "/sd") == (200, "[]")


def test_a_containers_entrypoint_answers_its_probes(tmp_path: Path) -> None:
    engine_port, port = free_ports(2)
    engine = [sys.executable, "-m", "supervisor.simulator", "--port", str(engine_port), "--speed", "100"]
    places = ["--state-dir", str(tmp_path / "s"), "--listen", f"127.0.0.1:{port}", "--name", "a"]
    command = [str(BIN / "sglsup"), "run", *places, "--", *engine]
    run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=os.environ)
    try:
        until(lambda: asked(port, "/livez")[0] == 200, 20, "it lives")
        assert asked(port, "/readyz")[0] in (200, 503)
        until(lambda: asked(port, "/startupz")[0] == 200, 20, "it has started")
        assert asked(port, "/readyz?server=a")[0] == 200
        assert asked(port, "/readyz?server=b")[0] == 404
    finally:
        run.terminate()
        assert run.wait(30) is not None


def test_a_broken_file_is_told_until_it_is_mended(listening: tuple[Host, int]) -> None:
    host, port = listening
    with host:
        host.fake("a", autostart=False)
        daemon = host.start()
        for text, ok in (("[daemon", 0), (host.config.read_text(), 1)):
            host.config.write_text(text)
            daemon.process.send_signal(signal.SIGHUP)
            until(lambda ok=ok: value(scraped(port), "config_last_reload_successful") == ok, 10, f"it is {ok}")


def test_a_broken_file_is_told_and_forgotten_by_whoever_reads_it_again(listening: tuple[Host, int]) -> None:
    """Not by a SIGHUP alone: who mends the file and has it read by `update` is not to be alarmed for ever."""
    host, port = listening
    with host:
        host.fake("a", autostart=False)
        host.start()
        mended = host.config.read_text()
        steps = (("reread", "[daemon", 0), ("update", mended, 1), ("update", "[daemon", 0), ("reread", mended, 1))
        for verb, text, ok in steps:
            host.config.write_text(text)
            host.ctl(verb)
            until(lambda ok=ok: value(scraped(port), "config_last_reload_successful") == ok, 10, f"it is {ok}")
