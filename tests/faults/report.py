"""Tries the whole fault matrix and writes docs/faults.md: what must hold, and what was seen.

python -m tests.faults.report [FILE]     some minutes; status 1 when a row did not hold or could not be tried
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("FAULTS_THOROUGH", "1")  # read by the rows when they are imported

from tests.faults.matrix import MATRIX
from tests.faults.row import Row, Seen, missing, tried

FILE = Path(__file__).parents[2] / "docs" / "faults.md"
HEAD = """# Faults

`make faults` tries every row below on a real daemon with fake engines and writes this page. The rows are `tests/faults/*.py`; `make slow` runs
them, too, with shorter pauses and fewer repeats, and `make test` runs a few.

Every row ends with the same reckoning, beside what it says itself:

- the daemon ends in order when it is asked to, and no process of the row is left;
- no second copy of a server was ever started: the kernel keeps a lock that all processes of a copy inherit;
- the journal is readable, and no row is missing from it that it does not count as lost;
- the daemon's log has no traceback and no error of its own;
- the status was asked every 0.1 s, and answered every time that there was a daemon.

*Status* is the median and the worst of those answers, over the socket, from connecting to the last byte. *Lag* is the worst that the daemon
said of itself in `sglsup_loop_lag_seconds` (taken every 5 s; "–" in a row that was over before) and `sglsup_decision_overdue_seconds`. Both are of a
whole row with all that ran beside it, engines that start and clients included: the figures are seen, the words are asserted.
"""


class Outcome(NamedTuple):
    """Of one row; exactly one of the three last is set."""

    row: Row
    took_s: float
    seen: Seen | None = None
    broken: str = ""
    lacking: str = ""


def main() -> int:
    file = Path(sys.argv[1]) if sys.argv[1:] else FILE
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sf-") as libraries:
        outcomes = {title: [attempt(row, Path(libraries)) for row in rows] for title, rows in MATRIX.items()}
    took_s = time.monotonic() - begun
    file.write_text(page(outcomes, took_s))
    all_outcomes = [outcome for rows in outcomes.values() for outcome in rows]
    held = sum(outcome.seen is not None for outcome in all_outcomes)
    print(f"{held} of {len(all_outcomes)} rows held, in {took_s:.0f} s; see {file}")
    return 0 if held == len(all_outcomes) else 1


def attempt(row: Row, libraries: Path) -> Outcome:
    begun = time.monotonic()
    outcome = Outcome(row, 0.0, lacking=missing(row))
    if not outcome.lacking:
        try:
            outcome = Outcome(row, 0.0, tried(row, libraries))
        except Exception as problem:  # noqa: BLE001 - the other rows are to be tried all the same, and the page says it
            outcome = Outcome(row, 0.0, broken=f"{type(problem).__name__}: {problem}")
    outcome = outcome._replace(took_s=time.monotonic() - begun)
    print(f"{outcome.took_s:5.1f} s  {row.fault}: {words(outcome)}", flush=True)
    return outcome


def words(outcome: Outcome) -> str:
    if outcome.seen is not None:
        return outcome.seen.what
    return f"**did not hold**: {outcome.broken.strip()}"[:600] if outcome.broken else f"not tried: {outcome.lacking}"


def page(outcomes: dict[str, list[Outcome]], took_s: float) -> str:
    rows = [outcome for group in outcomes.values() for outcome in group]
    held = sum(outcome.seen is not None for outcome in rows)
    machine = f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {os.cpu_count()} cores"
    parts = [HEAD, f"This run: {held} of {len(rows)} rows held, {took_s:.0f} s in all, on {machine}.\n"]
    parts += [f"## {title}\n\n{table(group)}" for title, group in outcomes.items()]
    return "\n".join(parts)


def table(outcomes: list[Outcome]) -> str:
    lines = ["| fault | what must hold | what was seen | status | lag | took |", "|---|---|---|---|---|---|"]
    for outcome in outcomes:
        cells = (outcome.row.fault, outcome.row.must, words(outcome), *figures(outcome.seen), f"{outcome.took_s:.0f} s")
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def figures(seen: Seen | None) -> tuple[str, str]:
    if seen is None:
        return "", ""
    lag = "–" if seen.lag_s is None else f"{seen.lag_s * 1000:.0f} ms"
    return f"{seen.usual_status_s * 1000:.0f}, {seen.status_s * 1000:.0f} ms", lag


if __name__ == "__main__":
    sys.exit(main())
