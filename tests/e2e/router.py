"""The engine's own router as a real process, in either dialect of its interface."""

import http.client
import json
import os
import signal
import subprocess
from types import TracebackType
from typing import Any, Self

import pytest

from bench.peers import GATEWAY, OLDER_ROUTER, ROUTER, place
from bench.site import free_ports
from tests.e2e import toml
from tests.e2e.host import Host, until

READY_LIMIT_S = 30.0
END_LIMIT_S = 20.0


class RealRouter:
    """Use as a context manager. It neither retries nor breaks circuits: what fails behind it, fails."""

    def __init__(self, host: Host, release: str = ROUTER) -> None:
        self.release = release
        self._bin = place(release)
        package = release.partition("==")[0].replace("-", "_")
        if not any(self._bin.parent.glob(f"lib/python3*/site-packages/{package}")):
            pytest.skip(f"{release} is not installed: python -m bench.peers")
        self.port, self._metrics = free_ports(2)
        self._host = host
        self._log = host.root / f"router-{self.port}.out"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._host.daemon is not None:
            self._host.daemon.end()  # its servers leave a router that is still there
        self.stop()

    def start(self) -> None:
        launch = ("smg", "launch") if self.release == GATEWAY else ("python", "-m", "sglang_router.launch_router")
        command = [
            *(str(self._bin / launch[0]), *launch[1:], "--host", "127.0.0.1", "--port", str(self.port)),
            *("--policy", "round_robin", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(self._metrics)),
            # The older one has neither.
            *(() if self.release == OLDER_ROUTER else ("--disable-retries", "--disable-circuit-breaker")),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=self._host.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: self._answers("/liveness"), READY_LIMIT_S, f"the router answers, see {self._log}")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)
            self._process.wait(END_LIMIT_S)

    def workers(self) -> set[str]:
        """The addresses that it has."""
        if self.release == OLDER_ROUTER:
            return set(self._get("/list_workers")["urls"])
        return {one["url"] for one in self._get("/workers")["workers"]}

    def add(self, url: str) -> None:
        """As somebody else would."""
        self._ask("POST", "/workers", json.dumps({"url": url}).encode())

    def _get(self, path: str) -> Any:
        return json.loads(self._ask("GET", path))

    def _answers(self, path: str) -> bool:
        try:
            self._ask("GET", path)
        except (OSError, http.client.HTTPException):
            return False
        return True

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            return connection.getresponse().read()
        finally:
            connection.close()


def configure(host: Host, **routers: dict[str, Any]) -> None:
    """Tables of routers beside the host's configuration."""
    folder = host.root / "conf.d"
    folder.mkdir(exist_ok=True)
    (folder / "routers.toml").write_text("\n".join(toml.table(f"router.{name}", one) for name, one in routers.items()))
