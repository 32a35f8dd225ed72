"""A host for one page: the paths, GPUs and engines that the documentation speaks of, in a temporary directory.

`/etc/sglang-supervisor`, `/opt/sglang`, `/models` and their like are rewritten to places below that directory, ports to
free ones. The Python of `/opt/sglang` starts the fake engine instead of the real one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from bench.site import free_ports
from tests.docs.pages import ROOT, Block, Command, commands
from tests.e2e import marks
from tests.e2e.host import Daemon
from tests.edge.inspect.places import model
from tests.nvml import FakeNvml

BIN = Path(sys.executable).parent
LIMIT_S = 25.0
CONFIG = "/etc/sglang-supervisor/supervisor.toml"
PLACES = (
    "/etc/sglang-supervisor", "/etc/supervisor", "/etc/systemd/system", "/opt/sglang", "/models", "/run/sglang-supervisor",
    "/var/lib/sglang-supervisor", "/var/log/sglang-supervisor",
)  # fmt: skip
_PLACE = re.compile("|".join(rf"(?<![\w/]){re.escape(place)}(?![\w-])" for place in PLACES))
_PORT = re.compile(r"(?<![\d.])(3[01]0\d\d|9877)(?![\d.])")
_MODEL = re.compile(r"/models/([\w.-]+)")
_ANY = "…"

# The engine's Python: `-m sglang.launch_server …` is the fake engine, a start of four minutes takes a second or two.
_ENGINE = """#!/bin/sh
case "$1 $2" in
"-m sglang.launch_server") shift 2 ;;
*) exec {python} "$@" ;;
esac
last= model=
for word; do [ "$last" = --model-path ] && model=${{word##*/}}; last=$word; done
if [ -f "{root}/scenario/$model" ]; then SGLSUP_SIM_SCENARIO=$(cat "{root}/scenario/$model"); export SGLSUP_SIM_SCENARIO; fi
exec {python} -m supervisor.simulator --speed 1000 --gpu-dir {allocations} "$@"
"""


class World:
    """Use as a context manager."""

    def __init__(self, library: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sd-", dir="/tmp"))
        self._nvml = FakeNvml(self.root / "nvml", library, 8)
        self._ports: dict[str, str] = {}
        self._daemon: Daemon | None = None
        for place in (*PLACES, "/opt/sglang/bin", "/etc/sglang-supervisor/conf.d", "/scenario", "/home"):
            (self.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for program in ("python", "python3"):
            path = self.root / "opt/sglang/bin" / program
            path.write_text(_ENGINE.format(python=sys.executable, root=self.root, allocations=self._nvml.allocations))
            path.chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = self._daemon.end() if self._daemon is not None else 0
        left = marks.gone(str(self.root).encode())
        marks.kill(left)
        shutil.rmtree(self.root, ignore_errors=True)
        if kind is None:
            assert not left, f"left behind: {left}"
            assert status == 0, f"the daemon ended with {status}"

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("SGLSUP_S")}
        return clean | self._nvml.environment | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "SGLSUP_SOCKET": str(self.root / "run/sglang-supervisor/control.sock"),
            "SGLSUP_DOCS": str(self.root),
            "TERM": "dumb",
        }  # fmt: skip

    # --- what a page does -----------------------------------------------------------------------------------------

    def does(self, block: Block) -> None:
        """One block. AssertionError names the command that did not do what the page says."""
        match block.kind:
            case "daemon":
                self._daemons(block.text)
            case "engine":
                name, _, scenario = block.text.partition(" ")
                self._scenario(name, scenario)
            case _ if "file" in block.marks:
                self._write(block.marks["file"], block.text)
            case _ if block.typed and not block.skipped:
                self._types(block)
            case _:
                pass

    def _types(self, block: Block) -> None:
        typed = commands(block)
        self._models(block.text)
        folder = ROOT if block.marks.get("in") == "repository" else self.root / "home"
        for at, command in enumerate(typed):
            last = at == len(typed) - 1
            if last and "until" in block.marks:
                self._follow(command, folder, block.marks["until"])
            else:
                self._run(command, folder, int(block.marks.get("exit", "0")) if last else 0)

    def _run(self, command: Command, folder: Path, expected: int) -> None:
        done = subprocess.run(
            ["bash", "-c", self.here(command.text)], cwd=folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        said = done.stdout
        assert done.returncode == expected, f"$ {command.text}\nexit status {done.returncode}, not {expected}:\n{said}"
        missing = self._missing(command.shown, said)
        assert missing is None, f"$ {command.text}\nthe page shows\n{missing}\nbut it printed\n{said}"

    def _follow(self, command: Command, folder: Path, text: str) -> None:
        """A command that goes on for ever, until it has printed the text."""
        output = self.root / "followed"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self.here(command.text)}"], cwd=folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip
        until = time.monotonic() + LIMIT_S
        try:
            while text not in output.read_text(errors="replace"):
                ended = process.poll() is not None
                over = ended or time.monotonic() > until
                assert not over, f"$ {command.text}\nnever printed {text!r}:\n{output.read_text()}"
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)

    def _missing(self, shown: list[str], said: str) -> str | None:
        """The first line of the page that the output has not, in this order; an ellipsis stands for anything."""
        lines = iter(said.splitlines())
        for line in shown:
            if line.strip() in ("", _ANY):
                continue
            wanted = re.compile(".*".join(re.escape(part) for part in self.here(" ".join(line.split())).split(_ANY)))
            if not any(wanted.fullmatch(" ".join(one.split())) for one in lines):
                return line
        return None

    # --- the host -------------------------------------------------------------------------------------------------

    def here(self, text: str) -> str:
        """The text with its paths and ports on this host."""
        text = _PLACE.sub(lambda found: f"{self.root}{found[0]}", text.replace(".venv/bin/", f"{BIN}/"))
        return _PORT.sub(lambda found: self._port(found[0]), text)

    def _port(self, written: str) -> str:
        return self._ports.setdefault(written, str(free_ports(1)[0]))

    def _write(self, path: str, text: str) -> None:
        self._models(text)
        text = re.sub(
            r'^(user|group|socket_group) = ".*"\n', "", self.here(text), flags=re.MULTILINE
        )  # not on this host
        place = Path(self.here(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def _models(self, text: str) -> None:
        """Whatever model the page names is there, as far as its files go."""
        for name in set(_MODEL.findall(text)):
            model(self.root / "models" / name, "model.safetensors")

    def _daemons(self, wanted: str) -> None:
        match wanted:
            case "on":
                self._start()
            case "off":
                self._stop()
            case names:
                self._write(CONFIG, "".join(_example(at, name) for at, name in enumerate(names.split())))
                self._start()

    def _start(self) -> None:
        self._places()
        self._daemon = Daemon([str(BIN / "sglsup"), "daemon", "-c", self.here(CONFIG)], self.environment)
        self._daemon.wait_until_said("ready")

    def _stop(self) -> None:
        assert self._daemon is not None
        assert self._daemon.end() == 0
        self._daemon = None

    def _places(self) -> None:
        """The daemon's own places, where the page's file leaves them at their defaults."""
        file = Path(self.here(CONFIG))
        text = file.read_text()
        places = {
            "socket": f'"{self.here("/run/sglang-supervisor/control.sock")}"',
            "state_dir": f'"{self.here("/var/lib/sglang-supervisor")}"',
            "log_dir": f'"{self.here("/var/log/sglang-supervisor")}"',
            "listen": f'"127.0.0.1:{self._port("9877")}"',
            "cgroups": '"off"',
        }
        table = text.partition("[daemon]")[2].partition("\n[")[0]
        added = "".join(
            f"{key} = {value}\n" for key, value in places.items() if not re.search(rf"^{key} =", table, re.M)
        )
        file.write_text(
            text.replace("[daemon]\n", f"[daemon]\n{added}", 1) if "[daemon]" in text else f"[daemon]\n{added}{text}"
        )

    def _scenario(self, name: str, scenario: str) -> None:
        file = self.root / "scenario" / name
        if scenario:
            file.write_text(scenario.replace("ONCE", f"once={self.root}/scenario/{name}.done"))
        else:
            file.unlink(missing_ok=True)


def _example(at: int, name: str) -> str:
    """A server for pages that show none of their own; the first has four ranks."""
    words = ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", f"/models/{name}"]
    words += ["--port", str(30000 + at), "--tp", "1" if at else "4"]
    return f"[server.{name}]\ncommand = {json.dumps(words)}\n"
