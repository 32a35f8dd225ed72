"""Keeps what must survive the daemon about each server, in one small file each, replaced atomically."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import structlog

from supervisor.saved import FORMAT, SavedServer

log = structlog.get_logger()


class StateStore:
    """Written before what was decided is carried out, so that a death in between loses the deed and not the decision.

    The page cache survives our own death, so there is no fsync: after a power cut nothing of the record could be used.
    """

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self.boot_id = boot_id
        self._problem = ""

    def put(self, saved: SavedServer) -> None:
        """Replace the server's record. A disk that refuses is told once, and costs the next daemon its memory."""
        path = self._path(saved.name)
        new = path.with_suffix(".new")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.encode(saved))
            new.replace(path)
        except OSError as problem:
            self._tell(f"cannot write {path}: {problem.strerror}; a daemon that comes back will not know better")
        else:
            self._problem = ""

    def read(self, server: str) -> SavedServer | None:
        """The server's record of whatever boot; None when there is none that can be used."""
        path = self._path(server)
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=SavedServer)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as problem:
            self._set_aside(path, str(problem))
            return None
        if saved.format != FORMAT or saved.name != server:
            self._set_aside(path, f"it has format {saved.format} and is of {saved.name}")
            return None
        return saved

    def remove(self, server: str) -> None:
        """Forget the server: the next daemon starts it as configured."""
        with contextlib.suppress(OSError):
            self._path(server).unlink(missing_ok=True)

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_suffix(".broken")
        with contextlib.suppress(OSError):
            path.replace(aside)
        log.warning("state", problem=f"cannot use {path}: {why}; moved aside to {aside}")

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("state", problem=problem)
        self._problem = problem

    def _path(self, server: str) -> Path:
        return self._directory / f"{server}.json"
