"""Keeps how each server's healthy starts went, for the deadlines of later ones."""

from __future__ import annotations

from pathlib import Path

import structlog

from supervisor.actions import StartRecord
from supervisor.smallfile import UnusableFileError, read_json, replace_json

KEPT = 100

log = structlog.get_logger()


class HistoryStore:
    """One small file a server, replaced atomically. A lost history costs learning, never a server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, server: str) -> tuple[StartRecord, ...]:
        """The starts of a server, oldest first. What cannot be read is moved aside and said."""
        try:
            return read_json(self._path(server), tuple[StartRecord, ...]) or ()
        except UnusableFileError as problem:
            log.warning("history", problem=str(problem))
            return ()

    def add(self, server: str, record: StartRecord) -> None:
        """One more healthy start. A full disk loses it, with a word in the log."""
        path = self._path(server)
        try:
            replace_json(path, (*self.read(server), record)[-KEPT:])
        except OSError as problem:
            log.warning("history", problem=f"cannot write {path}: {problem.strerror}; this start teaches nothing")

    def _path(self, server: str) -> Path:
        return self._directory / f"{server}.json"
