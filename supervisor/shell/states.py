"""Keeps what must survive the daemon about each server, in one small file each, replaced atomically."""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from supervisor.core.memory import unusable
from supervisor.saved import FORMAT, SavedServer
from supervisor.smallfile import UnusableFileError, read_json, replace_json, set_aside

COST = "a daemon that comes back will not know better"  # what a record that cannot be written costs

log = structlog.get_logger()


class StateStore:
    """Written before what was decided is carried out, so that a death in between loses the deed and not the decision.

    The page cache survives our own death, so there is no fsync: after a power cut nothing of the record could be used.
    Reading and writing take as long as the disk does: while servers run, in a thread (`shell/writer.py`).
    """

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self.boot_id = boot_id

    def put(self, saved: SavedServer) -> None:
        """Replace the server's record. OSError when the disk refuses, which costs the next daemon its memory."""
        replace_json(self.path(saved.name), saved)

    def leave(self, saved: SavedServer) -> None:
        """The server ends with its daemon: the next one starts it as configured, and knows what went wrong before.

        A disk that refuses costs that knowledge; it must not leave the server down.
        """
        try:
            self.put(msgspec.structs.replace(saved, left=True))
        except OSError:
            self.clear(saved.name)

    def read(self, server: str) -> SavedServer | None:
        """The server's record of whatever boot; None when there is none that can be used."""
        path = self.path(server)
        try:
            saved = read_json(path, SavedServer)
            if saved is not None and (saved.format != FORMAT or saved.name != server):
                raise set_aside(path, f"it has format {saved.format} and is of {saved.name}")
            if saved is not None and (why := unusable(saved)):
                raise set_aside(path, why)
        except UnusableFileError as problem:
            log.warning("state", problem=str(problem))
            return None
        return saved

    def clear(self, server: str) -> None:
        """Forget the server: the next daemon starts it as configured. OSError when the disk refuses."""
        self.path(server).unlink(missing_ok=True)

    def path(self, server: str) -> Path:
        """Where the server's record is."""
        return self._directory / f"{server}.json"
