"""Counts how often a duration fell below each of some bounds."""

from __future__ import annotations

import msgspec


class Histogram(msgspec.Struct):
    """How often a value fell below each bound (each counted alone, the last one is infinity), and the sum."""

    counts: list[int]
    total: float = 0.0

    def add(self, value: float, bounds: tuple[float, ...]) -> None:
        """One more observation."""
        self.counts[sum(value > bound for bound in bounds)] += 1
        self.total += value


def histogram(bounds: tuple[float, ...]) -> Histogram:
    """One without observations."""
    return Histogram([0] * (len(bounds) + 1))


def observe(book: dict[str, Histogram], key: str, value: float, bounds: tuple[float, ...]) -> None:
    """One more observation in the histogram of that key, which is made with its first one."""
    if key not in book:
        book[key] = histogram(bounds)
    book[key].add(value, bounds)
