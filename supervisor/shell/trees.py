"""Remembers on disk which process trees are alive, so that a daemon that comes back never starts a second copy."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from supervisor.events import Spawned
from supervisor.smallfile import UnusableFileError, read_json, replace_json

COST = "a daemon that comes back will not find its processes by it"  # what a note that cannot be written costs


class TreeRecord(msgspec.Struct, frozen=True):
    """One living tree: who it is and how its processes are found."""

    server: str
    boot_id: str
    marker: str
    spawned: Spawned
    devices: tuple[int, ...] = ()  # its lease
    recorder: int = 0  # pid of who writes the exit status down; 0 where the kernel tells it
    started_with: str = ""  # the settings that its process was given, as `config.started_with` has them


class TreeStore:
    """One small file a server in the state directory, replaced atomically. A spawn waits for it.

    The page cache survives our own death, so there is no fsync: after a power cut no tree lives that a note could name.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._boot_id = boot_id()

    def put(
        self,
        server: str,
        marker: str,
        spawned: Spawned,
        devices: tuple[int, ...] = (),
        recorder: int = 0,
        started_with: str = "",
    ) -> None:
        """Note a tree. OSError when the state directory cannot be written."""
        record = TreeRecord(server, self._boot_id, marker, spawned, devices, recorder, started_with)
        replace_json(self.path(server), record)

    def remove(self, server: str) -> None:
        """The tree is proven empty: forget it, as far as the disk lets us."""
        with contextlib.suppress(OSError):
            self.clear(server)

    def clear(self, server: str) -> None:
        """As `remove`. OSError when the disk refuses."""
        for path in (self.path(server), self.exit_path(server)):
            path.unlink(missing_ok=True)

    def exit_path(self, server: str) -> Path:
        """Where a recorder writes how the leader ended."""
        return self._directory / f"{server}.exit"

    def read(self) -> tuple[list[TreeRecord], list[str]]:
        """Trees of this boot, and a line for each file that could not be understood (moved aside, never lost)."""
        records: list[TreeRecord] = []
        problems: list[str] = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                record = read_json(path, TreeRecord)
            except UnusableFileError as problem:
                problems.append(str(problem))
                continue
            if record is None:  # taken away while we looked
                continue
            if record.boot_id == self._boot_id:
                records.append(record)
            else:
                path.unlink(missing_ok=True)  # of another boot: nothing of it can live
        return records, problems

    def path(self, server: str) -> Path:
        """Where the note is."""
        return self._directory / f"{server}.json"


def boot_id() -> str:
    """Names this boot: pids and the monotonic clock mean nothing in another one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
