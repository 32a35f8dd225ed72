"""Reads the command line and the environment of the fake engine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from supervisor.simulator.dialect import DIALECTS
from supervisor.simulator.scenario import Scenario, parse_scenarios

DEFAULT_DIALECT = "0.5.9"

# Seconds per step of a start on eight GPUs with warm caches; the sum is some four minutes.
PHASE_SECONDS: Mapping[str, float] = {
    "import": 12.0, "launch": 10.0, "dist-init": 6.0, "weights": 120.0, "memory-pool": 4.0, "jit": 60.0,
    "target-graph": 24.0, "verify-graph": 24.0, "draft-weights": 6.0, "draft-pool": 1.5, "draft-graph": 16.0,
    "draft-extend-graph": 6.0, "pd-init": 3.0, "warmup": 4.0,
}  # fmt: skip


class Options(NamedTuple):
    """Everything a run depends on."""

    model_path: str = "/models/target"
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 30000
    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    nnodes: int = 1
    node_rank: int = 0
    base_gpu_id: int = 0
    enable_dp_attention: bool = False
    speculative_algorithm: str = ""
    speculative_draft_model_path: str = "/models/draft"
    speculative_num_steps: int = 3
    speculative_eagle_topk: int = 1
    speculative_num_draft_tokens: int = 4
    disable_cuda_graph: bool = False
    skip_server_warmup: bool = False
    enable_metrics: bool = False
    log_level: str = "info"
    api_key: str = ""
    watchdog_timeout_s: float = 300.0
    disaggregation_mode: str = "null"
    attention_backend: str = "fa3"
    dialect: str = DEFAULT_DIALECT
    scenarios: tuple[Scenario, ...] = ()
    speed: float = 1.0
    seed: int = 0
    phase_seconds: tuple[tuple[str, float], ...] = ()
    shards: int = 64
    gpu_dir: str = ""
    stamps: bool = False

    @property
    def speculative(self) -> bool:
        return self.speculative_algorithm.upper() in ("EAGLE", "EAGLE3", "NEXTN", "MTP", "STANDALONE")

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model_path

    @property
    def draft_tokens_clamped(self) -> bool:
        """Top-k 1 forces num_draft_tokens to num_steps + 1 (server_args.py:2448@0.5.9): a warning, never an error."""
        wanted = self.speculative_num_draft_tokens
        return self.speculative and self.speculative_eagle_topk == 1 and wanted != self.speculative_num_steps + 1

    @property
    def draft_tokens(self) -> int:
        return self.speculative_num_steps + 1 if self.draft_tokens_clamped else self.speculative_num_draft_tokens

    def seconds(self, step: str) -> float:
        """Unscaled seconds of a step, the user's figure before the default one."""
        return dict(self.phase_seconds).get(step, PHASE_SECONDS[step])


def parse_options(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Unknown options are tolerated together with their values, as the real engine has some four hundred."""
    known, _ = _parser(environ).parse_known_args(list(argv))
    return _options(known, environ)


def _options(known: argparse.Namespace, environ: Mapping[str, str]) -> Options:
    values = vars(known)
    texts = values.pop("scenario") or [environ.get("SGLSUP_SIM_SCENARIO", "")]
    pairs = values.pop("phase_seconds").split(",")
    if values["dialect"] not in DIALECTS or values["speed"] <= 0:
        raise SystemExit(
            f"cannot play dialect {values['dialect']!r} at speed {values['speed']}: "
            f"dialects are {' '.join(sorted(DIALECTS))}, the speed is above 0; nothing was started"
        )
    return Options(**values, scenarios=parse_scenarios(texts), phase_seconds=tuple(_pair(p) for p in pairs if p))


def _pair(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    if name not in PHASE_SECONDS:
        raise SystemExit(f"cannot use --phase-seconds {text}: known steps are {' '.join(PHASE_SECONDS)}")
    return name, float(seconds)


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m supervisor.simulator",
        description="A fake SGLang server. `render` as the first word prints the log of a run instead.",
        allow_abbrev=False,
    )
    _add_engine_options(parser)
    _add_own_options(parser, environ)
    return parser


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    defaults = Options()
    add = parser.add_argument
    add("--model-path", "--model", default=defaults.model_path)
    add("--served-model-name", default="")
    add("--host", default=defaults.host)
    add("--port", type=int, default=defaults.port)
    add("--tp", "--tp-size", "--tensor-parallel-size", type=int, default=1)
    add("--dp", "--dp-size", "--data-parallel-size", type=int, default=1)
    add("--pp", "--pp-size", "--pipeline-parallel-size", type=int, default=1)
    add("--ep", "--ep-size", "--expert-parallel-size", type=int, default=1)
    add("--nnodes", type=int, default=1)
    add("--node-rank", type=int, default=0)
    add("--base-gpu-id", type=int, default=0)
    for flag in ("--enable-dp-attention", "--disable-cuda-graph", "--skip-server-warmup", "--enable-metrics"):
        add(flag, action="store_true")
    add("--log-level", default="info")
    add("--api-key", default="")
    add("--watchdog-timeout", dest="watchdog_timeout_s", type=float, default=defaults.watchdog_timeout_s)
    add("--disaggregation-mode", default="null")
    add("--attention-backend", default=defaults.attention_backend)
    _add_speculative_options(parser, defaults)


def _add_speculative_options(parser: argparse.ArgumentParser, defaults: Options) -> None:
    add = parser.add_argument
    add("--speculative-algorithm", "--speculative-algo", default="")
    add("--speculative-draft-model-path", "--speculative-draft-model", default=defaults.speculative_draft_model_path)
    add("--speculative-num-steps", type=int, default=defaults.speculative_num_steps)
    add("--speculative-eagle-topk", type=int, default=defaults.speculative_eagle_topk)
    add("--speculative-num-draft-tokens", type=int, default=defaults.speculative_num_draft_tokens)


def _add_own_options(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    own = parser.add_argument_group("simulator")
    add = own.add_argument
    dialect = environ.get("SGLSUP_SIM_DIALECT", DEFAULT_DIALECT)
    add("--dialect", choices=sorted(DIALECTS), default=dialect, help="generation of SGLang to imitate")
    add("--scenario", action="append", metavar="SPEC", help="what goes wrong; may be repeated")
    add("--speed", type=float, default=float(environ.get("SGLSUP_SIM_SPEED", "1")), help="time scale, 100 is fast")
    add("--seed", type=int, default=0)
    add("--phase-seconds", default="", metavar="STEP=S,...", help="unscaled seconds of single steps")
    add("--shards", type=int, default=64, help="number of weight files the loading bar counts")
    add("--gpu-dir", default="", help="directory for a file per rank that says how much GPU memory it holds")
    add("--stamps", action="store_true", help="render only: put the second and the rank before each write")
