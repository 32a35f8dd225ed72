"""`make soak`: random histories of whole hosts for as long as one likes, every run with seeds of its own."""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time

import structlog

from tests.fleet.play import search

_LENGTHS = (20, 40, 80, 300)
_TOLD_EVERY_S = 30.0


def main() -> int:
    """0 when every history held; else the shortened one is printed, and 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fleet.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) * 1000, help="of the first history; default: now")
    parser.add_argument("--count", type=int, default=0, help="that many histories, however long they take")
    parser.add_argument("--length", type=int, default=0, help="moves in each; default: all kinds of lengths")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    end = time.monotonic() + options.minutes * 60
    told, played, moves = time.monotonic(), 0, 0
    for seed in itertools.count(options.seed):
        if played >= options.count if options.count else time.monotonic() >= end:
            break
        length = options.length or _LENGTHS[seed % len(_LENGTHS)]
        failure = search(seed, length)
        played, moves = played + 1, moves + length
        if failure is not None:
            print(f"{failure}\n--seed {seed} --length {length} --count 1")
            return 1
        if time.monotonic() - told >= _TOLD_EVERY_S:
            told = time.monotonic()
            print(f"{played} histories, {moves} moves, first seed {options.seed}", flush=True)
    print(f"{played} histories, {moves} moves, first seed {options.seed}: every invariant held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
