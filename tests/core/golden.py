"""What the reader finds in the recorded logs, kept as text files; `python tests/core/golden.py` writes them anew."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path

from supervisor.core.log.grammar import LogReader
from supervisor.core.log.skim import Skimmer
from supervisor.core.report import Report, report
from supervisor.core.story import LogStory
from supervisor.lines import LineCutter
from supervisor.profile import load_profile

LOGS = Path(__file__).parent.parent / "data" / "sglang" / "logs"


def recorded() -> list[Path]:
    return sorted(LOGS.glob("*.log.gz"))


def matches(path: Path) -> str:
    """One line per match: line, rank, rule; runs of one bar as their count."""
    reader = LogReader(load_profile("sglang"), 1)
    found = reader.read(LineCutter().feed(gzip.decompress(path.read_bytes()) + b"\n")) + reader.finish()
    return "\n".join(_runs((match.rank or "-", match.rule, match.line) for match in found)) + "\n"


def _runs(found: Iterator[tuple[str, str, int]]) -> Iterator[str]:
    for (rank, rule), run in itertools.groupby(found, key=lambda one: one[:2]):
        lines = [line for _, _, line in run]
        times = f" x{len(lines)}" if len(lines) > 1 else ""
        yield f"{lines[0]:5} {rank:8} {rule}{times}"


def story(path: Path) -> Report:
    told, skimmer = LogStory(load_profile("sglang")), Skimmer(load_profile("sglang"))
    for lines in skimmer.feed(gzip.decompress(path.read_bytes())):
        told.read(lines)
    told.read(skimmer.finish())
    return report(told.conclude(), "sglang", skimmer.lines)


def phases(path: Path) -> str:
    """Each rank's way through the start, with seconds."""
    spans = story(path).timeline
    rows = [
        f"{span.rank:8} {span.phase:20} {span.begin} {span.seconds if span.seconds is not None else '-'}"
        for span in spans
    ]
    return "\n".join(rows) + "\n"


def main() -> None:
    for path in recorded():
        path.with_name(path.name.replace(".log.gz", ".matches.txt")).write_text(matches(path))
        path.with_name(path.name.replace(".log.gz", ".phases.txt")).write_text(phases(path))


if __name__ == "__main__":
    main()
