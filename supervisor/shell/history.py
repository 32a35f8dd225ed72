"""Keeps how each server's healthy starts went, for the deadlines of later ones."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import structlog

from supervisor.actions import StartRecord

KEPT = 100

log = structlog.get_logger()


class HistoryStore:
    """One small file a server, replaced atomically. A lost history costs learning, never a server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, server: str) -> tuple[StartRecord, ...]:
        """The starts of a server, oldest first. What cannot be read is moved aside and said."""
        path = self._path(server)
        try:
            return msgspec.json.decode(path.read_bytes(), type=tuple[StartRecord, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as problem:
            aside = path.with_suffix(".broken")
            with contextlib.suppress(OSError):
                path.replace(aside)
            log.warning("history", problem=f"cannot use {path}: {problem}; moved aside to {aside}")
            return ()

    def add(self, server: str, record: StartRecord) -> None:
        """One more healthy start. A full disk loses it, with a word in the log."""
        records = (*self.read(server), record)[-KEPT:]
        path = self._path(server)
        new = path.with_suffix(".new")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.encode(records))
            new.replace(path)
        except OSError as problem:
            log.warning("history", problem=f"cannot write {path}: {problem.strerror}; this start teaches nothing")

    def _path(self, server: str) -> Path:
        return self._directory / f"{server}.json"
