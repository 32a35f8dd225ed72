"""The process that looks at the GPUs, as its feed has it in hand: its lines, its period, its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

import anyio


class ReaderProcess:
    """The reader process: its lines, its period, its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if process.stdin is None or process.stdout is None:
            raise ValueError("the GPU reader needs pipes for its input and output")
        self._input, self._output = process.stdin, process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> int:
        """The descriptor to wait for."""
        return self._output.fileno()

    def read(self) -> bytes | None:
        """What has arrived; b"" at the end of its output, None when nothing has come."""
        try:
            return os.read(self.output, 1 << 16)
        except BlockingIOError:
            return None

    def tell(self, period_s: float) -> None:
        """Sets the period and asks for a sample at once."""
        # A dead child shows at its output, and a full pipe is one that hangs: both are noticed there.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._input.fileno(), f"{period_s}\n".encode())

    def kill(self) -> None:
        """SIGKILL; a child in an uninterruptible sleep dies later or never."""
        self._process.kill()

    def exit_code(self) -> int | None:
        """None while it lives. Reaps it."""
        return self._process.poll()

    async def ended(self) -> None:
        """Waits for its end, however long: the caller sets the limit."""
        try:
            handle = os.pidfd_open(self.pid)  # not reaped yet, so the number is still its own
        except OSError:  # a kernel without it (some sandboxes)
            await self._poll()
            return
        try:
            await anyio.wait_readable(handle)
        finally:
            os.close(handle)

    async def _poll(self) -> None:
        while self.exit_code() is None:  # noqa: ASYNC110 - nothing there tells of a process's end
            await anyio.sleep(0.02)

    def close(self) -> None:
        """Closes our ends of its pipes: for a living child the end of its input is the order to leave."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._output.close()


def launch_reader(period_s: float, environment: Mapping[str, str] | None = None) -> ReaderProcess:
    """Starts the reader in a session of its own, so that no signal of our terminal reaches it."""
    command = [sys.executable, "-P", "-m", "supervisor.edge.gpu", str(period_s), str(os.getpid())]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment,
        start_new_session=True,
    )
    return ReaderProcess(process)
