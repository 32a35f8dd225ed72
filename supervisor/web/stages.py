"""Which coarse stage a phase belongs to, as its place among the stages: the colour of its bars."""

from __future__ import annotations

import functools

from supervisor.profile import ProfileError, load_profile

COLOURS = 8


def colour_of(engine: str, phase: str) -> int:
    """The number of a colour, the same for the same phase everywhere on the page."""
    return _phases(engine).get(phase, COLOURS - 1)


def stages(engine: str) -> tuple[str, ...]:
    """The coarse stages in their order."""
    return _profile_stages(engine)


@functools.lru_cache(maxsize=16)
def _phases(engine: str) -> dict[str, int]:
    order = _profile_stages(engine)
    if not order:
        return {}
    colours = {}
    for phase in load_profile(engine).phases:
        for name in (phase.name, phase.speculative_name):
            if name and phase.stage in order:
                colours[name] = order.index(phase.stage) % COLOURS
    return colours


@functools.lru_cache(maxsize=16)
def _profile_stages(engine: str) -> tuple[str, ...]:
    try:
        return load_profile(engine).stages
    except ProfileError:  # a server of an engine that is not installed any more is still shown
        return ()
