"""A small disk that only the daemon sees: a tmpfs in a mount namespace of its own, which can be full or read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

HOLD = 'mount --make-rprivate / && mkdir -p "$1" && mount -t tmpfs -o "size=$2" none "$1" && echo held && exec cat'
FILLER = ".filler"


def missing() -> str:
    """Why there can be no such disk here; "" when there can."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        return "needs root, unshare and nsenter"
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, timeout=20)
    return "" if done.returncode == 0 else "needs the right to mount"


class Volume:
    """Use as a context manager; start the daemon by `prefix`. What it has there is found below `inside`."""

    def __init__(self, path: Path, size: str, environment: Mapping[str, str]) -> None:
        command = ["unshare", "-m", "sh", "-c", HOLD, "sh", str(path), size]
        self._path = path
        self._holder = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "held\n", "the tmpfs could not be mounted"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The mount goes with the last process of its namespace."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(20)
        self._holder.stdout.close()

    @property
    def prefix(self) -> list[str]:
        return ["nsenter", "-t", str(self._holder.pid), "-m", "--"]

    @property
    def inside(self) -> Path:
        """The disk as seen from outside."""
        return Path(f"/proc/{self._holder.pid}/root{self._path}")

    def fill(self) -> int:
        """Leave no byte; how many were taken."""
        written = 0
        with (self.inside / FILLER).open("ab", buffering=0) as file:
            for size in (65536, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        written += file.write(bytes(size))
        return written

    def empty(self) -> None:
        """Give the space back."""
        (self.inside / FILLER).unlink(missing_ok=True)

    def remount(self, mode: str) -> None:
        """`ro` or `rw`; the kernel refuses `ro` while a file is open for writing."""
        subprocess.run([*self.prefix, "mount", "-o", f"remount,{mode}", str(self._path)], check=True, timeout=20)
