"""Keeps how each server's healthy starts went, for the deadlines of later ones."""

from __future__ import annotations

from pathlib import Path

import structlog

from supervisor.actions import StartRecord
from supervisor.smallfile import UnusableFileError, read_json, replace_json

KEPT = 100
COST = "its last healthy start teaches nothing yet"  # what a history that cannot be written costs

log = structlog.get_logger()


class HistoryStore:
    """One small file a server, replaced atomically. A lost history costs learning, never a server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unwritten: dict[str, list[StartRecord]] = {}

    def read(self, server: str) -> tuple[StartRecord, ...]:
        """The starts of a server, oldest first. What cannot be read is moved aside and said."""
        try:
            return read_json(self.path(server), tuple[StartRecord, ...]) or ()
        except UnusableFileError as problem:
            log.warning("history", problem=str(problem))
            return ()

    def add(self, server: str, record: StartRecord) -> None:
        """One more healthy start, for the next `write`."""
        self._unwritten.setdefault(server, []).append(record)

    def write(self, server: str) -> None:
        """Write down what was added, as fast as the disk is. OSError when it refuses: the next `write` has it then."""
        added = tuple(self._unwritten.get(server, ()))  # more may come meanwhile
        replace_json(self.path(server), (*self.read(server), *added)[-KEPT:])
        del self._unwritten[server][: len(added)]

    def path(self, server: str) -> Path:
        """Where the server's history is."""
        return self._directory / f"{server}.json"
