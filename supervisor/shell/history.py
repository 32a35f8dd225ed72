"""Keeps how each server's healthy starts went, for the deadlines of later ones."""

from __future__ import annotations

import errno
from pathlib import Path

import structlog

from supervisor.actions import StartRecord
from supervisor.smallfile import UnreadNowError, UnusableFileError, read_json, replace_json

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
            return self._written(server)
        except OSError as problem:
            log.warning("history", problem=problem.strerror)
            return ()

    def add(self, server: str, record: StartRecord) -> None:
        """One more healthy start, for the next `write`."""
        self._unwritten.setdefault(server, []).append(record)

    def write(self, server: str) -> None:
        """Write down what was added, as fast as the disk is. OSError when it refuses: the next `write` has it then."""
        added = tuple(self._unwritten.get(server, ()))  # more may come meanwhile
        replace_json(self.path(server), (*self._written(server), *added)[-KEPT:])
        del self._unwritten[server][: len(added)]

    def _written(self, server: str) -> tuple[StartRecord, ...]:
        try:
            return read_json(self.path(server), tuple[StartRecord, ...]) or ()
        except UnreadNowError as problem:  # written now, what is there would be lost
            raise OSError(errno.EAGAIN, str(problem)) from None
        except UnusableFileError as problem:
            log.warning("history", problem=str(problem))
            return ()

    def path(self, server: str) -> Path:
        """Where the server's history is."""
        return self._directory / f"{server}.json"
