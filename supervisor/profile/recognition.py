"""Tells which engine a command starts."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.profile.command import recognises
from supervisor.profile.load import load_profile, profile_names


def engine_of(command: Sequence[str], default: str) -> str:
    """The engine whose module or program the command starts; `default` for any other command."""
    names = (default, *(name for name in profile_names() if name != default))
    return next((name for name in names if recognises(load_profile(name), command)), default)
