"""Turns signals into readable bytes, so that one poll waits for them, for descriptors and for the clock."""

from __future__ import annotations

import os
import select
import signal


class Signals:
    """Only one may exist in a process: set_wakeup_fd has one descriptor."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(self._read, False)
        signal.set_wakeup_fd(write)
        self.poll = select.poll()
        self.poll.register(self._read, select.POLLIN)

    def take(self, number: signal.Signals) -> None:
        """From now on this signal is reported by wait() in place of its default action."""
        signal.signal(number, lambda *_: None)

    def wait(self, timeout_s: float | None) -> tuple[list[signal.Signals], list[int]]:
        """Signals that came and descriptors that are ready, after at most timeout_s (None: until something comes)."""
        ready = [fd for fd, _ in self.poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))]
        if self._read not in ready:
            return [], ready
        numbers = [signal.Signals(number) for number in os.read(self._read, 64)]
        return numbers, [fd for fd in ready if fd != self._read]
