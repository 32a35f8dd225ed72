"""A real nginx in front of an upstream that is read from a file."""

import shutil
import subprocess
from types import TracebackType
from typing import Self

import pytest

from bench.site import free_ports
from tests.e2e.host import Host, until

END_LIMIT_S = 20.0
_CONFIGURATION = """
daemon off;
pid {root}/nginx.pid;
error_log {root}/nginx.log;
worker_processes 1;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {root}/nginx-body;
    proxy_temp_path {root}/nginx-proxy;
    fastcgi_temp_path {root}/nginx-fastcgi;
    uwsgi_temp_path {root}/nginx-uwsgi;
    scgi_temp_path {root}/nginx-scgi;
    include {root}/upstream.conf;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engines;
            proxy_next_upstream off;
            proxy_buffers 64 64k;
        }}
    }}
}}
"""


class RealNginx:
    """Use as a context manager. It tries no second server: what fails behind it, fails."""

    def __init__(self, host: Host) -> None:
        if (found := shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")) is None:
            pytest.skip("nginx is not installed")
        (self.port,) = free_ports(1)
        self.upstream = host.root / "upstream.conf"
        self._host = host
        configuration = host.root / "nginx.conf"
        configuration.write_text(_CONFIGURATION.format(root=host.root, port=self.port))
        self._command = [found, "-c", str(configuration)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def reload(self) -> list[str]:
        return [*self._command, "-s", "reload"]

    def __enter__(self) -> Self:
        self.upstream.write_text("upstream engines { server 127.0.0.1:9 down; }\n")
        self._process = subprocess.Popen(
            self._command, env=self._host.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until((self._host.root / "nginx.pid").exists, END_LIMIT_S, "nginx runs")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._host.daemon is not None:
            self._host.daemon.end()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(END_LIMIT_S)
