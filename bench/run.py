"""Runs the registered benches and prints one table, ratio first."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from bench.harness import BENCHES, Measurement

HEADER = ("ratio", "what", "ours", "peer", "peer's", "unit", "budget")
LEGEND = "Ratio: how many times better than the peer in this run; above 1 is good"
REPORT_HEAD = """# Benchmarks

<!-- Written by `make bench`. -->

One run of `make bench` on {cores} cores (load average {load:.0f}), Python {python}. Every figure stands beside a peer
measured in the same run; trust the ratios more than the numbers. {legend}.
A budget is what we promise ourselves, in the unit of its row."""

MODULES = (
    "bench.client",
    "bench.cli",
    "bench.ingestion",
    "bench.log_diagnose",
    "bench.idle",
    "bench.growth",
    "bench.respawn",
    "bench.readiness",
    "bench.nvml_hang",
    "bench.escapees",
    "bench.scrape",
    "bench.page",
    "bench.stalls",
    "bench.reclaim",
)


def main() -> None:
    for module in MODULES:
        import_module(module)
    arguments = parser().parse_args()
    measured = {name: list(run(name)) for name in arguments.bench or BENCHES}
    measurements = [one for group in measured.values() for one in group]
    print(table(measurements))
    if arguments.json:
        rows = [one._asdict() | {"better": one.better.value, "ratio": one.ratio} for one in measurements]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.report:
        arguments.report.write_text(report(measured))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench", description=__doc__)
    made.add_argument(
        "bench", nargs="*", choices=[[], *BENCHES], help=f"of {', '.join(BENCHES)}; all when none is named"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    made.add_argument("--report", type=Path, metavar="FILE", help="write a page of documentation with them to FILE")
    return made


def run(name: str) -> Iterable[Measurement]:
    print(f"{name} ...", file=sys.stderr, flush=True)
    yield from BENCHES[name]()


def table(measurements: list[Measurement]) -> str:
    """For a terminal."""
    rows = [HEADER, *(row(one) for one in measurements)]
    widths = [max(len(line[column]) for line in rows) for column in range(len(HEADER))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in rows)
    return "\n".join([*lines, "", LEGEND])


def row(one: Measurement) -> tuple[str, ...]:
    ratio = "-" if one.ratio is None else figure(one.ratio)
    peer_value = "-" if one.peer_value is None else figure(one.peer_value)
    budget = "" if one.budget is None else f"{one.budget:g} {'kept' if one.met else 'MISSED'}"
    return (ratio, one.what, figure(one.ours), one.peer, peer_value, one.unit, budget)


def figure(value: float) -> str:
    """Three digits that count: 0.047, 1.52, 30.1, 1018."""
    digits = 3 if abs(value) < 0.1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def report(measured: Mapping[str, list[Measurement]]) -> str:
    """A page for docs/: every bench with its purpose and its table."""
    parts = [
        REPORT_HEAD.format(
            legend=LEGEND, cores=os.cpu_count(), load=os.getloadavg()[2], python=platform.python_version()
        )
    ]
    for name, measurements in measured.items():
        purpose = (sys.modules[BENCHES[name].__module__].__doc__ or "").strip().splitlines()[0]
        parts.append(f"## {name}\n\n{purpose}\n\n" + "\n".join(_markdown([HEADER, *map(row, measurements)])))
    return "\n\n".join(parts) + "\n"


def _markdown(rows: list[tuple[str, ...]]) -> Iterator[str]:
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for line in body:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"


if __name__ == "__main__":
    main()
