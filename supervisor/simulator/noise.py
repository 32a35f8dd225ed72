"""Holds the lines of a healthy start that mean nothing: libraries talking, warnings that look bad and are not."""

from __future__ import annotations

from supervisor.simulator.beat import Beat
from supervisor.simulator.dialect import Who

_C10D = (
    "[W1129 08:00:23.512338812 socket.cpp:755] [c10d] The client socket cannot be initialized to connect to "
    "[localhost]:29571 (errno: 97 - Address family not supported by protocol).\n"
)


def communicators(world: int, nodes: int) -> list[Beat]:
    """Gloo counts its peers once for each group; both libraries write to stdout without any prefix."""
    gloo = f"[Gloo] Rank {{rank}} is connected to {world - 1} peer ranks. "
    gloo += f"Expected number of connected peer ranks is : {world - 1}\n"
    beats = [Beat(0.1, _C10D, raw=True)]
    beats += [Beat(0.2 + 0.1 * number, gloo, raw=True, stdout=True) for number in range(3)]
    beats.append(Beat(0.5, "sglang is using nccl==2.27.5"))
    if nodes > 1:
        beats.append(Beat(0.7, "Custom allreduce is disabled because this process group spans across nodes."))
    else:
        beats.append(Beat(0.7, "NCCL version 2.27.5+cuda12.9\n", Who.FIRST, raw=True, stdout=True))
    return beats


def ignored_imports() -> list[Beat]:
    start = "Ignore import error when loading sglang.srt.models."
    return [Beat(0.95, f"{start}{model}: No module named 'cutlass'") for model in ("mimo_v2", "kimi_vl")]


def loud_but_harmless() -> list[Beat]:
    return [
        Beat(0.02, "Using default MoE config. Performance might be sub-optimal!", Who.FIRST),
        Beat(0.82, "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0. "
                   "This may lead to less accurate results!"),
    ]  # fmt: skip
