"""Assembles the lines of one Python traceback and finds the exception at its root."""

from __future__ import annotations

import re

import msgspec

HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+, in (?P<function>\S+)')
_EXCEPTION = re.compile(r"(?P<type>(?:\w+\.)*[A-Z]\w*)(?::(?:\s*(?P<message>.*))?)?$", re.DOTALL)
# an exception's last line alone, as excerpts have it
_BARE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Fault|Timeout|Failure)|Exception|SystemExit)(?::\s|\s*$)"
)
# Python's fault handler: a head per thread, then frames with the newest first
_FATAL = re.compile(r"Fatal Python error: (?P<message>.*)")
_THREAD = re.compile(r"(?P<current>Current thread|Thread) 0x\w+.*\(most recent call first\)")
_STACK_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+ in (?P<function>\S+)')
_FATAL_TYPE = "Fatal Python error"
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_GROUP_MARKS = re.compile(r"^[ \t]*[+|][-+| ]*(?=\S|$)")
_LINES_KEPT = 600
_MESSAGE_LINES = 40
_TEXT_KEPT = 4096  # letters of one line: as many as a signature is searched in
_FRAME_KEPT = 300


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
        self.prefixed = False  # every line of it has a prefix of its own
        self.chain: list[Raised] = [Raised(line)]
        self._line = line
        self._count = 0
        self._stack = False
        self._source = ""  # the line of source that was shown last
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
        return HEAD in text or any(pattern.match(text) for pattern in (_FRAME, _BARE, _FATAL, _THREAD))

    @property
    def line(self) -> int:
        """The newest line of it."""
        return self._line

    @property
    def complete(self) -> bool:
        """Whether the exception's own line has been seen."""
        return bool(self.chain[-1].type)

    def goes_on(self, text: str) -> bool:
        """Whether a record with its own prefix belongs to this traceback."""
        if self.complete:
            return text.startswith(_CHAINS) or not text.strip() or (self._chained and HEAD in text)
        return text.startswith(" ") or not text.strip() or self.begins(text) or _EXCEPTION.match(text) is not None

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
        text = text[:_TEXT_KEPT]
        text = _GROUP_MARKS.sub("", text) if text.lstrip()[:1] in ("|", "+") else text
        if text.startswith(_CHAINS):
            self._chained = True
            return
        if self._add_stack(text):
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

    def _add_stack(self, text: str) -> bool:
        """Lines of Python's fault handler; only the stack of the thread that failed counts."""
        raised = self.chain[-1]
        if fatal := _FATAL.match(text):
            raised.type, raised.message, raised.line = _FATAL_TYPE, fatal["message"], self._line
            return True
        if thread := _THREAD.match(text):
            self._stack = thread["current"] != "Thread"
            if not raised.type:
                raised.type, raised.message, raised.line = _FATAL_TYPE, "stack of the current thread", self._line
            return True
        frame = _STACK_FRAME.match(text)
        if frame is None:
            return False
        if self._stack:
            raised.frames.insert(0, f"{_base(frame['file'])}:{frame['function']}")
        return True

    def _text(self, raised: Raised, text: str) -> None:
        if raised.type:
            self._message_lines += 1
            if text.strip() and len(raised.message) < _TEXT_KEPT:
                raised.message = f"{raised.message}\n{text}" if raised.message else text
            return
        if text.startswith(" ") or not text.strip():
            if text.strip(" ^~"):
                self._source = text.strip()
            return
        if exception := _EXCEPTION.match(text):
            raised.type = exception["type"].rsplit(".", 1)[-1] if "." in exception["type"] else exception["type"]
            raised.message = exception["message"] or self._source_of(raised.type)
            raised.line = self._line

    def _source_of(self, kind: str) -> str:
        """A bare assertion says nothing itself: the line of source under its frame does."""
        return f"({self._source})" if kind == "AssertionError" and self._source.startswith("assert") else ""

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
    return "/".join(path.rsplit("/", 3)[-3:])[-_FRAME_KEPT:]
