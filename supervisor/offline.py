"""`sglsup diagnose`: reads the log of a start, whoever wrote it, and tells what happened and what to change."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import shutil
import sys
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import IO, NoReturn, cast

from supervisor.core.log.skim import Skimmer
from supervisor.core.log.stamps import like, seconds
from supervisor.core.report import as_json, page, report
from supervisor.core.story import LogStory, Origin, Outcome, Verdict
from supervisor.edge.archive import attempt_of, log_bytes, segments
from supervisor.output import for_a_reader
from supervisor.profile import Profile, load_profile, profile_names

EXIT_USAGE = 64
EXIT_UNREADABLE = 66
_EXIT = {Verdict.READY: 0, Verdict.WARMING: 0, Verdict.DEGRADED: 1, Verdict.STALLED: 1, Verdict.CRASHED: 2}
_CHUNK = 1 << 20
_SAMPLE = 256 * 1024
_GZIP = b"\x1f\x8b"
_GZIP_MEMBER = 16 + zlib.MAX_WBITS
_PACKED = 64 * 1024
_ZSTD = b"\x28\xb5\x2f\xfd"
_ANOTHERS = re.compile(
    rb"(<\d+>)?\[ *\d+\.\d{6}\] "  # dmesg
    rb"|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] "  # dmesg -T
    rb"|[\w:.+ -]{10,40} \S+ kernel: "  # syslog, journalctl -k
    rb"|\S+ \S+ \S+ \[\d\d/\w{3}/\d{4}:"  # a web server's accesses
    rb"|\d{4}/\d\d/\d\d [\d:]+ \[\w+\] \d+#\d+: "  # nginx's errors
)
_BINARY = 0.1  # of the first bytes are NULs or other controls: no log


class UnreadableError(Exception):
    """The log cannot be read; the message names the file and the reason."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def diagnose_main(arguments: Sequence[str]) -> int:
    """Exit status: 0 ready or warming, 1 degraded or stalled, 2 crashed, 64 usage, 66 unreadable."""
    given = parser().parse_args(arguments)
    try:
        with _opened(given.log) as stream:
            outcome, profile, lines = diagnose(stream, given.engine, given.now, given.exit_code)
    except UnreadableError as error:
        sys.stderr.write(f"sglsup diagnose: cannot read {_named(given.log)}: {error}\n")
        return EXIT_UNREADABLE
    with for_a_reader():
        _write(outcome, profile, lines, given)
    return _EXIT.get(outcome.verdict, EXIT_UNREADABLE)


def parser() -> _Parser:
    """The command's arguments."""
    result = _Parser(
        prog="sglsup diagnose",
        description="Tells from a log where every rank is, what went wrong, whether a restart helps, what to change.",
        epilog="exit status: 0 ready or warming, 1 degraded or stalled, 2 crashed, 64 usage, 66 unreadable",
        allow_abbrev=False,
    )
    result.add_argument("log", metavar="LOG", help="a file, plain or .gz or .zst; - reads standard input")
    result.add_argument(
        "--now", type=log_moment, metavar="T", help='the time to judge silence by, in the log\'s own zone; "now" is now'
    )
    result.add_argument("--exit-code", type=int, metavar="N", help="how the server ended (-9 or 137 for a kill)")
    result.add_argument("--engine", choices=profile_names(), help="default: recognised from the log")
    result.add_argument("--json", action="store_true", help="one JSON object")
    return result


def _named(log: str) -> str:
    return "standard input" if log == "-" else log


def log_moment(text: str) -> str:
    """The argument of --now: a time as logs print it, or "now"."""
    moment = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S") if text == "now" else text
    if not seconds(moment):
        raise argparse.ArgumentTypeError(f"cannot read {text!r} as a time: write 2026-02-26 18:27:00, 18:27:00 or now")
    return moment


def diagnose(
    stream: IO[bytes], engine: str | None = None, now: str | None = None, exit_code: int | None = None
) -> tuple[Outcome, Profile, int]:
    """The story of the whole stream, with the engine's profile and the number of lines."""
    sample = _sample(stream)
    name = engine or recognise(sample)
    profile = load_profile(name or profile_names()[0])
    story, skimmer, known, named = LogStory(profile), Skimmer(profile), engine is not None, name is not None
    for chunk in _chunks(stream, sample):
        known = known or speaks(chunk)
        named = named or recognise(chunk) is not None
        for lines in skimmer.feed(chunk):
            story.read(lines)
    story.read(skimmer.finish())
    moment = seconds(like(now, story.stamp)) if now else None
    unsaid = Origin.NAMED if named else Origin.FOREIGN if is_anothers(sample) else Origin.EXCERPT
    origin = Origin.ENGINE if known else unsaid
    return story.conclude(moment, exit_code, origin=origin), profile, skimmer.lines


@contextlib.contextmanager
def opened_log(path: str) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """The beginning of a log, and all of its bytes in chunks. Raises UnreadableError, also while it is read."""
    with _opened(path) as stream:
        sample = _sample(stream)
        yield sample, _chunks(stream, sample)


def _sample(stream: IO[bytes]) -> bytes:
    sample = _read(stream, _SAMPLE)
    if not sample:
        raise UnreadableError("it is empty")
    if _is_binary(sample):
        raise UnreadableError("this is binary data, not a log")
    return sample


def recognise(sample: bytes) -> str | None:
    """The engine whose words are in the sample most often; None when no engine's are."""
    counts = {name: _mentions(load_profile(name), sample) for name in profile_names()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def speaks(sample: bytes) -> bool:
    """Whether an engine's own words are in the sample. Its bare name stands in scripts and configurations, too."""
    return any(
        word.encode() in sample
        for profile in map(load_profile, profile_names())
        for word in profile.grammar.recognise
        if not _names(profile, word)
    )


def _names(profile: Profile, word: str) -> bool:
    """Whether the word is but what the engine is started by."""
    started_by = " ".join((*profile.command.modules, *profile.command.programs))
    return word.lower() in started_by.lower()


def is_anothers(sample: bytes) -> bool:
    """Whether all lines have the form of the kernel's or of a web server's; one or two are an excerpt."""
    lines = [line for line in sample.rpartition(b"\n")[0].splitlines() if line.strip()]  # the last may be cut
    return len(lines) > 2 and all(map(_ANOTHERS.match, lines))


def _mentions(profile: Profile, sample: bytes) -> int:
    return sum(sample.count(word.encode()) for word in profile.grammar.recognise)


def _is_binary(sample: bytes) -> bool:
    head = sample[:8192]
    controls = sum(byte < 32 and byte not in b"\t\n\r\x1b\x0c\x08" for byte in head)
    return controls > len(head) * _BINARY


def _chunks(stream: IO[bytes], sample: bytes) -> Iterator[bytes]:
    chunk = sample
    while chunk:
        yield chunk
        chunk = _read(stream, _CHUNK)


def _read(stream: IO[bytes], size: int) -> bytes:
    try:
        return stream.read(size)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The stream of plain bytes, whatever the file is packed in; told by its first bytes, not by its name."""
    if path == "-":
        yield sys.stdin.buffer
        return
    attempt, directory = attempt_of(path), os.path.dirname(path) or "."
    if attempt is not None and segments(directory, attempt):  # one of ours: there is no file, or it begins with a hole
        yield cast("IO[bytes]", _Joined(log_bytes(directory, attempt)))
        return
    try:
        raw = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    with raw:
        yield _unpacked(raw)


class _Joined:
    """A log in pieces, read as one."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int) -> bytes:
        """About so many bytes, and b"" at the end."""
        read = b""
        while len(read) < size and (piece := next(self._pieces, b"")):
            read += piece
        return read


def _unpacked(raw: io.BufferedReader) -> IO[bytes]:
    try:
        magic = raw.peek(4)[:4]
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    if magic.startswith(_GZIP):
        return cast("IO[bytes]", _Gunzipped(raw))
    return _zstd(raw) if magic == _ZSTD else raw


class _Gunzipped:
    """A gzip file of any number of members; what a damaged one holds before the damage is a log, too."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflater = zlib.decompressobj(_GZIP_MEMBER)
        self._packed = b""
        self._within_member = False

    def read(self, size: int) -> bytes:
        """At most so many bytes, and b"" at the end."""
        while True:
            packed = self._packed or self._raw.read(_PACKED)
            if not packed:
                return self._end()
            try:
                plain = self._inflater.decompress(packed, size)
            except zlib.error as error:
                return _damaged(str(error))
            self._packed, self._within_member = self._inflater.unconsumed_tail, True
            if self._inflater.eof:
                self._packed, self._within_member = self._inflater.unused_data, False
                self._inflater = zlib.decompressobj(_GZIP_MEMBER)
            if plain:
                return plain

    def _end(self) -> bytes:
        return _damaged("it ends too early") if self._within_member else b""


def _damaged(reason: str) -> bytes:
    sys.stderr.write(f"sglsup diagnose: the archive is damaged, judged as far as it could be read ({reason})\n")
    return b""


def _zstd(raw: IO[bytes]) -> IO[bytes]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UnreadableError(
            "it is zstd-compressed and the package zstandard is not installed: "
            "pip install 'sglang-supervisor[zst]', or: zstd -dc FILE | sglsup diagnose -"
        ) from None
    return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))


def _write(outcome: Outcome, profile: Profile, lines: int, given: argparse.Namespace) -> None:
    engine = profile.name if outcome.verdict is not Verdict.UNKNOWN else "unknown"  # an excerpt: the likeliest
    if given.json:
        sys.stdout.buffer.write(as_json(report(outcome, engine, lines)))
    else:
        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(page(outcome, engine, _named(given.log), lines, max(60, width), colour))


if __name__ == "__main__":
    # `python -m supervisor.offline diagnose LOG` is the command without its wrapper
    sys.exit(diagnose_main([word for word in sys.argv[1:] if word != "diagnose"]))
