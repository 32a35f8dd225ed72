# ruff: noqa: E501 -- one cause a line keeps the table readable
"""Holds what a failing vLLM raises, by class of cause, and in which process."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

Frames = tuple[tuple[str, str], ...]


class Where(Enum):
    """Which process raises."""

    API_SERVER = "ends with a traceback and 1 before anything was started"
    CORE = "the engine core"
    WORKER = "a worker, and the engine core after it"
    NATIVE = "a worker dies of a signal"


class Cause(NamedTuple):
    """`frames` are (file, function) pairs, outermost first."""

    where: Where
    error: str = ""
    frames: Frames = ()
    signal_number: int = 0


_MAIN = ("v1/executor/multiproc_executor.py", "worker_main")
_LOOP = ("v1/executor/multiproc_executor.py", "worker_busy_loop")
_LOAD: Frames = (
    _MAIN,
    ("v1/worker/gpu_worker.py", "load_model"),
    ("model_executor/model_loader/default_loader.py", "load_weights"),
)
_CAPTURE: Frames = (
    _LOOP,
    ("v1/worker/gpu_worker.py", "compile_or_warm_up_model"),
    ("v1/worker/gpu_model_runner.py", "capture_model"),
)
_STEP: Frames = (_LOOP, ("v1/worker/gpu_model_runner.py", "execute_model"))
_ARGS: Frames = (("entrypoints/cli/serve.py", "cmd"), ("engine/arg_utils.py", "create_engine_config"))
_POOL: Frames = (
    ("v1/engine/core.py", "run_engine_core"),
    ("v1/engine/core.py", "_initialize_kv_caches"),
    ("v1/core/kv_cache_utils.py", "_check_enough_kv_cache_memory"),
)
_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has a total capacity of 139.80 GiB of which 402.19 MiB is free."

CAUSES: Mapping[str, Cause] = {
    "server-args-invalid": Cause(Where.API_SERVER, "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (256).", _ARGS),
    "parallelism-invalid": Cause(Where.API_SERVER, "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8).", _ARGS),
    "model-path-missing": Cause(Where.API_SERVER, "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/target'. Use `repo_type` argument if needed.", (*_ARGS, ("transformers_utils/config.py", "get_config"))),
    "gpu-memory-occupied": Cause(Where.WORKER, "ValueError: Free memory on device cuda:0 (12.1/139.8 GiB) on startup is less than desired GPU memory utilization (0.92, 128.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", (_MAIN, ("v1/worker/gpu_worker.py", "init_device"))),
    "gpu-oom-weights": Cause(Where.WORKER, _OOM, _LOAD),
    "checkpoint-corrupt": Cause(Where.WORKER, "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered", _LOAD),
    "gpu-oom-kv-pool": Cause(Where.CORE, "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", _POOL),
    "gpu-oom-graph-capture": Cause(Where.WORKER, _OOM, _CAPTURE),
    "gpu-oom-runtime": Cause(Where.WORKER, _OOM, _STEP),
    "cuda-kernel-fault": Cause(Where.WORKER, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", _STEP),
    "scheduler-software-bug": Cause(Where.WORKER, "AttributeError: 'NoneType' object has no attribute 'block_table'", _STEP),
    "native-crash": Cause(Where.NATIVE, signal_number=11),
    "host-oom-killed": Cause(Where.NATIVE, signal_number=9),
}  # fmt: skip
