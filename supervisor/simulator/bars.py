"""Draws tqdm's progress bars byte for byte, without tqdm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDTH = 10


class BarStep(NamedTuple):
    """One redraw, at this fraction of the bar's whole time."""

    at: float
    text: str


def loading_bar(description: str, total: int, seconds: float, newline: bool) -> Iterator[BarStep]:
    """The bar of the weight loader; up to 0.5.9 every redraw ends with a line feed, later only the last one."""
    for done in range(total + 1):
        percent = 100 * done // total
        meter = f"{percent:3d}% Completed | {done}/{total} [{_times(done, total, seconds)}]"
        end = "\n" if newline or done == total else ""
        yield BarStep(done / total, f"\r{description}: {meter}{end}")
    if newline:
        yield BarStep(1.0, "\n")


def capture_bar(word: str, unit: str, sizes: tuple[int, ...], avail_gb: float, seconds: float) -> Iterator[BarStep]:
    """The bar of a graph capture: from the largest size down, the first one slowest (it pays for the JIT)."""
    total = len(sizes)
    yield BarStep(0.0, f"\r  0%|          | 0/{total} [00:00<?, ?it/s]")
    for done, size in enumerate(reversed(sizes)):
        free_gb = avail_gb - 0.02 * done
        head = f"\r{word} ({unit}={size} avail_mem={free_gb:.2f} GB): "
        yield BarStep(_capture_fraction(done, total), head + _meter(done, total, seconds))
        yield BarStep(_capture_fraction(done + 1, total), head + _meter(done + 1, total, seconds))
    yield BarStep(1.0, "\n")


def plain_bar(word: str, total: int, seconds: float) -> Iterator[BarStep]:
    """A bar with a description and nothing else, such as DeepGEMM's."""
    for done in range(total + 1):
        end = "\n" if done == total else ""
        yield BarStep(done / total, f"\r{word}: {_meter(done, total, seconds)}{end}")


def _meter(done: int, total: int, seconds: float) -> str:
    return f"{100 * done // total:3d}%|{_blocks(done, total)}| {done}/{total} [{_times(done, total, seconds)}]"


def _blocks(done: int, total: int) -> str:
    full, eighth = divmod(done * _WIDTH * 8 // total, 8)
    bar = "█" * full + (_EIGHTHS[eighth] if eighth else "")
    return bar.ljust(_WIDTH)


def _times(done: int, total: int, seconds: float) -> str:
    if done == 0:
        return "00:00<?, ?it/s"
    spent = seconds * done / total
    pace = spent / done
    rate = f"{pace:5.2f}s/it" if pace >= 1 else f"{1 / max(pace, 1e-6):5.2f}it/s"
    return f"{_clock(spent)}<{_clock(pace * (total - done))}, {rate}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:d}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _capture_fraction(done: int, total: int) -> float:
    return 0.0 if done == 0 else 0.35 + 0.65 * (done - 1) / max(1, total - 1) if total > 1 else 1.0
