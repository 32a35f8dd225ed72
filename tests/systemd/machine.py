"""A machine for tests: a real systemd as PID 1 on an overlay of this machine's root, in namespaces of its own.

systemd-nspawn boots it in a second or two. What runs inside is driven from here by entering its namespaces, so a test
is an ordinary test. Killing its PID 1 ends everything inside: the kernel does that.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
BOOT_LIMIT_S = 40.0
TARGET = "sglsup-test.target"
UNIT = "sglang-supervisor.service"
CONFIG = "/etc/sglang-supervisor/supervisor.toml"

# In a mount namespace of its own: nothing of this is seen outside, and all of it goes with the last process inside.
# nspawn wants cgroup2 at /sys/fs/cgroup and a cgroup of its own below the root (--keep-unit).
_BOOT = r"""
set -eu
place=$1; shift
mount -t tmpfs tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay overlay -o "lowerdir=$BASE,upperdir=$place/upper,workdir=$place/work" "$place/root"
umount -R /sys/fs/cgroup || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$CGROUP"
echo $$ > "/sys/fs/cgroup/$CGROUP/cgroup.procs"
mount -t tmpfs tmpfs /run
cp -r "$SEED/." "$place/root/"
exec systemd-nspawn -D "$place/root" --boot --register=no --keep-unit --private-network --link-journal=no \
    --resolv-conf=off --timezone=off --console=pipe "$@" -- --unit="$TARGET"
"""


def why_not() -> str:
    """Why no machine can be booted here; "" when one can."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    for program in ("systemd-nspawn", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: systemd-container, util-linux)"
    if "cgroup2" not in Path("/proc/filesystems").read_text():
        return "this kernel has no cgroup v2"
    return ""


class Machine:
    """Use as a context manager. `files` (path → text) and a whole `tree` are put into its root before it boots.

    Its root is this machine's, or the tree of another system at `base`.
    """

    def __init__(self, files: dict[str, str], tree: Path | None = None, base: Path = Path("/")) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="sm-", dir="/tmp"))
        self._seed = Path(tempfile.mkdtemp(prefix="sm-seed-", dir="/tmp"))
        self._cgroup = self._place.name
        self._files = {f"/etc/systemd/system/{TARGET}": _TARGET_UNIT, **files}
        self._tree = tree
        self._base = base
        self._process: subprocess.Popen[bytes] | None = None
        self.leader = 0

    def __enter__(self) -> Self:
        if self._tree is not None:
            shutil.copytree(self._tree, self._seed, dirs_exist_ok=True, symlinks=True)
        for path, text in self._files.items():
            file = self._seed / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        log = (self._place.parent / f"{self._place.name}.console").open("wb")
        try:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "--propagation=private",
                    "sh",
                    "-c",
                    _BOOT,
                    "sh",
                    str(self._place),
                    *self._binds(),
                ],
                env={
                    **os.environ,
                    "CGROUP": self._cgroup,
                    "SEED": str(self._seed),
                    "TARGET": TARGET,
                    "BASE": str(self._base),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            self._await_boot()
        except BaseException:
            self.__exit__()
            raise
        finally:
            log.close()
        return self

    def __exit__(self, *_: object) -> None:
        """Its init is killed, and with it the whole process namespace."""
        if self.leader:
            _kill(self.leader)
        if self._process is not None:
            _terminate(self._process)
        for place in (self._place, self._seed):
            shutil.rmtree(place, ignore_errors=True)
        self._console.unlink(missing_ok=True)
        _remove_cgroups(self._cgroup)

    @property
    def _console(self) -> Path:
        return self._place.parent / f"{self._place.name}.console"

    def _await_boot(self) -> None:
        assert self._process is not None
        until(lambda: bool(self._find_leader()), BOOT_LIMIT_S, "systemd-nspawn starts an init", self._said)
        until(lambda: self.state(TARGET) == "active", BOOT_LIMIT_S, f"{TARGET} is reached", self._said)

    def _find_leader(self) -> int:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"no machine: {self._said()}")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for child in map(int, children):  # nspawn's one child that is PID 1 of its own namespace
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{child}/status").read_text()
                if any(line.split()[-1] == "1" for line in status.splitlines() if line.startswith("NSpid:")):
                    self.leader = child
        return self.leader

    def _said(self) -> str:
        return self._console.read_text(errors="replace")[-3000:]

    def _binds(self) -> list[str]:
        """The overlay shows only the root's own file system, and the machine has its own /tmp: what lies there is bound."""
        if self._base != Path("/"):
            return []
        root = os.stat("/").st_dev
        needed = sorted({str(ROOT), sys.prefix, sys.base_prefix})
        return [f"--bind-ro={path}" for path in needed if os.stat(path).st_dev != root or path.startswith("/tmp/")]

    # --- what one does with a machine ----------------------------------------------------------------------------

    def run(self, *words: str, limit_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a program inside."""
        command = ["nsenter", "-t", str(self.leader), "--all", "--", *words]
        # Not the run's mark: whatever stays inside dies with the machine.
        return subprocess.run(command, env={"PATH": _PATH}, capture_output=True, text=True, timeout=limit_s)

    def ok(self, *words: str, limit_s: float = 30.0) -> str:
        """The same; it must succeed."""
        done = self.run(*words, limit_s=limit_s)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}\n{self._said()}"
        return done.stdout

    def systemctl(self, *words: str, limit_s: float = 60.0) -> str:
        return self.ok("systemctl", *words, limit_s=limit_s)

    def property(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--property", name, "--value", unit).stdout.strip()

    def state(self, unit: str) -> str:
        return self.property(unit, "ActiveState")

    def journal(self, unit: str) -> list[dict[str, Any]]:
        """The unit's lines, oldest first, as journald has them."""
        text = self.ok("journalctl", "-u", unit, "-o", "json", "--no-pager", "--all")
        return [json.loads(line) for line in text.splitlines()]

    def path(self, inside: str) -> Path:
        """A file of the machine as it is seen from here."""
        return Path(f"/proc/{self.leader}/root", inside.lstrip("/"))

    def capabilities(self) -> int:
        """Those that its init has, as a mask."""
        status = Path(f"/proc/{self.leader}/status").read_text()
        return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))


_PATH = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TARGET_UNIT = "[Unit]\nRequires=basic.target\nAfter=basic.target\n"  # not this machine's own enabled units


class Unit:
    """The supervisor's unit on a machine, as its operator sees it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def pid(self) -> int:
        """The daemon's, as it is numbered inside; 0 while there is none."""
        return int(self.machine.property(UNIT, "MainPID") or 0)

    def ctl(self, *words: str) -> str:
        return self.machine.ok(f"{BIN}/sglctl", *words)

    def status(self) -> str:
        return self.machine.run("systemctl", "status", "--no-pager", "--lines", "60", UNIT).stdout


def until(
    condition: Callable[[], object], limit_s: float, what: str, detail: Callable[[], object] = lambda: ""
) -> None:
    """For what has no event that could be waited for from outside: look again and again, for a bounded time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {limit_s:g} s: {what}\n{detail()}")
        time.sleep(0.05)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(5)  # nspawn ends with its init
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def _remove_cgroups(name: str) -> None:
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        base = Path(mount, name)
        end = time.monotonic() + 5
        while base.is_dir() and time.monotonic() < end:  # the dead leave their cgroup a moment after they are reaped
            for inner in sorted((one for one in base.rglob("*") if one.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    inner.rmdir()
            with contextlib.suppress(OSError):
                base.rmdir()
            time.sleep(0.02)
