"""Holds the daemon still for one picture, so that it can be drawn in a thread beside the decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from supervisor.api.control import Clock, Control, DaemonInfo
from supervisor.config import Config
from supervisor.core.gpus.views import GpusView
from supervisor.snapshot import ServerSnapshot


class Shown(Protocol):
    """What the page needs of the daemon."""

    def snapshots(self) -> Sequence[ServerSnapshot]:
        """All servers in the order of the configuration."""
        ...

    def clock(self) -> Clock:
        """Now."""
        ...

    def gpus(self) -> GpusView:
        """All devices."""
        ...

    def daemon_info(self) -> DaemonInfo:
        """Facts about the daemon."""
        ...

    def config(self) -> Config:
        """The configuration that is in force."""
        ...


class Still:
    """Made on the event loop; what it holds never changes."""

    def __init__(self, control: Control) -> None:
        self._snapshots, self._clock, self._gpus = tuple(control.snapshots()), control.clock(), control.gpus()
        self._info, self._config = control.daemon_info(), control.config()

    def snapshots(self) -> Sequence[ServerSnapshot]:
        """All servers in the order of the configuration."""
        return self._snapshots

    def clock(self) -> Clock:
        """Then."""
        return self._clock

    def gpus(self) -> GpusView:
        """All devices."""
        return self._gpus

    def daemon_info(self) -> DaemonInfo:
        """Facts about the daemon."""
        return self._info

    def config(self) -> Config:
        """The configuration that was in force."""
        return self._config
