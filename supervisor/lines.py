"""Cuts a stream of bytes into lines of bounded length, at `\\n` and at `\\r`.

Progress bars redraw themselves with `\\r`, and from one engine version on they contain no newline until they are full,
so a reader that waits for `\\n` sees minutes of silence. A line can be of any length (request logs, 200 MB of garbage):
the first bytes are kept, the rest is only counted.
"""

from __future__ import annotations

import re

import msgspec

KEPT_BYTES = 16 * 1024

_NEWLINE = 0x0A
_ENDS = re.compile(rb"\r\n|[\r\n]")
# CSI and OSC sequences, then two-character escapes; what is left of C0, DEL and C1 controls goes too.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]?")
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Line(msgspec.Struct, frozen=True):
    """One line without its end. `end_offset` is the byte after it in the stream.

    `number` is that of grep and sed: it counts `\\n` from 1, so the states of one progress bar share a number.
    """

    number: int
    text: str
    end_offset: int
    truncated: bool = False
    partial: bool = False  # its end has not come yet


class LineCutter:
    """Feed it bytes as they come; it answers the lines that are complete and holds at most `limit` bytes."""

    def __init__(self, limit: int = KEPT_BYTES, offset: int = 0, number: int = 0) -> None:
        self._limit = limit
        self._offset = offset  # of the next byte to come
        self._number = number
        self._kept = bytearray()
        self._cut = 0  # bytes of the open line that were not kept
        self._after_return = False  # the last byte was \r: a \n that follows belongs to it

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that end in this chunk. Empty ones are counted and not returned."""
        if self._after_return and chunk:
            self._after_return = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
                self._offset += 1
                self._number += 1
        lines: list[Line] = []
        begin = 0
        for end in _ENDS.finditer(chunk):
            self._keep(chunk, begin, end.start())
            begin = end.end()
            line = self._close(self._offset + begin)
            if line is not None:
                lines.append(line)
            if chunk[begin - 1] == _NEWLINE:
                self._number += 1
        self._keep(chunk, begin, len(chunk))
        self._after_return = chunk[-1:] == b"\r"
        self._offset += len(chunk)
        return lines

    def split(self, chunk: bytes) -> list[bytes] | None:
        """The lines that end in this chunk, as bytes, when `\\n` alone ends them; None (nothing done) when it does not.

        Many times faster than `feed`, for who reads few of them: `line` makes one of these. Empty ones are returned.
        """
        if self._after_return or self._cut or b"\r" in chunk:
            return None
        pieces = chunk.split(b"\n")
        pieces[0] = bytes(self._kept) + pieces[0]
        rest = pieces.pop()
        self._kept[:] = rest[: self._limit]
        self._cut = len(rest) - len(self._kept)
        self._offset += len(chunk)
        self._number += len(pieces)
        return pieces

    def line(self, number: int, piece: bytes) -> Line:
        """The line that `split` answered, as `feed` would have. Its offset is not known."""
        text = clean(piece[: self._limit].decode(errors="replace"))
        return Line(number, text, 0, truncated=len(piece) > self._limit)

    def skip(self, length: int, newlines: int) -> None:
        """Counts whole lines that somebody else has looked at. Only between lines."""
        self._offset += length
        self._number += newlines
        self._after_return = False

    @property
    def lines(self) -> int:
        """How many lines have ended so far."""
        return self._number

    @property
    def between_lines(self) -> bool:
        """Whether the last byte fed was the end of a line."""
        return not self._kept and not self._cut

    def pending(self) -> Line | None:
        """The line whose end has not come yet (a progress bar, mostly), as far as it is known."""
        if not self._kept:
            return None
        text = clean(self._kept.decode(errors="replace"))
        return Line(self._number + 1, text, self._offset, truncated=self._cut > 0, partial=True)

    @property
    def held_bytes(self) -> int:
        """What the open line occupies."""
        return len(self._kept)

    def _keep(self, chunk: bytes, begin: int, end: int) -> None:
        take = min(end - begin, self._limit - len(self._kept))
        self._kept += chunk[begin : begin + take]
        self._cut += end - begin - take

    def _close(self, end_offset: int) -> Line | None:
        if not self._kept:
            return None
        text = clean(self._kept.decode(errors="replace"))
        line = Line(self._number + 1, text, end_offset, truncated=self._cut > 0)
        self._kept.clear()
        self._cut = 0
        return line


def clean(text: str) -> str:
    """The text without terminal escapes, control characters and marks that reorder what is shown."""
    if text.isprintable():
        return text
    return _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\n", " "))


def printable(text: str, instead: str = "?") -> str:
    """The text with `instead` for each character that a reader would not see: nothing of it moves a cursor."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else instead for letter in text)
