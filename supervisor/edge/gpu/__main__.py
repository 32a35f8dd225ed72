"""Looks at the GPUs in a process of its own, which may hang or die without harm: one JSON line a period.

`python -m supervisor.edge.gpu PERIOD_S PARENT_PID`: a number on standard input changes the period and asks for a look
at once, its end ends the process. The lines are `supervisor.devices.GpuReport`. Only the standard library and pynvml
are imported, here and in `nvml.py`: this process counts in the daemon's memory. `feed.py` is the other end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from supervisor.edge.gpu.nvml import NoDevice, Reader

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LINE_END = b"\n"


def main(arguments: list[str]) -> None:
    """Looks once a period until standard input ends. Leaves by `os._exit`: a thread may hang in the driver."""
    period_s, parent = float(arguments[0]), int(arguments[1])
    die_with(parent)
    try:
        import pynvml
    except ImportError as error:
        leave("GpuAbsent", f"nvidia-ml-py cannot be imported: {error}")
    try:
        reader = Reader(pynvml)
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded, NoDevice) as error:
        leave("GpuAbsent", str(error))
    except pynvml.NVMLError as error:
        leave("GpuBlind", f"NVML does not start: {error}")
    with contextlib.suppress(AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)  # compiling pynvml, where no .pyc is kept, leaves much of the heap free
    try:
        look_for_ever(reader, period_s)
    except pynvml.NVMLError as error:
        leave("GpuBlind", f"NVML stopped answering: {error}")


def die_with(parent: int) -> None:
    """The kernel kills us when the parent dies, however it dies; Ctrl-C at a terminal is the parent's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)


def leave(kind: str, reason: str) -> NoReturn:
    """The last line says why."""
    send({"type": kind, "at": time.monotonic(), "reason": reason})
    os._exit(0)


def send(report: dict[str, Any]) -> None:
    """One line, whole: the Xid thread writes too."""
    line = json.dumps(report, separators=(",", ":")).encode() + LINE_END
    with _output:
        while line:
            line = line[os.write(1, line) :]


_output = threading.Lock()


def look_for_ever(reader: Reader, period_s: float) -> None:
    """One sample a period, and one at once after each line of input and each Xid."""
    waker, wake = os.pipe()
    events = reader.subscribe()  # before the first sample: no Xid is missed from then on
    if events is not None:
        threading.Thread(target=watch_xids, args=(reader, events, wake), daemon=True).start()
    while True:
        send(reader.sample())
        ready, _, _ = select.select([0, waker], [], [], period_s)
        if waker in ready:
            os.read(waker, 4096)
        if 0 in ready:
            period_s = read_period(os.read(0, 4096), period_s)


def read_period(data: bytes, period_s: float) -> float:
    """The last whole number of what the parent wrote; nothing at all means that it has closed the pipe."""
    if not data:
        os._exit(0)
    numbers = data.split()
    return float(numbers[-1]) if numbers else period_s


def watch_xids(reader: Reader, events: Any, wake: int) -> None:
    """Reports each Xid itself, since the main thread may just hang in the driver because of it."""
    with contextlib.suppress(reader.nvml.NVMLError):  # the driver is gone: the next sample says so
        for device, xid in reader.xids(events):
            send({"type": "XidSeen", "at": time.monotonic(), "device": device, "xid": xid})
            os.write(wake, b"x")


if __name__ == "__main__":
    main(sys.argv[1:])
