"""`sglsup diagnose`: reads the log of a start, whoever wrote it, and tells what happened and what to change."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import IO, NoReturn

from supervisor.core.log.skim import Skimmer
from supervisor.core.log.stamps import like, seconds
from supervisor.core.report import as_json, page, report
from supervisor.core.story import LogStory, Origin, Outcome, Verdict
from supervisor.logsource import UnreadableError, beginning, chunks, is_anothers, log_moment, opened, recognise, speaks
from supervisor.output import columns, for_a_reader
from supervisor.profile import Profile, load_profile, profile_names

EXIT_USAGE = 64
EXIT_UNREADABLE = 66
_EXIT = {Verdict.READY: 0, Verdict.WARMING: 0, Verdict.DEGRADED: 1, Verdict.STALLED: 1, Verdict.CRASHED: 2}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 ready or warming, 1 degraded or stalled, 2 crashed, 64 usage, 66 unreadable."""
    given = parser().parse_args(arguments)
    try:
        with opened(given.log) as stream:
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


def diagnose(
    stream: IO[bytes], engine: str | None = None, now: str | None = None, exit_code: int | None = None
) -> tuple[Outcome, Profile, int]:
    """The story of the whole stream, with the engine's profile and the number of lines."""
    sample = beginning(stream)
    name = engine or recognise(sample)
    profile = load_profile(name or profile_names()[0])
    story, skimmer, known, named = LogStory(profile), Skimmer(profile), engine is not None, name is not None
    for chunk in chunks(stream, sample):
        known = known or speaks(chunk)
        named = named or recognise(chunk) is not None
        for lines in skimmer.feed(chunk):
            story.read(lines)
    story.read(skimmer.finish())
    moment = seconds(like(now, story.stamp)) if now else None
    unsaid = Origin.NAMED if named else Origin.FOREIGN if is_anothers(sample) else Origin.EXCERPT
    origin = Origin.ENGINE if known else unsaid
    return story.conclude(moment, exit_code, origin=origin), profile, skimmer.lines


def _write(outcome: Outcome, profile: Profile, lines: int, given: argparse.Namespace) -> None:
    engine = profile.name if outcome.verdict is not Verdict.UNKNOWN else "unknown"  # an excerpt: the likeliest
    if given.json:
        sys.stdout.buffer.write(as_json(report(outcome, engine, lines)))
    else:
        width = columns()
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(page(outcome, engine, _named(given.log), lines, max(60, width), colour))
