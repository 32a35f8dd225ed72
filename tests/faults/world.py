"""What a daemon meets that is preloaded with `world.c`: another wall clock, no more processes, a disk that refuses."""

from __future__ import annotations

import errno
import mmap
import struct
import subprocess
from pathlib import Path

from tests.nvml import compiler

SOURCE = Path(__file__).with_name("world.c")
DAY_S = 86400
_WALL, _SPAWN, _DISK, _LEFT, _FAILED, _DELAY, _INOTIFY = range(7)  # the fields of `struct orders`
_FIELD = struct.Struct("q")


def build(folder: Path) -> Path:
    """Compiles the library into `folder`, once."""
    library = folder / "world.so"
    command = compiler()
    if command is None:
        raise RuntimeError("cannot build what stands between a daemon and the C library: no C compiler")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    if not library.exists():
        subprocess.run([command, *flags, "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
    return library


class World:
    """One daemon's: `environment` goes into the daemon's, every change is met by its next call."""

    def __init__(self, folder: Path, library: Path, disk: Path) -> None:
        path = folder / "orders"
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._orders = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environment = {"LD_PRELOAD": str(library), "FAULTS_ORDERS": str(path), "FAULTS_DISK": str(disk)}

    def jump_clock(self, days: float) -> None:
        """The wall clock shows that many days more (less) than the real one."""
        self._set(_WALL, round(days * DAY_S))

    def refuse_processes(self, number: int = errno.EAGAIN) -> None:
        """posix_spawn fails with this error until `allow_processes`."""
        self._set(_SPAWN, number)

    def allow_processes(self) -> None:
        self._set(_SPAWN, 0)

    def fail_disk_call(self, which: int, number: int = errno.ENOSPC) -> None:
        """The call with this number, counted from now, that changes something on the disk fails; no other does."""
        self._set(_FAILED, 0)
        self._set(_DISK, number)
        self._set(_LEFT, which)

    def fail_disk(self, number: int) -> None:
        """All such calls fail, as on a disk that the kernel has made read-only; 0: none does any more."""
        self._set(_FAILED, 0)
        self._set(_DISK, number)
        self._set(_LEFT, -1 if number else 0)

    def slow_disk(self, milliseconds: int) -> None:
        """Every such call takes that much longer."""
        self._set(_DELAY, milliseconds)

    def refuse_watches(self, number: int = errno.EMFILE) -> None:
        """inotify_init1 fails: the user has no instance left."""
        self._set(_INOTIFY, number)

    @property
    def disk_failed(self) -> bool:
        """Whether that call has come."""
        return self._get(_FAILED) > 0

    def close(self) -> None:
        self._orders.close()

    def _get(self, field: int) -> int:
        number: int = _FIELD.unpack_from(self._orders, field * _FIELD.size)[0]
        return number

    def _set(self, field: int, value: int) -> None:
        _FIELD.pack_into(self._orders, field * _FIELD.size, value)
