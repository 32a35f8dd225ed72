"""Runs the registered benches and prints one table, ratio first."""

import argparse
import json
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from bench.harness import BENCHES, Measurement

MODULES = (
    "bench.client",
    "bench.cli",
    "bench.ingestion",
    "bench.log_diagnose",
    "bench.idle",
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
    measurements = [one for name in arguments.bench or BENCHES for one in run(name)]
    print(table(measurements))
    if arguments.json:
        rows = [one._asdict() | {"better": one.better.value, "ratio": one.ratio} for one in measurements]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench", description=__doc__)
    made.add_argument(
        "bench", nargs="*", choices=[[], *BENCHES], help=f"of {', '.join(BENCHES)}; all when none is named"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    return made


def run(name: str) -> Iterable[Measurement]:
    print(f"{name} ...", file=sys.stderr, flush=True)
    yield from BENCHES[name]()


def table(measurements: list[Measurement]) -> str:
    header = ("ratio", "what", "ours", "peer", "peer's", "unit")
    rows = [header, *(row(one) for one in measurements)]
    widths = [max(len(line[column]) for line in rows) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in rows)
    return "\n".join([*lines, "", "ratio: how many times better than the peer in this run; above 1 is good"])


def row(one: Measurement) -> tuple[str, ...]:
    ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
    peer_value = "-" if one.peer_value is None else f"{one.peer_value:.1f}"
    return (ratio, one.what, f"{one.ours:.1f}", one.peer, peer_value, one.unit)


if __name__ == "__main__":
    main()
