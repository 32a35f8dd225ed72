"""Reads the command line of the fake vLLM."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from supervisor.simulator.scenario import Kind, Scenario, ScenarioError, parse_scenarios, slowness

# Seconds per phase of a start with a warm compile cache.
PHASE_SECONDS: Mapping[str, float] = {
    "launch": 25.0, "dist-init": 8.0, "weights": 60.0, "compile": 45.0, "memory-pool": 3.0, "target-graph": 12.0,
    "warmup": 3.0,
}  # fmt: skip
_PLAYED = (Kind.NORMAL, Kind.STALL, Kind.CRASH, Kind.SLOW, Kind.OOM_KILL, Kind.IGNORE_TERM, Kind.EXIT_ON_CONFIG)


class Options(NamedTuple):
    """Everything a run depends on."""

    model: str = "/models/target"
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    tensor_parallel_size: int = 1
    max_model_len: int = 131072
    enforce_eager: bool = False
    api_key: str = ""
    scenarios: tuple[Scenario, ...] = ()
    speed: float = 1.0
    phase_seconds: tuple[tuple[str, float], ...] = ()
    shards: int = 16

    def seconds(self, phase: str) -> float:
        """Unscaled seconds of a phase, with the slowness that a scenario gives it."""
        seconds = dict(self.phase_seconds).get(phase, PHASE_SECONDS[phase])
        return seconds * slowness(self.scenarios, phase)

    @property
    def phases(self) -> tuple[str, ...]:
        """In the order of the start; without graphs nothing is compiled or captured."""
        return tuple(one for one in PHASE_SECONDS if not (self.enforce_eager and one in ("compile", "target-graph")))


def parse_options(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Unknown options are tolerated together with their values. Raises ScenarioError for what cannot be played."""
    values = vars(_parser(environ).parse_known_args(list(argv))[0])
    del values["engine"]
    values["model"] = values.pop("model_flag") or values["model"]
    texts = values.pop("scenario") or [environ.get("SGLSUP_SIM_SCENARIO", "")]
    pairs = [pair.partition("=") for pair in values.pop("phase_seconds").split(",") if pair]
    options = Options(
        **values,
        scenarios=parse_scenarios(texts),
        phase_seconds=tuple((name, float(seconds)) for name, _, seconds in pairs),
    )
    _check(options)
    return options


def _check(options: Options) -> None:
    phases = {*options.phases, "serving", ""}
    if options.speed <= 0:
        raise ScenarioError(f"cannot play at speed {options.speed}: it is above 0")
    if unknown := [name for name, _ in options.phase_seconds if name not in PHASE_SECONDS]:
        raise ScenarioError(f"cannot set the seconds of {unknown[0]!r}: phases are {' '.join(PHASE_SECONDS)}")
    for one in options.scenarios:
        if one.kind not in _PLAYED:
            raise ScenarioError(f"cannot play {one.kind.value!r} with this engine")
        if one.phase not in phases:
            raise ScenarioError(f"cannot play phase {one.phase!r}: this run has {' '.join(sorted(phases - {''}))}")


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m supervisor.simulator --engine vllm", description="A fake vLLM server.", allow_abbrev=False
    )
    defaults = Options()
    add = parser.add_argument
    add("--engine", help=argparse.SUPPRESS)
    add("model", nargs="?", default=defaults.model)
    add("--model", dest="model_flag", default="")
    add("--served-model-name", default="")
    add("--host", default=defaults.host)
    add("--port", type=int, default=defaults.port)
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--max-model-len", type=int, default=defaults.max_model_len)
    add("--enforce-eager", action="store_true")
    add("--api-key", default="")
    add("--scenario", action="append", metavar="SPEC", help="what goes wrong; may be repeated")
    add("--speed", type=float, default=float(environ.get("SGLSUP_SIM_SPEED", "1")), help="time scale, 100 is fast")
    add("--phase-seconds", default="", metavar="PHASE=S,...", help="unscaled seconds of single phases")
    add("--shards", type=int, default=defaults.shards, help="number of weight files the loading bar counts")
    return parser
