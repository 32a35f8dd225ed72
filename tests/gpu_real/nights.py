"""The nights of a real engine on two real GPUs: each harm is done to it, and the daemon's word is set beside the deed.

`python -m tests.gpu_real.nights PART… [--models DIR] [--engine "python3 -m …"] [--environment NAME=VALUE …] [--gpus 2]
[--limit S] [--only STORY …] --keep DIR` from the root of the repository, with the package installed. PART is `serving` (two ranks that
serve), `starting` (two ranks that start) or `lanes` (one GPU each, side by side). Prints one JSON line a night; DIR gets
logs, evidence, journal and what was told. `--gpus 0` leaves the GPUs out, to rehearse with the fake engine. Changes no
setting of a GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bench.site import free_ports
from tests.e2e.gpus import GpuHost
from tests.e2e.load import Load
from tests.gpu_real import lanes, pair
from tests.gpu_real.night import Nights
from tests.gpu_real.witness import Witness
from tests.nvml.fake import FakeNvml

NOTHING_FAKED = cast(FakeNvml, SimpleNamespace(environment={}))
ENGINE = "python3 -m sglang.launch_server"
COMMON = (
    "--host 127.0.0.1 --attention-backend triton --sampling-backend pytorch --grammar-backend none --enable-metrics"
)
DRAFT = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path {models}/draft --speculative-num-steps 3"
    " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)
CAPTURES = "--cuda-graph-max-bs-decode 32 --cuda-graph-max-bs-prefill 512"
TWO = "--tp 2 --disable-custom-all-reduce --enforce-disable-flashinfer-allreduce-fusion"
PLAIN = "--disable-cuda-graph"
LANE_HEAD_START_S = 1.0  # the first one's GPU is named, the others take any
PARTS = ("serving", "starting", "lanes")


class Site:
    """Who is configured, by which command."""

    def __init__(self, host: GpuHost, options: argparse.Namespace) -> None:
        self.host, self._options = host, options
        self._environment = dict(pair.split("=", 1) for pair in options.environment)

    def add(self, name: str, model: str, words: str, gpus: Any, **table: Any) -> None:
        port = free_ports(1)[0]
        model_path = f"{self._options.models}/{model}"
        command = f"{self._options.engine} --model-path {model_path} --port {port} {COMMON} {words}"
        self.host.add(
            name,
            shlex.split(command.format(models=self._options.models)),
            port=port,
            gpus=gpus if self._options.gpus else [],
            autostart=False,
            environment=self._environment,
            **table,
        )


def configure(site: Site, parts: list[str]) -> None:
    both: Any = {"count": 2}
    if "serving" in parts:
        site.add(pair.SERVING, "target", f"{TWO} {DRAFT} {CAPTURES}", both, **pair.SERVING_TABLE)
    if "starting" in parts:
        site.add(pair.STARTING, "target", f"{TWO} {DRAFT} {CAPTURES}", both, **pair.STARTING_TABLE)
    if "lanes" in parts:
        one: Any = {"count": 1}
        site.add(lanes.DIRTY, "target", PLAIN, [0])
        site.add(lanes.PLACED, "target", PLAIN, one)
        for name in lanes.HOPELESS:
            words = {"target-long": f"{DRAFT} {CAPTURES}", "greedy": f"{PLAIN} --mem-fraction-static 0.999"}
            site.add(name, "target" if name == "greedy" else name, words.get(name, PLAIN), one)


def serving(nights: Nights) -> None:
    """Under load from the first start to the last."""
    nights.go_through(pair.WHILE_SERVING[:1])
    load = Load(f"http://127.0.0.1:{nights.host.show(pair.SERVING)['port']}", clients=8, tokens=200)
    with load:
        nights.go_through(pair.WHILE_SERVING[1:])
    nights.tell("the load", answered=load.answered, failed=len(load.failures))
    nights.host.ctl("stop", pair.SERVING)


def starting(nights: Nights) -> None:
    nights.go_through(pair.WHILE_STARTING)
    nights.host.ctl("stop", pair.STARTING)


def side_by_side(nights: Nights, on_gpus: bool) -> None:
    both = (lanes.LEFT, lanes.RIGHT) if on_gpus else (lanes.RIGHT[-1:],)
    threads = [threading.Thread(target=nights.go_through, args=(lane,)) for lane in both]
    for thread in threads:
        thread.start()
        time.sleep(LANE_HEAD_START_S)
    for thread in threads:
        thread.join()


def keep(host: GpuHost, nights: Nights, witness: Witness, folder: Path) -> None:
    """What a later reader needs to judge it anew."""
    shutil.copytree(host.log_dir, folder / "log", dirs_exist_ok=True)
    shutil.copytree(host.state_dir, folder / "state", dirs_exist_ok=True)
    (folder / "told.json").write_text(json.dumps(nights.told, indent=1))
    (folder / "witness.json").write_text(json.dumps(witness.seen))
    (folder / "daemon.txt").write_text(host.said())
    shutil.copy(host.config, folder / "supervisor.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--models", default="/tmp/m")
    parser.add_argument("--engine", default=ENGINE)
    parser.add_argument("--environment", nargs="*", default=[])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--limit", type=float, default=500)
    parser.add_argument("--only", nargs="*", default=[], metavar="STORY", help="functions of pair.py and lanes.py")
    parser.add_argument("--keep", type=Path, required=True)
    options = parser.parse_args()
    with GpuHost(NOTHING_FAKED, cgroups="auto") as host, Witness() as witness:
        configure(Site(host, options), options.parts)
        host.start()
        nights = Nights(host, witness, options.limit, options.only)
        try:
            if options.gpus:
                host.wait_sight("seeing")
            if "starting" in options.parts:
                starting(nights)
            if "serving" in options.parts:
                serving(nights)
            if "lanes" in options.parts:
                side_by_side(nights, options.gpus > 0)
            nights.tell("at the end", gpus=host.ctl("gpus").stdout.splitlines(), status=host.ctl("status").stdout)
            host.ctl("stop", "all")
        finally:
            keep(host, nights, witness, options.keep)


if __name__ == "__main__":
    main()
