"""Times the steps of an attempt's end, from the first one until the devices have their memory back."""

from __future__ import annotations

from msgspec.structs import replace

from supervisor.snapshot import StopView


class StopClock:
    """One per attempt. It runs from the first step, whatever that is."""

    def __init__(self, view: StopView = StopView(), began: float | None = None) -> None:  # noqa: B008 - frozen
        self.view = view
        self.began = began

    @property
    def stage(self) -> str:
        """The step that is under way; "" before the first."""
        return self.view.stage

    def begins(self, stage: str, now: float) -> None:
        """A step of the end: evidence, then term. The first one starts the clock."""
        self.began = now if self.began is None else self.began
        self.view = replace(self.view, stage=stage)

    def killing(self, now: float) -> None:
        """What is left is being killed; the first time counts."""
        self.begins("kill", now)
        if self.view.kill_s is None:
            self.view = replace(self.view, kill_s=self._passed_s(now))

    def exited(self, now: float) -> None:
        """The leader ended."""
        self.begins(self.stage, now)
        self.view = replace(self.view, exit_s=self._passed_s(now))

    def emptied(self, killed: int, now: float) -> None:
        """No process is left."""
        self.begins(self.stage, now)
        self.view = replace(self.view, empty_s=self._passed_s(now), killed=killed)

    def memory_back(self, now: float) -> None:
        """The devices have their memory back; the first time counts."""
        if self.view.empty_s is not None and self.view.free_s is None:
            self.view = replace(self.view, free_s=self._passed_s(now))

    def _passed_s(self, now: float) -> float:
        return now - (self.began if self.began is not None else now)
