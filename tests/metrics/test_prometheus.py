"""The whole way: fake engines, our daemon, the real Prometheus and Alertmanager, an alert at a webhook, a dashboard."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.site import free_ports
from tests.e2e.gpus import GpuHost
from tests.metrics.prometheus import ALERTMANAGER, PROMETHEUS, watching
from tests.metrics.test_rules import queries
from tests.nvml import FakeNvml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        PROMETHEUS is None or ALERTMANAGER is None,
        reason="needs prometheus and prometheus-alertmanager (Debian packages of these names)",
    ),
]

STALL_S = 2
ALERT_LIMIT_S = 60.0


def test_from_a_stall_to_an_alert_and_a_dashboard(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set_count(2)
    (port,) = free_ports(1)
    with GpuHost(fake_nvml) as host, watching(tmp_path, port) as (prometheus, hook):
        host.settings["listen"] = f"127.0.0.1:{port}"
        stall = f"stall:phase=verify-graph,rank=TP1,once={host.root}/once"
        patience = {"verify-graph": {"stall": f"{STALL_S}s", "limit": "60s"}}
        speculative = ("--tp", "2", "--speculative-algorithm", "EAGLE3")
        host.engine("good", "--tp", "2", "--enable-metrics", speed=60, gpus=[0, 1])
        host.fake("stalls", *speculative, "--scenario", stall, deadlines=patience, autostart=False)
        began = time.time()
        host.start()
        # Only who has seen the counter at 0 can see it grow.
        zero = 'sglsup_server_exits_total{server="stalls",reason="stall_start"} == 0'
        prometheus.until(lambda: bool(prometheus.query(zero)), 40, "the daemon is scraped")

        # 1. A stall becomes an alert.
        assert host.ctl("start", "stalls").returncode == 0
        host.wait_for("stalls", "verdict", "stalled")
        stalled = time.monotonic()
        alert = hook.wait_for("SglsupStalled", "stalls", ALERT_LIMIT_S)
        print(f"\nfrom the stall to the webhook: {time.monotonic() - stalled:.1f} s")
        assert alert["labels"]["severity"] == "warning"
        assert alert["annotations"]["runbook"] == "docs/alerts.md#sglsupstalled"

        # 2. The engine's own metrics are found through the daemon.
        prometheus.until(lambda: prometheus.up("sglang"), 40, "the engine's metrics are scraped")
        (target,) = prometheus.query('up{job="sglang"}')
        assert target["metric"]["server"] == "good"
        assert target["metric"]["gpus"] == "0,1"

        host.wait_for("stalls", "lifecycle", "running", limit_s=40)

        # 3. Every query of the dashboard has data. A second start has a usual one to be compared with.
        fake_nvml.xid(0, 31)
        assert host.ctl("restart", "good").returncode == 0
        assert host.ctl("wait", "good", "--timeout", "60s").returncode == 0
        ready = 'increase(sglsup_server_startup_duration_seconds_count{server="good",result="ready"}[1m]) > 0'
        prometheus.until(lambda: bool(prometheus.query(ready)), 20, "the second start is scraped")
        empty = [query for query in queries() if not prometheus.points(_filled(query), began)]
        assert empty == []


def _filled(query: str) -> str:
    """As Grafana fills in its variables; a day has not gone by."""
    return query.replace("$server", ".*").replace("$__range", "5m")
