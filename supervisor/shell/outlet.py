"""Writes the daemon's log without ever waiting for its reader: a full pipe or disk costs lines, never a decision."""

from __future__ import annotations

import os
import select

_PIECE_BYTES = 4096  # PIPE_BUF: a pipe that polls as writable takes this much at once


class Outlet:
    """A text stream on a descriptor. What cannot be written now is dropped; the next line that can be says how many."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._line = ""
        self.lost = 0

    def write(self, text: str) -> int:
        """Keep the text until its line ends, then write the line."""
        self._line += text
        if self._line.endswith("\n"):
            self._put(self._line)
            self._line = ""
        return len(text)

    def flush(self) -> None:
        """Nothing is held back but an unfinished line."""

    def _put(self, line: str) -> None:
        notice = f"({self.lost} lines of this log were lost: nobody took them)\n" if self.lost else ""
        if self._written((notice + line).encode(errors="backslashreplace")):
            self.lost = 0
        else:
            self.lost += 1

    def _written(self, data: bytes) -> bool:
        try:
            while data:
                if not any(ready & select.POLLOUT for _, ready in self._poll.poll(0)):
                    return False  # a full pipe, or a terminal that somebody has stopped
                data = data[os.write(self._descriptor, data[:_PIECE_BYTES]) :]
        except OSError:  # nobody reads any more, or the disk is full
            return False
        return True
