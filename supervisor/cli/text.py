"""Text fit for a terminal: no control characters from outside, colour only where somebody looks."""

from __future__ import annotations

import codecs
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TextIO

_WIDTH = 100
_COLOURS = {
    "RUNNING": "32",
    "STARTING": "36",
    "STOPPING": "36",
    "BACKOFF": "33",
    "EXITED": "33",
    "FATAL": "31",
    "UNKNOWN": "31",
}


def clean(text: object) -> str:
    """Untrusted text on one line: whatever could move a cursor or change the reading direction becomes "?"."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def plain_name(name: str) -> str:
    """NAME of NAME, NAME:NAME and NAME:*, as supervisorctl writes it: each server is a group of its own name."""
    group, colon, process = name.partition(":")
    return group if colon and process in ("", "*", group) else name


def say(line: str) -> None:
    """One line for the user."""
    sys.stdout.write(f"{line}\n")


def complain(line: str) -> None:
    """One line about a failure, after what was said before it."""
    sys.stdout.flush()
    sys.stderr.write(f"{clean(line)}\n")


def meant(word: str, known: Iterable[str], nearness: float = 0.5) -> str:
    """`, did you mean "WORD"?`, or nothing when none of them is near."""
    import difflib  # only for who has mistyped: its import takes time

    near = difflib.get_close_matches(word, known, 1, nearness)
    return f', did you mean "{clean(near[0])}"?' if near else ""


def complain_unknown(name: str, known: Iterable[str]) -> None:
    """With a guess, where there is one; beside supervisorctl's line, which scripts read."""
    if guess := meant(name, known):
        complain(f"no such server: {name}{guess}")


def complain_each(before: str, text: str, after: str = "") -> None:
    """One line for each of the text's: a broken configuration has several problems."""
    for line in text.split("\n"):
        complain(f"{before}{line}{after}")


def coloured(state: str, width: int) -> str:
    """A state word padded to `width`, coloured on a terminal unless NO_COLOR is set."""
    padded = f"{clean(state):<{width}}"
    if state not in _COLOURS or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return padded
    return f"\x1b[{_COLOURS[state]}m{padded}\x1b[0m"


def change(event: Any) -> str:
    """What an event says has changed: `weights -> memory-pool: why`; what has no successor "is over"."""
    before, after = clean(event["before"]), clean(event["after"])
    told = f"{before} -> {after}" if before and after else after or f"{before or 'it'} is over"
    return f"{told}: {clean(event['reason'])}" if event["reason"] else told


def as_json(value: object) -> str:
    """One line of JSON in ASCII: terminals and pipes get the same harmless bytes."""
    import json

    return json.dumps(value).replace("\x7f", "\\u007f")


class LogCleaner:
    """Turns pieces of a log into printable text; lines end at \\n and at \\r, as progress bars have it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._after_return = False

    def feed(self, data: bytes) -> str:
        """The printable form of the next bytes."""
        return "".join(map(self._letter, self._decoder.decode(data)))

    def _letter(self, letter: str) -> str:
        glued = letter == "\n" and self._after_return
        self._after_return = letter == "\r"
        if glued:
            return ""
        if letter in "\r\n":
            return "\n"
        return letter if letter == "\t" or letter.isprintable() else "?"


def width(stream: TextIO) -> int:
    """Columns of the terminal behind the stream; 100 when there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except (OSError, ValueError):  # io.UnsupportedOperation, for a stream without a descriptor, is both
        return _WIDTH


def wrapped(line: str, columns: int, indent: int = 2) -> list[str]:
    """The line broken between words; what goes on hangs by the indent. A path that is too long is left whole."""
    import textwrap

    hanging = " " * indent
    wrap = textwrap.TextWrapper(columns, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return wrap.wrap(line) or [""]


def local(at: str, *, precise: bool = True) -> str:
    """A moment of the daemon's JSON in the reader's time zone, which it names: the engine's log and a colleague's
    terminal may have another one.
    """
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(at).astimezone()
    except (ValueError, OverflowError):  # not from a daemon of ours
        return clean(at)
    fraction = f".{moment.microsecond // 1000:03d}" if precise else ""
    return moment.strftime("%Y-%m-%d %H:%M:%S") + fraction + moment.strftime("%z").replace("+0000", "Z")


def fitted(line: str, columns: int) -> str:
    """The line cut to so many columns, as far as one letter takes one."""
    return line if len(line) <= columns else f"{line[: max(0, columns - 3)]}..."
