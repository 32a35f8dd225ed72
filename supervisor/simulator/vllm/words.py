"""Writes what vLLM writes: a prefix with process, level, time and file before every line of a record."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

_SITE = "/opt/vllm/lib/python3.12/site-packages/vllm/"
SHUTDOWN = ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete.")
BROADCAST_WAITS = (
    "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are "
    "hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization)."
)
ENGINE_DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root "
    "cause."
)
ULIMIT = (
    "Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit. This "
    "can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n"
)


class Voice:
    """One process's part of the log; a record of several lines is one write, as in the real one."""

    def __init__(self, name: str, clock: float | None = None) -> None:
        self.name = name
        self._clock = clock  # seconds of the epoch that a rendered log stands at; None: now

    def at(self, moment: float) -> Voice:
        """The same process at another moment of a rendered log."""
        return Voice(self.name, moment)

    def record(self, place: str, text: str, level: str = "INFO") -> bytes:
        pid = os.getpid() if self._clock is None else 4242
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime() if self._clock is None else time.gmtime(self._clock))
        prefix = f"({self.name} pid={pid}) {level} {stamp} [{place}] "
        return ("\r\n".join(prefix + line for line in text.split("\n")) + "\n").encode()

    def traceback(self, place: str, header: str, error: str, frames: Iterable[tuple[str, str]]) -> bytes:
        return self.record(place, "\n".join([header, *_traceback(error, frames)]), "ERROR")


def raw_traceback(error: str, frames: Iterable[tuple[str, str]], header: str = "") -> bytes:
    """As Python itself prints it, without any prefix."""
    lines = [header] if header else []
    return ("\n".join([*lines, *_traceback(error, frames)]) + "\n").encode()


def _traceback(error: str, frames: Iterable[tuple[str, str]]) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for path, function in frames:
        lines += [f'  File "{_SITE}{path}", line 477, in {function}', "    return func(*args, **kwargs)"]
    return [*lines, *error.split("\n")]


def uvicorn(text: str) -> bytes:
    return f"INFO:     {text}\n".encode()


def shard_bar(done: int, total: int, seconds: float) -> bytes:
    """The bar of the weight loader: a carriage return before each state, a line feed behind each."""
    spent = seconds * done / total
    rate = f"{spent / done:5.2f}s/it" if done else "?it/s"
    times = f"00:{int(spent):02}<00:{int(seconds - spent):02}" if done else "00:00<?"
    state = f"{100 * done // total:3}% Completed | {done}/{total} [{times}, {rate}]"
    return f"\rLoading safetensors checkpoint shards: {state}\n".encode()


def capture_bar(done: int, total: int) -> bytes:
    blocks = "█" * (10 * done // total)
    head = f"\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE): {100 * done // total:3}%|{blocks:10}|"
    return f"{head} {done}/{total} [00:{done // 8:02}<00:00,  8.11it/s]".encode() + (b"\n" if done == total else b"")
