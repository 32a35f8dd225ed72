"""Owns one cgroup v2 per server: finds the root, kills, freezes and proves emptiness.

Where the root is:
- the daemon sits in the root cgroup (no systemd, a container): `/sglang-supervisor-LABEL` is made there;
- it sits in a cgroup it may write (a unit with Delegate=yes): below that one. The daemon moves itself into the child
  `daemon`, because the kernel wants processes only in leaves ("no internal processes") once controllers are enabled;
- neither: no cgroups to be had, `find_cgroup_root` says None, and `edge.process` sweeps instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from supervisor import procstat

WANTED_CONTROLLERS = ("memory", "pids", "cpu")
NAME_BYTES = 200  # NAME_MAX is 255, and a prefix comes before
POLL_S = 0.25  # a notification lost by the kernel or a watcher costs at most this


class CgroupRoot(msgspec.Struct, frozen=True):
    """Where the servers' cgroups lie. `controllers` are the ones the servers' cgroups have."""

    path: str
    controllers: tuple[str, ...] = ()

    def server(self, name: str) -> ServerCgroup:
        """The cgroup of one server; nothing is made before `prepare()`."""
        return ServerCgroup(os.path.join(self.path, "servers", safe_name(name)))

    def leftovers(self) -> tuple[ServerCgroup, ...]:
        """The servers' cgroups that exist now, by whoever made them (an earlier daemon of the same label)."""
        with contextlib.suppress(FileNotFoundError):
            found = sorted(entry.path for entry in os.scandir(os.path.join(self.path, "servers")) if entry.is_dir())
            return tuple(ServerCgroup(path) for path in found)
        return ()

    def remove(self) -> bool:
        """Remove the root with the servers' cgroups that nobody lives in. False when somebody is still there."""
        staying = [left for left in self.leftovers() if not left.remove()]
        if staying:
            return False
        try:
            os.rmdir(os.path.join(self.path, "servers"))
            if os.path.basename(self.path).startswith("sglang-supervisor-"):
                os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def find_cgroup_root(label: str = "default", *, proc: str = "/proc") -> CgroupRoot | None:
    """Find or make the place for the servers' cgroups; None where there is no writable cgroup v2.

    `label` tells daemons of one machine apart and must stay the same across restarts.
    """
    mount = _mount_point(Path(proc, "self/mountinfo").read_text())
    own = _own_cgroup(Path(proc, "self/cgroup").read_text())
    if mount is None or own is None:
        return None
    try:
        return _prepare(mount, own, safe_name(label))
    except OSError:
        return None  # read-only in a container, or not ours: the caller falls back and says so


def _prepare(mount: str, own: str, label: str) -> CgroupRoot | None:
    if own == "/":
        base = os.path.join(mount, f"sglang-supervisor-{label}")
        os.makedirs(os.path.join(base, "servers"), exist_ok=True)
        _enable(mount)
        _enable(base)
        return CgroupRoot(base, _enable(os.path.join(base, "servers")))
    here = os.path.join(mount, own.lstrip("/"))
    if os.path.basename(here) == "daemon" and os.access(os.path.dirname(here), os.W_OK):
        base = os.path.dirname(here)  # DelegateSubgroup=daemon, or moved there by an earlier self (re-exec)
        os.makedirs(os.path.join(base, "servers"), exist_ok=True)
    else:
        base = here
        os.makedirs(os.path.join(base, "servers"), exist_ok=True)
        _move_self(base)
    # No controllers are enabled below a unit: systemd could not put a restarted daemon into a cgroup that has them
    # (EBUSY) while servers survive. The unit's own memory.events stays readable.
    if not os.access(os.path.join(base, "cgroup.procs"), os.W_OK):
        return None  # joining a child needs the right to write the common ancestor's
    return CgroupRoot(base, tuple(_words(os.path.join(base, "servers", "cgroup.controllers"))))


def _move_self(base: str) -> None:
    """Leave the unit's own cgroup for a leaf; a daemon that shares its cgroup with others (a login shell) stays."""
    if any(pid not in (os.getpid(), os.getppid()) for pid in _pids(os.path.join(base, "cgroup.procs"))):
        return
    leaf = os.path.join(base, "daemon")
    os.makedirs(leaf, exist_ok=True)
    Path(leaf, "cgroup.procs").write_text(str(os.getpid()))


def _enable(place: str) -> tuple[str, ...]:
    present = _words(os.path.join(place, "cgroup.controllers"))
    for name in WANTED_CONTROLLERS:
        if name in present:
            with contextlib.suppress(OSError):  # one controller that cannot be enabled must not cost the others
                Path(place, "cgroup.subtree_control").write_text(f"+{name}")
    return tuple(_words(os.path.join(place, "cgroup.subtree_control")))


class ServerCgroup:
    """The cgroup of one server: everything it ever forks is in here, whatever it does to sessions and parents."""

    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def prepare(self) -> None:
        """Make it, or take it over when it is there (which keeps its counters). OSError when not."""
        os.makedirs(self.path, exist_ok=True)
        self.freeze(False)

    def pids(self) -> tuple[int, ...]:
        """Every process in it and in the sub-cgroups the server may have made."""
        return tuple(pid for path in self._subtree() for pid in _pids(os.path.join(path, "cgroup.procs")))

    def populated(self) -> bool:
        """Whether a process lives in it; a cgroup that does not exist has none."""
        return _keyed(self._read("cgroup.events")).get("populated", 0) == 1

    def kill(self) -> None:
        """SIGKILL everything in it, also what is being forked at this moment. Returns before they are gone."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:
            if self.exists():  # Linux < 5.14
                self._kill_one_by_one()
        else:
            self._kill_headless()

    def _kill_headless(self) -> None:
        """cgroup.kill signals each process's first thread alone: where that one has ended, the others live on."""
        for pid in filter(_headless, self.pids()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_one_by_one(self) -> None:
        """Frozen processes cannot fork, and SIGKILL reaches them all the same (cgroup v2 freezer)."""
        self.freeze(True)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.freeze(False)

    def freeze(self, frozen: bool) -> None:
        """Stop or continue every process in it; unlike SIGSTOP nobody inside can see or undo it."""
        with contextlib.suppress(FileNotFoundError):  # no such cgroup, or Linux < 5.2
            self._write("cgroup.freeze", "1" if frozen else "0")

    async def frozen(self, limit_s: float) -> bool:
        """Wait until `freeze(True)` has taken hold of every process."""
        return await self._wait_for("frozen", 1, limit_s)

    async def empty(self, limit_s: float) -> bool:
        """Wait until no process lives in it: True at `populated 0`, False when `limit_s` is over."""
        return await self._wait_for("populated", 0, limit_s)

    async def _wait_for(self, key: str, value: int, limit_s: float) -> bool:
        try:
            events = os.open(os.path.join(self.path, "cgroup.events"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return key == "populated"
        poller = select.epoll()  # an epoll descriptor is readable when POLLPRI, which the loop cannot ask for, is up
        try:
            poller.register(events, select.EPOLLPRI)
            return await _poll_events(events, poller, key, value, limit_s)
        finally:
            poller.close()
            os.close(events)

    def remove(self) -> bool:
        """Remove it with its sub-cgroups. False while a process, even a zombie's thread, is in it."""
        try:
            for path in reversed(list(self._subtree())):
                os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError as problem:
            if problem.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
        return True

    def oom_kills(self) -> int | None:
        """Processes of this cgroup that the kernel's OOM killer ended; None without the memory controller."""
        return _keyed(self._read("memory.events")).get("oom_kill")

    def cpu_s(self) -> float | None:
        """CPU seconds used by everything that ever ran in it (cpu.stat needs no controller); None when unreadable."""
        usage = _keyed(self._read("cpu.stat")).get("usage_usec")
        return None if usage is None else usage / 1e6

    def _subtree(self) -> Iterator[str]:
        for path, _, _ in os.walk(self.path):
            yield path

    def _read(self, name: str) -> str:
        try:
            return Path(self.path, name).read_text()
        except (FileNotFoundError, OSError):  # ENODEV: removed between open and read
            return ""

    def _write(self, name: str, text: str) -> None:
        fd = os.open(os.path.join(self.path, name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


async def _poll_events(events: int, poller: select.epoll, key: str, value: int, limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while True:
        try:
            text = os.pread(events, 4096, 0).decode()
        except OSError:  # ENODEV: somebody removed the cgroup, so nobody is in it
            return key == "populated"
        if _keyed(text).get(key) == value:
            return True
        left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        poller.poll(0)  # consumes the edge that the read above has already answered
        with anyio.move_on_after(min(left_s, POLL_S)):
            await anyio.wait_readable(poller.fileno())


def safe_name(name: str) -> str:
    """The name with everything replaced that a cgroup's directory must not have (slashes, leading dots, controls)."""
    kept = "".join(letter if letter.isalnum() or letter in "-_.@+" else "_" for letter in name)
    kept = kept if kept[:1] not in ("", ".") else "_" + kept
    if len(kept.encode()) <= NAME_BYTES:
        return kept
    # Two long names with the same beginning stay two.
    return kept.encode()[: NAME_BYTES - 17].decode(errors="ignore") + "-" + sha256(name.encode()).hexdigest()[:16]


def _mount_point(mountinfo: str) -> str | None:
    """Where cgroup2 is mounted (`/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` beside v1 hierarchies)."""
    found = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 ") and left.split()[3] == "/":
            found = found or left.split()[4].replace("\\040", " ")
    return found


def _own_cgroup(text: str) -> str | None:
    for line in text.splitlines():
        if line.startswith("0::"):
            path = line.removeprefix("0::")
            return None if path.startswith("/..") else path  # outside of our cgroup namespace
    return None


def _words(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError:
        return []


def _pids(path: str) -> list[int]:
    try:
        return [int(line) for line in Path(path).read_text().split() if line != "0"]
    except OSError:  # removed meanwhile, or a threaded cgroup, whose processes its parent lists
        return []


def _keyed(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _headless(pid: int) -> bool:
    process = procstat.read(pid)
    return process is not None and process.headless
