"""A daemon with a few fake servers in a scratch folder, and a supervisord with as many sleepers."""

import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent
READY_LIMIT_S = 120
STOP_LIMIT_S = 60
SPEED = "200"  # a start of four minutes takes one second
_PORTS = range(10000, 32768)  # below those that the kernel gives to whoever asks for any
_given: set[int] = set()


@contextmanager
def our_daemon(servers: int) -> Iterator[tuple[psutil.Process, str]]:
    """The daemon's process and its socket, once all servers are healthy."""
    with tempfile.TemporaryDirectory() as folder:
        socket_path = f"{folder}/control.sock"
        config = Path(folder) / "supervisor.toml"
        config.write_text(configuration(folder, servers))
        command = [str(BIN / "sglsup"), "daemon", "-c", str(config)]
        with running(command, Path(folder) / "out") as daemon:
            wait_for(lambda: sglctl(socket_path, "version") == 0, daemon, Path(folder) / "out")
            for index in range(servers):
                sglctl(socket_path, "wait", f"s{index}", "--timeout", f"{READY_LIMIT_S}s")
            yield daemon, socket_path


@contextmanager
def supervisord(folder: Path, children: int) -> Iterator[tuple[psutil.Process, list[str]]]:
    """supervisord's process and its client's command line, once all its children run."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "supervisord.conf"
        config.write_text(peer_configuration(scratch, children))
        command = [str(folder / "supervisord"), "-c", str(config)]
        with running(command, Path(scratch) / "out") as daemon:
            wait_for(lambda: len(daemon.children()) == children, daemon, Path(scratch) / "out")
            yield daemon, [str(folder / "supervisorctl"), "-c", str(config)]


def peer_configuration(scratch: str, children: int) -> str:
    programs = "\n".join(f"[program:s{index}]\ncommand=sleep 3600" for index in range(children))
    return f"""
[supervisord]
nodaemon=true
logfile={scratch}/log
pidfile={scratch}/pid
[unix_http_server]
file={scratch}/control.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{scratch}/control.sock
{programs}
"""


def configuration(folder: str, servers: int) -> str:
    places = f'socket = "{folder}/control.sock"\nstate_dir = "{folder}/state"\nlog_dir = "{folder}/log"'
    tables = [f'[daemon]\n{places}\nlisten = ""']
    for index, port in enumerate(free_ports(servers)):
        command = [sys.executable, "-m", "supervisor.simulator", "--speed", SPEED, "--port", str(port)]
        tables.append(f"[server.s{index}]\ncommand = {json.dumps(command)}\ngpus = []")
    return "\n\n".join(tables) + "\n"


def health_status(port: int) -> int:
    """The status of the engine's own /health; 0 without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def free_ports(count: int) -> list[int]:
    """Nobody's now, and none that was given before: who got that one may not have bound it yet."""
    ports: list[int] = []
    while len(ports) < count:
        port = secrets.choice(_PORTS)
        if port not in _given and _is_free(port):
            _given.add(port)
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def running(command: list[str], output: Path) -> Iterator[psutil.Process]:
    # PYTHONPATH could lead the peer's `import supervisor` to our package of the same name.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)


def sglctl(socket_path: str, *arguments: str) -> int:
    command = [str(BIN / "sglctl"), "-s", socket_path, *arguments]
    return subprocess.run(
        command, capture_output=True, check=False, env=os.environ, timeout=READY_LIMIT_S + 30
    ).returncode


def wait_for(condition: Callable[[], bool], daemon: psutil.Process, output: Path) -> None:
    give_up = time.monotonic() + READY_LIMIT_S
    while not condition():
        if time.monotonic() > give_up or daemon.status() == psutil.STATUS_ZOMBIE:
            said = output.read_text(errors="replace")[-2000:]
            raise TimeoutError(
                f"cannot measure: the daemon ended or was not ready in {READY_LIMIT_S} s; it said:\n{said}"
            )
        time.sleep(0.1)
