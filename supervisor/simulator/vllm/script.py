"""Lists what every process of a start writes in each phase, for a live run and for a rendered log."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from supervisor.simulator.scenario import Kind, Scenario
from supervisor.simulator.vllm.failures import CAUSES, Cause, Where
from supervisor.simulator.vllm.options import Options
from supervisor.simulator.vllm.words import ULIMIT, Voice, capture_bar, raw_traceback, shard_bar, uvicorn

EPOCH_S = 1_764_403_200.0  # 2025-11-29 08:00:00 UTC
_CAPTURES = 20
_DEFAULT_CAUSE = "scheduler-software-bug"
CORE_FRAMES = (("v1/engine/core.py", "run_engine_core"), ("v1/engine/core.py", "__init__"))
STEP_FRAMES = (("v1/engine/core.py", "run_engine_core"), ("v1/engine/core.py", "run_busy_loop"))
WAIT_FRAMES = (("v1/engine/core_client.py", "__init__"), ("v1/engine/utils.py", "wait_for_engine_startup"))
WORKER_FAILED = "Exception: WorkerProc initialization failed due to an exception in a background process."
START_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


class Who(Enum):
    """Which processes write a line."""

    FRONT = "API server"
    CORE = "engine core"
    ALL = "every worker"
    FIRST = "worker 0"


class Line(NamedTuple):
    """One write at this fraction of its phase; `{rank}` is the worker's number. `raw` has no prefix."""

    at: float
    who: Who
    place: str = ""
    text: str = ""
    raw: bytes = b""

    def write(self, voice: Voice, rank: int = 0) -> bytes:
        return self.raw or voice.record(self.place, self.text.replace("{rank}", str(rank)))


def worker_name(options: Options, rank: int) -> str:
    """As its title and its lines have it: without a number when it is alone."""
    return f"Worker_TP{rank}" if options.tensor_parallel_size > 1 else "Worker"


def lines(options: Options, phase: str) -> tuple[Line, ...]:
    """What is written in the phase, in the order of time."""
    return tuple(sorted(_LINES[phase](options), key=lambda line: line.at))


def _launch(options: Options) -> Iterator[Line]:
    tp = options.tensor_parallel_size
    yield Line(0.3, Who.FRONT, "api_utils.py:347", "vLLM server version 0.32.0, serving model " + options.model)
    given = f"'model': '{options.model}', 'port': {options.port}, 'tensor_parallel_size': {tp}"
    yield Line(0.31, Who.FRONT, "api_utils.py:286", f"non-default args: {{{given}}}")
    yield Line(0.32, Who.FRONT, "system_utils.py:255", ULIMIT)
    yield Line(0.5, Who.FRONT, "model.py:733", "Resolved architecture: LlamaForCausalLM")
    yield Line(0.5, Who.FRONT, "model.py:2152", f"Using max model len {options.max_model_len}")


def _dist_init(options: Options) -> Iterator[Line]:
    tp = options.tensor_parallel_size
    config = f"model='{options.model}', speculative_config=None, tensor_parallel_size={tp}"
    yield Line(0.0, Who.CORE, "core.py:133", f"Initializing a V1 LLM engine (v0.32.0) with config: {config}")
    yield Line(0.1, Who.ALL, "parallel_state.py:1906", f"world_size={tp} rank={{rank}} local_rank={{rank}} "
               "distributed_init_method=tcp://127.0.0.1:47111 backend=nccl")  # fmt: skip
    yield Line(0.9, Who.ALL, "parallel_state.py:2350", f"rank {{rank}} in world size {tp} is assigned as DP rank 0, PP "
               "rank 0, PCP rank 0, TP rank {rank}, ETP rank {rank}, EP rank N/A, EPLB rank N/A")  # fmt: skip


def _weights(options: Options) -> Iterator[Line]:
    seconds = options.seconds("weights")
    yield Line(0.0, Who.ALL, "gpu_model_runner.py:5040", f"Starting to load model {options.model}...")
    for done in range(options.shards + 1):
        yield Line(0.05 + 0.85 * done / options.shards, Who.FIRST, raw=shard_bar(done, options.shards, seconds))
    yield Line(0.91, Who.FIRST, raw=b"\n")
    yield Line(0.92, Who.FIRST, "default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")
    yield Line(
        0.98, Who.ALL, "gpu_model_runner.py:5150", f"Model loading took 35.19 GiB memory and {seconds:.6f} seconds"
    )


def _compile(options: Options) -> Iterator[Line]:
    cache = "/var/cache/vllm/torch_compile_cache/0a1b2c/rank_{rank}_0/backbone"
    yield Line(0.0, Who.ALL, "backends.py:1069", f"Using cache directory: {cache} for vLLM's torch.compile")
    yield Line(0.3, Who.ALL, "backends.py:1128", "Dynamo bytecode transform time: 6.07 s")
    yield Line(0.8, Who.FIRST, "monitor.py:48", "torch.compile took 19.69 s in total")
    yield Line(0.9, Who.FIRST, "monitor.py:76", "Initial profiling/warmup run took 0.42 s")


def _memory_pool(options: Options) -> Iterator[Line]:
    yield Line(0.2, Who.FIRST, "gpu_worker.py:760", "Available KV cache memory: 71.30 GiB")
    concurrency = f"Maximum concurrency for {options.max_model_len} tokens per request: 7.12x"
    yield Line(1.0, Who.CORE, "kv_cache_utils.py:2327", f"GPU KV cache size: 933,888 tokens, {concurrency}")


def _target_graph(options: Options) -> Iterator[Line]:
    for done in range(_CAPTURES + 1):
        yield Line(0.05 + 0.8 * done / _CAPTURES, Who.FIRST, raw=capture_bar(done, _CAPTURES))
    seconds = options.seconds("target-graph")
    yield Line(
        0.9, Who.FIRST, "gpu_model_runner.py:6582", f"Graph capturing finished in {seconds:.0f} secs, took 1.20 GiB"
    )


def _warmup(options: Options) -> Iterator[Line]:
    took = sum(options.seconds(phase) for phase in ("compile", "memory-pool", "target-graph"))
    yield Line(0.0, Who.CORE, "core.py:402", f"init engine (profile, create kv cache, warmup model) took {took:.2f} s")
    yield Line(0.5, Who.FRONT, "entry.py:136", "Supported tasks: ['generate']")
    yield Line(0.6, Who.FRONT, "entry.py:140", f"Starting vLLM server on http://{options.host}:{options.port}")
    yield Line(0.7, Who.FRONT, "launcher.py:186", "Available routes are:")
    yield Line(0.7, Who.FRONT, "launcher.py:195", "Route: /health, Methods: GET")
    yield Line(0.8, Who.FRONT, raw=uvicorn("Started server process [4242]"))
    yield Line(0.8, Who.FRONT, raw=uvicorn("Waiting for application startup."))
    yield Line(1.0, Who.FRONT, raw=uvicorn("Application startup complete."))


_LINES = {
    "launch": _launch, "dist-init": _dist_init, "weights": _weights, "compile": _compile, "memory-pool": _memory_pool,
    "target-graph": _target_graph, "warmup": _warmup,
}  # fmt: skip


# --- what goes wrong --------------------------------------------------------------------------------------------------


def strike(options: Options, phase: str, rank: int) -> Scenario | None:
    """The scenario that ends this worker's way in the phase; without a rank a stall takes all, a crash the first."""
    for one in options.scenarios:
        deadly = one.kind in (Kind.CRASH, Kind.OOM_KILL) and cause_of(one).where in (Where.WORKER, Where.NATIVE)
        if one.phase == phase and (deadly or one.kind is Kind.STALL):
            wanted = one.rank or ("" if one.kind is Kind.STALL else "0")
            if wanted in ("", str(rank), f"TP{rank}"):
                return one
    return None


def cause_of(scenario: Scenario) -> Cause:
    return CAUSES["host-oom-killed"] if scenario.kind is Kind.OOM_KILL else CAUSES[scenario.cause or _DEFAULT_CAUSE]


def crash_at(options: Options, where: Where) -> Scenario | None:
    """The crash that this process shall raise itself."""
    crashes = [one for one in options.scenarios if one.kind is Kind.CRASH]
    return next((one for one in crashes if cause_of(one).where is where), None)


def share(scenario: Scenario, seconds: float) -> float:
    """The fraction of the phase at which it strikes."""
    if scenario.after_s is not None:
        return min(1.0, scenario.after_s / seconds)
    return 0.5 if scenario.after_fraction is None else scenario.after_fraction


def worker_error(voice: Voice, cause: Cause, starting: bool) -> bytes:
    header = "WorkerProc failed to start." if starting else "WorkerProc hit an exception."
    return voice.traceback("multiproc_executor.py:953", header, cause.error, cause.frames)


def core_error(voice: Voice, error: str, starting: bool) -> bytes:
    """The engine core's own words and then Python's, without a prefix."""
    header = "EngineCore failed to start." if starting else "EngineCore encountered a fatal error."
    frames = CORE_FRAMES if starting else STEP_FRAMES
    return voice.traceback("core.py:1510", header, error, frames) + raw_traceback(error, frames, "Process EngineCore:")


# --- rendered ---------------------------------------------------------------------------------------------------------


def render(options: Options) -> Iterator[bytes]:
    """The log of a start, up to the moment from which nothing more comes."""
    front, core = Voice("APIServer"), Voice("EngineCore")
    if crash := crash_at(options, Where.API_SERVER):
        yield from _phase(options, "launch", EPOCH_S)
        yield raw_traceback(cause_of(crash).error, cause_of(crash).frames)
        return
    now = EPOCH_S
    for phase in options.phases:
        yield from _phase(options, phase, now)
        now += options.seconds(phase)
        struck = [one for rank in range(options.tensor_parallel_size) if (one := strike(options, phase, rank))]
        if struck and struck[0].kind is Kind.STALL:
            return
        if struck and (cause := cause_of(struck[0])).where is Where.WORKER:
            yield worker_error(Voice(worker_name(options, 0)).at(now), cause, starting=True)
        own = crash_at(options, Where.CORE)
        if struck or (own and own.phase == phase):
            yield core_error(core.at(now), cause_of(own).error if own else WORKER_FAILED, starting=True)
            yield raw_traceback(START_FAILED, WAIT_FRAMES)
            return
    yield front.at(now).record("loggers.py:335", "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
                               "throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs")  # fmt: skip


def _phase(options: Options, phase: str, begin: float) -> Iterator[bytes]:
    seconds = options.seconds(phase)
    for line in lines(options, phase):
        for name, rank in _writers(options, phase, line):
            yield line.write(Voice(name, begin + line.at * seconds), rank)


def _writers(options: Options, phase: str, line: Line) -> Iterator[tuple[str, int]]:
    match line.who:
        case Who.FRONT:
            yield "APIServer", 0
        case Who.CORE:
            yield "EngineCore", 0
        case _:
            count = 1 if line.who is Who.FIRST else options.tensor_parallel_size
            for rank in range(count):
                struck = strike(options, phase, rank)
                if struck is None or line.at < share(struck, options.seconds(phase)):
                    yield worker_name(options, rank), rank
