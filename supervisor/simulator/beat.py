"""Holds one line of a step: when, by which ranks, and on which stream."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.simulator.dialect import Who


class Beat(NamedTuple):
    """A write at this fraction of its step; `{rank}` in the text is the rank's number."""

    at: float
    text: str
    who: Who = Who.ALL
    raw: bool = False  # no timestamp, no prefix, no line end added
    stdout: bool = False  # C++ libraries and the access log write to stdout
