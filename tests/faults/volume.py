"""A small disk that only the daemon sees, in a mount namespace of its own: it can be full, read-only, or hang."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

HOLD = 'mount --make-rprivate / && mkdir -p "$1" && mount -t tmpfs -o "size=$2" none "$1" && echo held && exec cat'
HOLD_IMAGE = 'mount --make-rprivate / && mkdir -p "$1" && mount -o loop "$2" "$1" && echo held && exec cat'
FREEZE = "mount --make-rprivate / && mount -o loop image . && fsfreeze -f . && fsfreeze -u ."
IMAGE_BYTES = 16 << 20
FILLER = ".filler"


def missing() -> str:
    """Why there can be no such disk here; "" when there can."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        return "needs root, unshare and nsenter"
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, timeout=20)
    return "" if done.returncode == 0 else "needs the right to mount"


def missing_freezer() -> str:
    """Why there can be no disk that hangs here; "" when there can."""
    if (lacking := missing()) or not all(map(shutil.which, ("mkfs.ext4", "fsfreeze"))):
        return lacking or "needs mkfs.ext4 and fsfreeze"
    with tempfile.TemporaryDirectory(prefix="sf-") as folder:
        make_image(Path(folder) / "image")
        done = subprocess.run(["unshare", "-m", "sh", "-c", FREEZE], cwd=folder, capture_output=True, timeout=20)
    return "" if done.returncode == 0 else "needs the right to mount an image and to freeze it"


def make_image(path: Path) -> Path:
    """An empty ext4 in a file."""
    path.touch()
    os.truncate(path, IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(path)], check=True, capture_output=True, timeout=20)
    return path


class Volume:
    """Use as a context manager; start the daemon by `prefix`. What it has there is found below `inside`."""

    def __init__(self, path: Path, size: str, environment: Mapping[str, str], hold: str = HOLD) -> None:
        command = ["unshare", "-m", "sh", "-c", hold, "sh", str(path), size]
        self._path = path
        self._frozen = False
        self._holder = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "held\n", "the disk could not be mounted"

    @classmethod
    def of_image(cls, path: Path, image: Path, environment: Mapping[str, str]) -> Self:
        """An ext4 that can be frozen."""
        return cls(path, str(make_image(image)), environment, HOLD_IMAGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The mount goes with the last process of its namespace."""
        if self._frozen:  # nobody who waits for it could end
            self.thaw()
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

    def freeze(self) -> None:
        """From now on every call that would change something waits in the kernel, as on a disk that hangs."""
        self._run("fsfreeze", "-f", str(self._path))
        self._frozen = True

    def thaw(self) -> None:
        """The calls that wait go on."""
        self._frozen = False
        self._run("fsfreeze", "-u", str(self._path))

    def remount(self, mode: str) -> None:
        """`ro` or `rw`; the kernel refuses `ro` while a file is open for writing."""
        self._run("mount", "-o", f"remount,{mode}", str(self._path))

    def _run(self, *command: str) -> None:
        subprocess.run([*self.prefix, *command], check=True, timeout=20)
