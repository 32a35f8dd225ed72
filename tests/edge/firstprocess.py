"""Plays PID 1 for whoever leaves descriptors with it: holds them by name, and nothing else."""

import contextlib
import os
import socket
from pathlib import Path


class Systemd:
    """Holds duplicates of what it is sent, at most `room`."""

    def __init__(self, folder: Path, room: int = 8) -> None:
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)
        self._room = room
        self.held: list[tuple[str, int]] = []
        self.polled: list[str] = []  # what it would drop when it hangs up

    def listen(self) -> None:
        """Do what the messages that have arrived want."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 4096, 16)
                fields = dict(line.split("=", 1) for line in data.decode().splitlines())
                if "FDNAME" in fields:
                    self._heed(fields, descriptors)

    def _heed(self, fields: dict[str, str], descriptors: list[int]) -> None:
        name = fields["FDNAME"]
        assert ":" not in name
        assert len(name) <= 255
        if fields.get("FDSTOREREMOVE") == "1":
            for held in [one for one in self.held if one[0] == name]:
                self.held.remove(held)
                os.close(held[1])
        for descriptor in descriptors if fields.get("FDSTORE") == "1" else []:
            if fields.get("FDPOLL") != "0":
                self.polled.append(name)
            if len(self.held) < self._room:
                self.held.append((name, descriptor))
            else:
                os.close(descriptor)

    def names(self) -> list[str]:
        self.listen()
        return [name for name, _ in self.held]

    def close(self) -> None:
        for _, descriptor in self.held:
            os.close(descriptor)
        self.socket.close()
