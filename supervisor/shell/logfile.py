"""Writes lines into a file from a thread of its own, so that a disk that hangs costs lines and never a decision."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from pathlib import Path

QUEUED_MAX = 10_000
SIZE_BYTES = 16 * 2**20
KEPT = 4  # older files beside the present one: NAME.1 is the youngest
CLOSE_LIMIT_S = 2.0
RETRY_S = 5.0  # on a disk that refuses


class LogFile:
    """One file, renamed to NAME.1 at its size. `write` never waits."""

    def __init__(self, path: str, size_bytes: int = SIZE_BYTES, kept: int = KEPT) -> None:
        self._path = Path(path)
        self._size_bytes = size_bytes
        self._kept = kept
        self._lines: deque[str] = deque()
        self._news = threading.Condition()
        self._closing = False
        self._lost = 0
        self._failing = False
        self._last_try = False
        self._thread = threading.Thread(target=self._run, name="log file", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Whole lines. With too many waiting the new ones are dropped; it is said how many."""
        with self._news:
            if len(self._lines) < QUEUED_MAX:
                self._lines.append(text)
            else:
                self._lost += 1
            self._news.notify()

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Write what waits, for a bounded time."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(limit_s)

    def _run(self) -> None:
        while (text := self._next()) is not None:
            try:
                full = self._append(text)
            except OSError as problem:
                self._say_once("write", problem)
                if self._is_given_up(text):
                    return
            else:
                self._taken(full)

    def _next(self) -> str | None:
        """All that waits; None when it is closed and empty. Waits without limit: most of the time nothing happens."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self._closing)
            if not self._lines:
                return None
            text = "".join(self._lines)
            if self._lost:
                text += f'{{"event": "lines of this log were lost", "count": {self._lost}}}\n'
            self._lines.clear()
            self._lost = 0
            return text

    def _taken(self, full: bool) -> None:
        try:
            if full:
                self._shift()
            self._failing = False
        except OSError as problem:
            self._say_once("move aside", problem)

    def _is_given_up(self, text: str) -> bool:
        """What the disk has not taken is tried again before what came meanwhile; at the end once and no more."""
        with self._news:
            ended = self._closing or self._news.wait_for(lambda: self._closing, RETRY_S)
            waiting = [*text.splitlines(keepends=True), *self._lines]
            self._lines = deque(waiting[:QUEUED_MAX])
            self._lost += len(waiting) - len(self._lines)
            lost = self._lost + len(self._lines)
        if ended and self._last_try:
            sys.stderr.write(f"sglsup: the log file {self._path} ends without its last {lost} lines\n")
            return True
        self._last_try = ended
        return False

    def _append(self, text: str) -> bool:
        """Whether it is full now.

        Opened each time: somebody may have moved it away, and a daemon writes a few lines a minute.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self._path, flags, 0o640)
        try:
            begin, data = os.fstat(file).st_size, text.encode(errors="backslashreplace")
            try:
                while data:
                    data = data[os.write(file, data) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, begin)  # it is written again as a whole: no half line, and none twice
                raise
            return os.fstat(file).st_size >= self._size_bytes
        finally:
            os.close(file)

    def _shift(self) -> None:
        for number in range(self._kept, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            younger = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if younger.exists():
                younger.replace(older)

    def _say_once(self, what: str, problem: OSError) -> None:
        if not self._failing:
            self._failing = True
            sys.stderr.write(
                f"sglsup: cannot {what} the log file {self._path}: {problem.strerror}; it is tried again\n"
            )
