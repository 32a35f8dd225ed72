"""What both kinds of files say in the same words: names of servers and accounts, signals, modes."""

from __future__ import annotations

import re
import signal

from supervisor.convert.draft import ConversionError
from supervisor.units import is_signal

NAME_MAX = 64


def server_name(text: str) -> str:
    """The nearest name that the daemon takes, except that it may be taken already."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("-._")[:NAME_MAX] or "server"


def account(name: str | None) -> str | None:
    """A user or group as a server has it: None for root, whom it is started as unless it names somebody."""
    return None if name in ("root", "0") else name


def signal_name(text: str, place: str) -> str:
    """TERM, SIGTERM or 15. Raises ConversionError."""
    word = text.strip().upper()
    if re.fullmatch(r"[0-9]{1,3}", word, re.ASCII) and int(word) in {one.value for one in signal.Signals}:
        return signal.Signals(int(word)).name.removeprefix("SIG")
    name = word.removeprefix("SIG")
    if not is_signal(name):
        raise ConversionError(f"{place}: {text[:40]!r} is no signal")
    return name


def octal(text: str, place: str) -> int:
    """A mode such as 022. Raises ConversionError."""
    if not re.fullmatch(r"(?:0o?)?[0-7]{1,4}", text, re.ASCII):
        raise ConversionError(f"{place}: expected an octal mode such as 022, got {text[:40]!r}")
    return int(text.replace("o", ""), 8)
