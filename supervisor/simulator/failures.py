# ruff: noqa: E501 -- one cause a line keeps the table readable
"""Holds what a failing engine prints, by class of cause, in the engine's own format.

The texts are written for the simulator from the catalogue of log lines; stack frames are shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

_SRT = "/opt/sglang/lib/python3.12/site-packages/sglang/srt"
_TORCH = "/opt/sglang/lib/python3.12/site-packages/torch"


class Where(Enum):
    """Which process fails, and how the launcher hears of it."""

    LAUNCHER = "launcher exits with a traceback and code 1"
    WARMUP = "launcher kills its tree and itself"
    SCHEDULER = "scheduler prints a traceback, sends SIGQUIT to its parent and exits with 0"
    NATIVE = "scheduler dies of a signal and sends nothing"
    LOUD_ALIVE = "lines are printed, nobody dies"


class Cause(NamedTuple):
    """`error` is the last line of the traceback; `frames` are (file, function) pairs, outermost first."""

    where: Where
    error: str
    frames: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()
    signal_number: int = 0


_LOAD = (
    ("managers/tp_worker.py", "_init_model_runner"),
    ("model_executor/model_runner.py", "load_model"),
    ("model_loader/loader.py", "load_model"),
)
_POOL = (("managers/tp_worker.py", "_init_model_runner"), ("model_executor/model_runner.py", "init_memory_pool"))
_CAPTURE = (
    ("model_executor/model_runner.py", "init_device_graphs"),
    ("model_executor/cuda_graph_runner.py", "capture"),
    ("model_executor/cuda_graph_runner.py", "capture_one_batch_size"),
)
_DIST = (
    ("model_executor/model_runner.py", "init_torch_distributed"),
    ("distributed/parallel_state.py", "init_distributed_environment"),
)
_LOOP = (("managers/scheduler.py", "event_loop_overlap"), ("managers/scheduler.py", "run_batch"))
_ARGS = (("entrypoints/http_server.py", "launch_server"), ("server_args.py", "__post_init__"))

_HINTS = (
    "Possible solutions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
    "3. disable torch compile by not using --enable-torch-compile\n"
    "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
)


def _oom(tried: str, free: str) -> str:
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU {{device}} has a total capacity of 139.80 GiB of which "
        f"{free} is free. Including non-PyTorch memory, this process has 138.91 GiB memory in use. Of the allocated "
        "memory 136.20 GiB is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated. If reserved "
        "but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation."
    )


def _scheduler(error: str, frames: tuple[tuple[str, str], ...], *before: str) -> Cause:
    return Cause(Where.SCHEDULER, error, frames, before)


def _launcher(error: str, frames: tuple[tuple[str, str], ...] = _ARGS, *before: str) -> Cause:
    return Cause(Where.LAUNCHER, error, frames, before)


_NCCL_TIMEOUT = (
    "[rank{rank}]:[E1129 04:12:09.512338812 ProcessGroupNCCL.cpp:685] [PG ID 2 PG GUID 3 Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=4188, OpType=ALLREDUCE, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran "
    "for 600017 milliseconds before timing out."
)
_SEGFAULT = (
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f2a4c1fe640 (most recent call first):\n"
    f'  File "{_TORCH}/_ops.py", line 1158 in __call__\n'
    f'  File "{_SRT}/model_executor/cuda_graph_runner.py", line 611 in capture_one_batch_size\n\n'
    "Extension modules: numpy._core._multiarray_umath, torch._C, sgl_kernel.common_ops (total: 3)"
)
_SHM = (
    "RuntimeError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system error (run "
    "with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or "
    "external library call failed or device error. \nLast error:\nError while creating shared memory segment "
    "/dev/shm/nccl-Qm4tZv (size 9637888), error: No space left on device (28)"
)
_CONTEXT = (
    "ValueError: Warning: Target model's context_length (262144) is greater than the derived context_length (4096). "
    "This may lead to incorrect model outputs or CUDA errors. Note that the derived context_length may differ from "
    "max_position_embeddings in the model's config. To allow overriding this maximum, set the env var "
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
)

CAUSES: Mapping[str, Cause] = {
    "gpu-oom-weights": _scheduler("torch.OutOfMemoryError: " + _oom("1.75 GiB", "402.19 MiB"), (*_LOAD, ("layers/moe/fused_moe_triton/layer.py", "create_weights"))),
    "gpu-oom-kv-pool": _scheduler("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.72", (*_POOL, ("model_executor/model_runner.py", "profile_max_num_token"))),
    "gpu-oom-graph-capture": _scheduler("Exception: Capture cuda graph failed: " + _oom("2.00 GiB", "1.31 GiB") + "\n" + _HINTS, _CAPTURE),
    "gpu-oom-runtime": _scheduler("torch.OutOfMemoryError: " + _oom("7.00 GiB", "3.42 GiB"), (*_LOOP, ("models/deepseek_v2.py", "forward"))),
    "gpu-memory-occupied": _scheduler("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=34.51, local_gpu_memory=138.31, local_gpu_memory * 0.9=124.48", _DIST),
    "host-oom-killed": Cause(Where.NATIVE, "", signal_number=9),
    "host-memory-insufficient": _scheduler("ValueError: Not enough host memory available. Requesting 512.00 GB but only have 187.44 GB free. Please reduce the size of the hierarchical cache.", (("managers/scheduler.py", "init_memory_pool_and_cache"), ("mem_cache/memory_pool_host.py", "__init__")), "Allocating 512.00 GB host memory for hierarchical KV cache."),
    "shm-too-small": _scheduler(_SHM, _DIST),
    "host-limits": _scheduler("OSError: [Errno 24] Too many open files: '/models/target/model-00041-of-00064.safetensors'", _LOAD),
    "disk-or-cache-unwritable": _scheduler("OSError: [Errno 28] No space left on device: '/root/.cache/flashinfer/0.6.3/90a/cached_ops'", (*_CAPTURE, ("layers/attention/flashinfer_backend.py", "init_forward_metadata_capture_cuda_graph"))),
    "dist-init-peer-missing": _scheduler("torch.distributed.DistBackendError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out after 1800000ms", _DIST),
    "nccl-init-failure": _scheduler("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", (*_DIST, ("distributed/device_communicators/pynccl.py", "__init__"))),
    "nccl-init-hang": Cause(Where.LOUD_ALIVE, "", before=("sglang is using nccl==2.27.5",)),
    "nccl-collective-timeout": Cause(Where.NATIVE, _NCCL_TIMEOUT, signal_number=6),
    "peer-rank-death": _scheduler("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.12]:41023", (("managers/scheduler.py", "recv_requests"), ("utils/common.py", "broadcast_pyobj"))),
    "port-in-use": _scheduler("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29571, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", _DIST),
    "model-path-missing": _launcher("OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{model}'. Use `repo_type` argument if needed.", (("entrypoints/engine.py", "_launch_subprocesses"), ("utils/hf_transformers_utils.py", "get_config"))),
    "model-auth-gated": _launcher("OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/{model}.\n401 Client Error. Cannot access gated repo for url https://huggingface.co/{model}/resolve/main/config.json. Access to model {model} is restricted. You must have access to it and be authenticated to access it. Please log in.", (("entrypoints/engine.py", "_launch_subprocesses"), ("utils/hf_transformers_utils.py", "get_config"))),
    "checkpoint-corrupt": _scheduler("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered", (*_LOAD, ("model_loader/weight_utils.py", "safetensors_weights_iterator"))),
    "model-arch-unsupported": _scheduler("ValueError: FrobnicateForCausalLM has no SGlang implementation and the Transformers implementation is not compatible with SGLang.", (*_LOAD, ("model_loader/utils.py", "get_model_architecture"))),
    "parallelism-invalid": _scheduler("ValueError: Weight output_partition_size = 576 is not divisible by weight quantization block_n = 128.", (*_LOAD, ("layers/quantization/fp8.py", "create_weights"))),
    "quantization-mismatch": _scheduler("ValueError: Unknown quantization method: awq_marlin_v2. Must be one of ['fp8', 'awq', 'gptq', 'marlin', 'w8a8_int8', 'modelopt'].", _LOAD),
    "spec-decode-config": _scheduler(_CONTEXT, (("speculative/eagle_worker.py", "__init__"), ("managers/tp_worker.py", "__init__"), ("configs/model_config.py", "_derive_context_length"))),
    "server-args-invalid": _launcher("AssertionError: chunked_prefill_size must be divisible by page_size"),
    "tokenizer-or-template-error": _launcher("ValueError: Tokenizer class Frobnicate2Tokenizer does not exist or is not currently imported.", (("managers/tokenizer_manager.py", "__init__"), ("utils/hf_transformers_utils.py", "get_tokenizer"))),
    "gpu-arch-unsupported": _scheduler("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", _CAPTURE),
    "driver-or-dependency-mismatch": _launcher("ImportError: /opt/sglang/lib/python3.12/site-packages/sgl_kernel/sm90/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa", (("layers/quantization/fp8_kernel.py", "<module>"),)),
    "jit-compile-failure": _scheduler("RuntimeError: Ninja build failed. Ninja output:\nninja: Entering directory `/root/.cache/flashinfer/0.6.3/90a/cached_ops'\n[1/4] nvcc -c batch_decode.cu\nFAILED: batch_decode.cuda.o \n/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\nninja: build stopped: subcommand failed.", _CAPTURE),
    "jit-compile-stall": Cause(Where.LOUD_ALIVE, "", before=("Loading JIT ops: batch_prefill_with_kv_cache_dtype_q_bf16_head_dim_128",)),
    "gpu-hardware-fault": _scheduler("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", _LOOP),
    "health-probe-misread": Cause(Where.LOUD_ALIVE, "", before=("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 04:12:09. last_heartbeat time: 04:11:47",)),
    "cuda-kernel-fault": _scheduler("torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", _LOOP),
    "native-crash": Cause(Where.NATIVE, _SEGFAULT, signal_number=11),
    "scheduler-hang": _scheduler("", (), "Scheduler watchdog timeout (self.watchdog_timeout={watchdog}, self.soft=False)"),
    "scheduler-software-bug": _scheduler("ValueError: token_to_kv_pool_allocator memory leak detected! available_size=402180, protected_size=0, self.max_total_num_tokens=402184\n", (("managers/scheduler.py", "event_loop_overlap"), ("managers/scheduler.py", "check_memory"))),
    "server-warmup-failed": Cause(Where.WARMUP, "requests.exceptions.HTTPError: 502 Server Error: Bad Gateway for url: http://127.0.0.1:{port}/generate"),
    "kv-pool-exhausted": Cause(Where.LOUD_ALIVE, "", before=("KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 5120, new_token_ratio: 0.6402 -> 0.7398",)),
    "pd-disaggregation-failure": _scheduler("sglang.srt.disaggregation.base.conn.KVTransferError: KVTransferError(bootstrap_room=8814): Decode instance could be dead, remote mooncake session 10.0.0.12:15412 is not alive", (("managers/scheduler.py", "event_loop_overlap_disagg_prefill"), ("disaggregation/prefill.py", "process_disagg_prefill_inflight_queue"))),
    "numeric-nan": _scheduler("ValueError: Detected errors during sampling! NaN in the logits.", (*_LOOP, ("layers/sampler.py", "forward")), "Detected errors during sampling! NaN in the logits."),
}  # fmt: skip


# What the other ranks and an orphaned scheduler raise; recorded from real runs.
PEER_RESET = _scheduler(
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:29096: Connection reset by peer",
    (("managers/scheduler.py", "recv_requests"), ("utils/common.py", "broadcast_pyobj")),
)
LAUNCHER_GONE = _scheduler("BrokenPipeError: [Errno 32] Broken pipe", ())


def scheduler_traceback(cause: Cause) -> str:
    """The text after the prefix of `Scheduler hit an exception:`, ending with the blank line of the real one."""
    return "Scheduler hit an exception: " + _traceback(cause, ("managers/scheduler.py", "run_scheduler_process")) + "\n"


def launcher_traceback(cause: Cause) -> str:
    """A plain traceback on standard error, without any prefix."""
    return _traceback(cause, ("../launch_server.py", "run_server")) + "\n"


def warmup_error(cause: Cause) -> str:
    return "Initialization failed. warmup error: " + _traceback(
        cause, ("entrypoints/http_server.py", "_wait_and_warmup")
    )


def _traceback(cause: Cause, outermost: tuple[str, str]) -> str:
    lines = ["Traceback (most recent call last):"]
    for number, (path, function) in enumerate((outermost, *cause.frames)):
        lines.append(f'  File "{_SRT}/{path}", line {317 + 211 * number}, in {function}')
        lines.append(f"    result = self.{function.strip('<>')}_impl(*args, **kwargs)")
    return "\n".join([*lines, cause.error])
