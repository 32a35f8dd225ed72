"""Assembles the lines of one Python traceback and finds the exception at its root."""

from __future__ import annotations

import re

import msgspec

HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+, in (?P<function>\S+)')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::(?:\s+(?P<message>.*))?)?$", re.DOTALL)
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_GROUP_MARKS = re.compile(r"^[ \t]*[+|][-+| ]*(?=\S|$)")
_LINES_KEPT = 600
_MESSAGE_LINES = 40


class Raised(msgspec.Struct):
    """One exception of a chain with the functions it passed through, outermost first."""

    line: int
    type: str = ""
    message: str = ""
    frames: list[str] = msgspec.field(default_factory=list)

    @property
    def text(self) -> str:
        """As Python prints it."""
        return f"{self.type}: {self.message}" if self.message else self.type


class TracebackBlock:
    """One traceback being read, with the chain of exceptions it reports (oldest first, as Python prints them)."""

    def __init__(self, line: int, rank: str, stamp: str, text: str, header: str = "") -> None:
        self.rank = rank
        self.stamp = stamp
        self.header = header
        self.chain: list[Raised] = [Raised(line)]
        self._line = line
        self._count = 0
        self._message_lines = 0
        self._chained = False  # a line has announced that another exception follows
        self._add(text)

    @classmethod
    def from_record(cls, line: int, rank: str, stamp: str, message: str) -> TracebackBlock:
        """From the record that carries the first line of the traceback at its end."""
        header, _, _ = message.partition(HEAD)
        return cls(line, rank, stamp, HEAD, header.strip().rstrip(":"))

    @staticmethod
    def begins(text: str) -> bool:
        """Whether this raw line begins a traceback, or goes on with one whose head is not in the log."""
        return HEAD in text or _FRAME.match(text) is not None

    @property
    def complete(self) -> bool:
        """Whether the exception's own line has been seen."""
        return bool(self.chain[-1].type)

    def takes(self, text: str, line: int) -> bool:
        """Adds the line if it belongs to this traceback."""
        if self._count >= _LINES_KEPT:
            return False
        if self.complete and HEAD in text and not self._chained:
            return False  # somebody else's traceback
        if self.complete and self._message_lines >= _MESSAGE_LINES and not text.startswith(_CHAINS):
            return False
        self._line = line
        self._add(text)
        return True

    def _add(self, text: str) -> None:
        self._count += 1
        text = _GROUP_MARKS.sub("", text) if text.lstrip()[:1] in ("|", "+") else text
        if text.startswith(_CHAINS):
            self._chained = True
            return
        raised = self.chain[-1]
        if HEAD in text:
            if raised.type or raised.frames:
                self.chain.append(Raised(self._line))
                self._message_lines = 0
            self._chained = False
            return
        if frame := _FRAME.match(text):
            if raised.type:  # a new traceback whose head was lost between two writers
                raised = Raised(self._line)
                self.chain.append(raised)
                self._message_lines = 0
            raised.frames.append(f"{_base(frame['file'])}:{frame['function']}")
            return
        self._text(raised, text)

    def _text(self, raised: Raised, text: str) -> None:
        if raised.type:
            self._message_lines += 1
            if text.strip():
                raised.message = f"{raised.message}\n{text}" if raised.message else text
            return
        if text.startswith(" ") or not text.strip():
            return  # source lines and their markers
        if exception := _EXCEPTION.match(text):
            raised.type = exception["type"].rsplit(".", 1)[-1] if "." in exception["type"] else exception["type"]
            raised.message = exception["message"] or ""
            raised.line = self._line

    @property
    def root(self) -> Raised:
        """The first exception of the chain that says anything; the later ones are its consequences."""
        told = [raised for raised in self.chain if raised.type]
        return told[0] if told else self.chain[0]

    @property
    def last(self) -> Raised:
        """The exception that ended the traceback."""
        told = [raised for raised in self.chain if raised.type]
        return told[-1] if told else self.chain[-1]

    @property
    def summary(self) -> str:
        """The root exception as Python prints it, or the innermost function when the log ends before it."""
        if self.root.text:
            return self.root.text
        return f"traceback cut off in {self.root.frames[-1]}" if self.root.frames else "traceback cut off"

    @property
    def frames(self) -> str:
        """All functions passed through, "file:function", outermost first."""
        return " ".join(frame for raised in self.chain for frame in raised.frames)

    def fields(self) -> dict[str, str]:
        """What a match carries."""
        frames = self.frames
        return {
            "header": self.header,
            "exception": self.last.type,
            "message": self.last.message[:1000],
            "root": self.root.type,
            "frames": frames[-1500:],
        }


def _base(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[-2:])
