"""A real Prometheus and a real Alertmanager on a host of the tests, and a webhook at which alerts arrive."""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.site import free_ports
from tests.metrics.test_rules import ETC, RULES

PROMETHEUS, ALERTMANAGER = shutil.which("prometheus"), shutil.which("prometheus-alertmanager")


class Webhook:
    """Takes alerts."""

    def __init__(self) -> None:
        self.alerts: queue.Queue[dict[str, Any]] = queue.Queue()
        alerts = self.alerts

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for alert in body["alerts"]:
                    alerts.put(alert)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def wait_for(self, alertname: str, server: str, limit_s: float) -> dict[str, Any]:
        """The first alert of this name about this server."""
        end, seen = time.monotonic() + limit_s, list[str]()
        while (left_s := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                alert: dict[str, Any] = self.alerts.get(timeout=left_s)
                seen.append(str(alert["labels"]))
                if (alert["labels"]["alertname"], alert["labels"].get("server")) == (alertname, server):
                    return alert
        raise AssertionError(f"no {alertname} about {server} within {limit_s} s; there came {seen}")


class Prometheus:
    """Asked over its API."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"

    def _get(self, path: str, **arguments: str) -> Any:
        url = f"{self._base}/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as problem:
            raise AssertionError(f"{path} {arguments}: {problem.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def points(self, expression: str, since: float) -> int:
        """How many samples there have been since then."""
        found = self._get("query_range", query=expression, start=f"{since}", end=f"{time.time()}", step="1")
        return sum(len(series["values"]) for series in found["result"])

    def up(self, job: str) -> bool:
        return any(sample["value"][1] == "1" for sample in self.query(f'up{{job="{job}"}}'))

    def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """It has no events to wait for."""
        end, pause = time.monotonic() + limit_s, threading.Event()
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if condition():
                    return
            assert time.monotonic() < end, f"not within {limit_s} s: {what}"
            pause.wait(0.1)


@contextlib.contextmanager
def watching(folder: Path, daemon_port: int) -> Iterator[tuple[Prometheus, Webhook]]:
    """Both programs on our own scrape configuration and rules, once a second; they are gone at the end."""
    assert PROMETHEUS is not None
    assert ALERTMANAGER is not None
    own_port, alert_port = free_ports(2)
    hook = Webhook()
    threading.Thread(target=hook.server.serve_forever, daemon=True).start()
    (folder / "alertmanager.yml").write_text(
        f"route: {{receiver: hook, group_wait: 0s, group_interval: 1s, group_by: ['...']}}\n"
        f"receivers: [{{name: hook, webhook_configs: [{{url: '{hook.url}'}}]}}]\n"
    )
    scrape = (ETC / "scrape.yml").read_text().replace("127.0.0.1:9877", f"127.0.0.1:{daemon_port}")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{RULES}']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alert_port}']}}]}}]}}\n"
        + scrape.replace("refresh_interval: 15s", "refresh_interval: 1s")
    )
    commands = (
        [
            ALERTMANAGER,
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/alerts",
            f"--web.listen-address=127.0.0.1:{alert_port}",
            "--cluster.listen-address=",
        ],
        [
            PROMETHEUS,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{own_port}",
        ],
    )
    with contextlib.ExitStack() as stack:
        stack.callback(hook.server.server_close)
        stack.callback(hook.server.shutdown)
        for command in commands:
            stack.enter_context(_running(command, folder))
        yield Prometheus(own_port), hook


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)
