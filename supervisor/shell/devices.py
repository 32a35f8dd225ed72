"""Answers whether a server's devices are free, from the newest sample of the GPU feed."""

from __future__ import annotations

from supervisor.events import DevicesChecked


class Devices:
    """What is known about the host's GPUs."""

    def check(self, server: str, attempt: int, gpus: tuple[int, ...]) -> DevicesChecked:
        """Whether `gpus` have their memory back; None with a reason when nobody can tell."""
        if not gpus:
            return DevicesChecked(attempt, True)
        return DevicesChecked(attempt, None, f"nobody can tell whether the GPUs of {server} are free", devices=gpus)
