"""Wordings of many versions, written by hand after the engines' sources: each must lead to its class."""

from __future__ import annotations

import pytest

from supervisor.core.story import LogStory
from supervisor.lines import LineCutter
from supervisor.profile import load_profile
from supervisor.snapshot import DiagnosisView

TP0 = "[2026-03-01 10:00:00 TP0] "
MAIN = "[2026-03-01 10:00:00] "
HIT = TP0 + "Scheduler hit an exception: Traceback (most recent call last):\n"
SITE = "/venv/lib/python3.12/site-packages/"


def frame(path: str, function: str) -> str:
    return f'  File "{SITE}{path}", line 10, in {function}\n    call()\n'


INIT = frame("sglang/srt/managers/scheduler.py", "run_scheduler_process") + frame(
    "sglang/srt/model_executor/model_runner.py", "initialize"
)
LOAD = INIT + frame("sglang/srt/model_executor/model_runner.py", "load_model")
WEIGHTS = LOAD + frame("sglang/srt/models/llama.py", "load_weights")
POOL = INIT + frame("sglang/srt/model_executor/model_runner.py", "init_memory_pool")
CAPTURE = (
    INIT
    + frame("sglang/srt/model_executor/model_runner.py", "init_cuda_graphs")
    + frame("sglang/srt/model_executor/cuda_graph_runner.py", "capture")
)
DIST = INIT + frame("sglang/srt/model_executor/model_runner.py", "init_torch_distributed")
LOOP = frame("sglang/srt/managers/scheduler.py", "run_scheduler_process") + frame(
    "sglang/srt/managers/scheduler.py", "event_loop_overlap"
)
FORWARD = LOOP + frame("sglang/srt/managers/scheduler.py", "run_batch")
ARGS = (
    "Traceback (most recent call last):\n"
    + frame("sglang/launch_server.py", "<module>")
    + frame("sglang/srt/server_args.py", "prepare_server_args")
)
POST_INIT = ARGS + frame("sglang/srt/server_args.py", "__post_init__")
TOKENIZER = (
    "Traceback (most recent call last):\n"
    + frame("sglang/srt/managers/tokenizer_manager.py", "__init__")
    + frame("sglang/srt/hf_transformers_utils.py", "get_tokenizer")
)
CONFIG = (
    "Traceback (most recent call last):\n"
    + frame("sglang/srt/configs/model_config.py", "__init__")
    + frame("sglang/srt/hf_transformers_utils.py", "get_config")
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.80 GiB memory in use."
)

CASES: list[tuple[str, str, str]] = [
    # (class, stage or "", log)
    ("gpu-oom-weights", "weights", HIT + LOAD + frame("sglang/srt/layers/linear.py", "create_weights") + OOM),
    ("gpu-oom-weights", "weights", HIT + WEIGHTS + OOM),
    (
        "gpu-oom-weights",
        "weights",
        TP0 + "Load weight begin. avail mem=78.50 GB\n" + HIT + OOM.replace("torch.", "torch.cuda."),
    ),
    (
        "gpu-oom-kv-pool",
        "memory-pool",
        HIT + POOL + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    ),
    (
        "gpu-oom-kv-pool",
        "memory-pool",
        HIT
        + POOL
        + "ValueError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.7",
    ),
    (
        "gpu-oom-kv-pool",
        "memory-pool",
        HIT + POOL + frame("sglang/srt/mem_cache/memory_pool.py", "_create_buffers") + OOM,
    ),
    (
        "gpu-oom-kv-pool",
        "memory-pool",
        HIT
        + "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise --mem-fraction-static above 0.61 (minimum viable = 1 - available/pre = 0.6).",
    ),
    (
        "gpu-oom-kv-pool",
        "memory-pool",
        "ERROR 03-01 10:00:00 [core.py:700] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ),
    (
        "gpu-oom-kv-pool",
        "memory-pool",
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (10.50 GiB).",
    ),
    (
        "gpu-oom-kv-pool",
        "memory-pool",
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (21056). Try increasing `gpu_memory_utilization`",
    ),
    (
        "gpu-oom-graph-capture",
        "graph-capture",
        HIT
        + CAPTURE
        + "Exception: Capture cuda graph failed: "
        + OOM
        + "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
    ),
    ("gpu-oom-graph-capture", "graph-capture", HIT + CAPTURE + OOM),
    (
        "gpu-oom-graph-capture",
        "graph-capture",
        HIT + "Exception: Capture CUDA graph failed: CUDA error: out of memory\nPossible solutions:",
    ),
    ("gpu-oom-runtime", "serving", MAIN + "The server is fired up and ready to roll!\n" + HIT + FORWARD + OOM),
    ("gpu-oom-runtime", "serving", HIT + FORWARD + frame("sglang/srt/layers/logits_processor.py", "forward") + OOM),
    (
        "gpu-memory-occupied",
        "",
        HIT
        + DIST
        + "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. min_per_gpu_memory=21.1, local_gpu_memory=78.5, local_gpu_memory * 0.9=70.6",
    ),
    (
        "gpu-memory-occupied",
        "",
        "ValueError: Free memory on device (12.05/79.10 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    (
        "gpu-memory-occupied",
        "weights",
        TP0
        + "Load weight begin. avail mem=1.61 GB\n"
        + HIT
        + LOAD
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 32.75 MiB is free.",
    ),
    (
        "gpu-memory-occupied",
        "",
        "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory 30.2 GiB. This happens when other processes sharing the same container release GPU memory",
    ),
    (
        "host-oom-killed",
        "weights",
        TP0
        + "Load weight begin. avail mem=78.50 GB\nRuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
    ),
    (
        "host-oom-killed",
        "",
        "[12345.678] Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1234567kB, anon-rss:987654kB",
    ),
    ("host-oom-killed", "weights", TP0 + "Load weight begin. avail mem=78.50 GB\nKilled"),
    (
        "host-oom-killed",
        "",
        MAIN + "Rank 0 scheduler is dead. Please check if there are relevant logs.\n" + MAIN + "Exit code: -9",
    ),
    ("host-oom-killed", "", "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137"),
    (
        "host-memory-insufficient",
        "memory-pool",
        HIT
        + "ValueError: Not enough host memory available. Requesting 200.00 GB but only have 120.10 GB free. Please reduce the size of the hierarchical cache.",
    ),
    (
        "host-memory-insufficient",
        "",
        HIT
        + POOL
        + "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
    ),
    (
        "shm-too-small",
        "dist-init",
        "node1:77:99 [0] misc/shmutils.cc:87 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab12Cd (size 33030272), error: No space left on device (28)",
    ),
    ("shm-too-small", "", "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b3c4d'"),
    (
        "shm-too-small",
        "",
        "RuntimeError: unable to write to file </torch_77_1234>: No space left on device (28), shared memory",
    ),
    ("host-limits", "", "OSError: [Errno 24] Too many open files"),
    ("host-limits", "", "RuntimeError: can't start new thread"),
    (
        "host-limits",
        "",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64: Resource temporarily unavailable",
    ),
    (
        "host-limits",
        "",
        "E0301 10:00:00.123456 77 rdma_context.cpp:222] Failed to register memory 0x7f00: ibv_reg_mr failed: Cannot allocate memory [12]",
    ),
    ("disk-or-cache-unwritable", "", HIT + WEIGHTS + "OSError: [Errno 28] No space left on device"),
    ("disk-or-cache-unwritable", "", "PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub'"),
    ("disk-or-cache-unwritable", "", "OSError: [Errno 30] Read-only file system: '/models/.cache'"),
    (
        "dist-init-peer-missing",
        "dist-init",
        HIT
        + DIST
        + "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 20000).",
    ),
    (
        "dist-init-peer-missing",
        "dist-init",
        HIT
        + DIST
        + "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 8/16 clients joined.",
    ),
    (
        "dist-init-peer-missing",
        "",
        "[rank8]:[E301 10:00:00.1 ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    (
        "dist-init-peer-missing",
        "",
        HIT
        + DIST
        + "RuntimeError: Gloo connectFullMesh failed with SO_ERROR: Connection refused, remote=[127.0.1.1]:20222",
    ),
    (
        "dist-init-peer-missing",
        "",
        HIT
        + DIST
        + "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] connect [10.1.0.4]:2345: No route to host",
    ),
    (
        "nccl-init-failure",
        "dist-init",
        HIT + DIST + "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ),
    (
        "nccl-init-failure",
        "dist-init",
        HIT
        + DIST
        + "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled cuda error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.",
    ),
    (
        "nccl-init-failure",
        "",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage, NCCL version 2.26.2\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 4f000",
    ),
    (
        "nccl-collective-timeout",
        "serving",
        MAIN
        + "The server is fired up and ready to roll!\n[rank3]:[E301 10:10:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
    ),
    ("nccl-collective-timeout", "", "DeepEP timeout check failed: rank = 3, thread = 77"),
    (
        "nccl-collective-timeout",
        "",
        "[rank5]:[F301 10:00:00.1 ProcessGroupNCCL.cpp:1224] [PG 3 Rank 5] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
    ),
    (
        "peer-rank-death",
        "",
        HIT
        + FORWARD
        + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:39512",
    ),
    (
        "peer-rank-death",
        "weights",
        HIT
        + LOAD
        + "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
    ),
    (
        "peer-rank-death",
        "",
        HIT + "RuntimeError: Rank 0 failed to pass monitoredBarrier in 300000 ms\n Please check rank 3 ",
    ),
    (
        "peer-rank-death",
        "",
        "[rank1]:[W301 10:00:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=77, addr=[localhost]:40000, remote=[localhost]:30001): failed to recv, got 0 bytes",
    ),
    (
        "port-in-use",
        "warmup",
        MAIN
        + "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
    ),
    (
        "port-in-use",
        "",
        HIT
        + DIST
        + "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 30233, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    (
        "port-in-use",
        "",
        POST_INIT + "ValueError: The port 30000 is in use, but we could not find the process that uses it.",
    ),
    ("port-in-use", "", "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30005')"),
    ("port-in-use", "", "OSError: [Errno 98] Address already in use"),
    (
        "model-path-missing",
        "launch",
        CONFIG
        + "OSError: /models/none does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/none/tree/main' for available files.",
    ),
    (
        "model-path-missing",
        "launch",
        CONFIG
        + "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/x'. Use `repo_type` argument if needed.",
    ),
    (
        "model-path-missing",
        "",
        "OSError: meta/none is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    ),
    (
        "model-path-missing",
        "",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
    ),
    ("model-path-missing", "weights", HIT + LOAD + "RuntimeError: Cannot find any model weights with `/models/empty`"),
    (
        "model-path-missing",
        "",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the local disk and outgoing traffic has been disabled.",
    ),
    (
        "model-path-missing",
        "",
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/m/model-00007-of-00163.safetensors'",
    ),
    (
        "model-auth-gated",
        "",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-66)\n\nCannot access gated repo for url https://huggingface.co/meta-llama/x/resolve/main/config.json.",
    ),
    (
        "model-auth-gated",
        "",
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/google/gemma.",
    ),
    (
        "checkpoint-corrupt",
        "weights",
        HIT
        + WEIGHTS
        + "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
    ),
    (
        "checkpoint-corrupt",
        "weights",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    ),
    (
        "checkpoint-corrupt",
        "",
        HIT
        + WEIGHTS
        + "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    ("checkpoint-corrupt", "weights", HIT + WEIGHTS + "KeyError: 'model.layers.5.mlp.experts.w13_weight_scale_inv'"),
    (
        "model-arch-unsupported",
        "weights",
        HIT
        + LOAD
        + "ValueError: FooBarForCausalLM has no SGLang implementation and the Transformers implementation is not compatible with SGLang.",
    ),
    (
        "model-arch-unsupported",
        "",
        HIT
        + LOAD
        + "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: dict_keys(['LlamaForCausalLM'])",
    ),
    (
        "model-arch-unsupported",
        "launch",
        CONFIG
        + "ValueError: The checkpoint you are trying to load has model type `foo4` but Transformers does not recognize this architecture.",
    ),
    ("model-arch-unsupported", "launch", CONFIG + "KeyError: 'qwen9_moe'"),
    (
        "parallelism-invalid",
        "weights",
        HIT
        + LOAD
        + frame("sglang/srt/layers/quantization/fp8.py", "create_weights")
        + "ValueError: Weight output_partition_size = 192 is not divisible by weight quantization block_n = 128.",
    ),
    (
        "parallelism-invalid",
        "",
        HIT
        + LOAD
        + frame("sglang/srt/distributed/utils.py", "ensure_divisibility")
        + "AssertionError: 40 is not divisible by 16",
    ),
    (
        "parallelism-invalid",
        "",
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
    ),
    ("parallelism-invalid", "", POST_INIT + "AssertionError: tp_size must be divisible by number of nodes"),
    (
        "quantization-mismatch",
        "",
        HIT
        + LOAD
        + "ValueError: Quantization method specified in the model config (awq) does not match the quantization method specified in the `quantization` argument (fp8).",
    ),
    (
        "quantization-mismatch",
        "",
        HIT
        + LOAD
        + "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]",
    ),
    ("quantization-mismatch", "", "ValueError: Unknown quantization method: foo4. Must be one of ['fp8', 'awq']."),
    (
        "spec-decode-config",
        "",
        HIT
        + LOAD
        + "ValueError: Warning: Target model's context_length (32768) is greater than the derived context_length (8192). This may lead to incorrect model outputs or CUDA errors.",
    ),
    (
        "spec-decode-config",
        "launch",
        POST_INIT
        + "ValueError: speculative_eagle_topk(4) > 1 with page_size(64) > 1 is unstable and produces incorrect results for paged attention backends.",
    ),
    (
        "spec-decode-config",
        "",
        HIT
        + CAPTURE
        + "AttributeError: 'Foo25ForConditionalGeneration' object has no attribute 'set_eagle3_layers_to_capture'",
    ),
    (
        "spec-decode-config",
        "",
        POST_INIT + "ValueError: Currently standalone speculative decoding does not support dp attention.",
    ),
    (
        "spec-decode-config",
        "",
        HIT
        + INIT
        + frame("sglang/srt/speculative/eagle_worker.py", "__init__")
        + frame("sglang/srt/speculative/eagle_worker.py", "init_cuda_graphs")
        + "RuntimeError: CHECK_EQ(input.size(1), weight.size(0)) failed. 2048 vs 4096",
    ),
    (
        "server-args-invalid",
        "launch",
        "usage: sglang serve [-h] --model-path MODEL_PATH\nsglang serve: error: unrecognized arguments: --no-such-option 7",
    ),
    ("server-args-invalid", "launch", "launch_server.py: error: argument --tp-size/--tp: invalid int value: 'eight'"),
    (
        "server-args-invalid",
        "launch",
        "launch_server.py: error: argument --attention-backend: invalid choice: 'nope' (choose from 'triton', 'fa3')",
    ),
    (
        "server-args-invalid",
        "launch",
        POST_INIT + "AssertionError: chunked_prefill_size must be divisible by page_size",
    ),
    (
        "server-args-invalid",
        "launch",
        POST_INIT + "ValueError: served_model_name cannot contain a colon (':') character.",
    ),
    (
        "server-args-invalid",
        "launch",
        "ValueError: User-specified context_length (131072) is greater than the derived context_length (32768). This may lead to incorrect model outputs or CUDA errors.",
    ),
    (
        "tokenizer-or-template-error",
        "launch",
        TOKENIZER + "ValueError: Tokenizer class FooTokenizer does not exist or is not currently imported.",
    ),
    (
        "tokenizer-or-template-error",
        "launch",
        "OSError: Can't load tokenizer for '/models/x'. If you were trying to load it from 'https://huggingface.co/models', make sure you don't have a local directory with the same name.",
    ),
    ("tokenizer-or-template-error", "", "jinja2.exceptions.TemplateSyntaxError: unexpected 'endfor'"),
    ("tokenizer-or-template-error", "launch", TOKENIZER + "AttributeError: 'list' object has no attribute 'keys'"),
    (
        "gpu-arch-unsupported",
        "",
        HIT + FORWARD + "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    (
        "gpu-arch-unsupported",
        "",
        HIT
        + CAPTURE
        + "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`.",
    ),
    (
        "gpu-arch-unsupported",
        "",
        "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 80. Current capability: 75.",
    ),
    (
        "driver-or-dependency-mismatch",
        "launch",
        "ImportError: /venv/lib/python3.12/site-packages/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab",
    ),
    (
        "driver-or-dependency-mismatch",
        "launch",
        "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library! Attempted locations:",
    ),
    (
        "driver-or-dependency-mismatch",
        "",
        "Exception: flashinfer_python is installed with version 0.2.3, which is less than the minimum required version 0.2.7.",
    ),
    (
        "driver-or-dependency-mismatch",
        "",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    ),
    ("driver-or-dependency-mismatch", "", "ModuleNotFoundError: No module named 'flashinfer'"),
    (
        "driver-or-dependency-mismatch",
        "",
        "ImportError: cannot import name 'AutoModelForImageTextToText' from 'transformers'",
    ),
    (
        "jit-compile-failure",
        "",
        HIT
        + CAPTURE
        + frame("flashinfer/jit/core.py", "build_and_load")
        + "RuntimeError: Ninja build failed. Ninja output:\nninja: build stopped: subcommand failed.",
    ),
    ("jit-compile-failure", "", "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
    (
        "jit-compile-failure",
        "",
        HIT + CAPTURE + "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
    ),
    (
        "jit-compile-failure",
        "",
        HIT
        + CAPTURE
        + "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpabc/main.c', '-O3']' returned non-zero exit status 1.",
    ),
    ("gpu-hardware-fault", "", HIT + FORWARD + "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    (
        "gpu-hardware-fault",
        "",
        "[Wed Mar  4 10:00:00 2026] NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ),
    (
        "cuda-kernel-fault",
        "serving",
        HIT + FORWARD + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    ("cuda-kernel-fault", "serving", HIT + FORWARD + "RuntimeError: CUDA error: device-side assert triggered"),
    (
        "native-crash",
        "",
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "/venv/sglang/srt/managers/scheduler.py", line 77 in run_batch',
    ),
    (
        "native-crash",
        "",
        MAIN + "Subprocess scheduler_0 (pid=77) crashed with exit code -11. Triggering SIGQUIT for cleanup...",
    ),
    (
        "scheduler-hang",
        "serving",
        TP0
        + "Watchdog timeout (self.watchdog_timeout=300)\n"
        + MAIN
        + "Received sigquit from a child process. It usually means the child failed.",
    ),
    (
        "scheduler-hang",
        "serving",
        "[2026-03-01 10:00:00 PP1 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    ),
    (
        "scheduler-software-bug",
        "serving",
        HIT
        + LOOP
        + "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=77, protected_size=0, self.max_total_num_tokens=99",
    ),
    (
        "scheduler-software-bug",
        "serving",
        HIT + FORWARD + "AttributeError: 'NoneType' object has no attribute 'extend_input_len'",
    ),
    (
        "scheduler-software-bug",
        "serving",
        HIT
        + FORWARD
        + "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`.",
    ),
    (
        "server-warmup-failed",
        "warmup",
        MAIN
        + "INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)\n"
        + MAIN
        + "Initialization failed. warmup error: Traceback (most recent call last):\n"
        + frame("sglang/srt/entrypoints/http_server.py", "_execute_server_warmup")
        + "AssertionError: <Response [502]>",
    ),
    (
        "server-warmup-failed",
        "warmup",
        MAIN
        + "Initialization failed. warmup error: Traceback (most recent call last):\n"
        + frame("sglang/srt/entrypoints/http_server.py", "_wait_and_warmup")
        + "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out. (read timeout=600)",
    ),
    (
        "kv-pool-exhausted",
        "serving",
        TP0 + "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5000 -> 0.7000",
    ),
    (
        "kv-pool-exhausted",
        "serving",
        TP0 + "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.4 -> 0.9",
    ),
    (
        "pd-disaggregation-failure",
        "",
        TP0
        + "Decode transfer failed for request rank=0 decode_req.req.rid='77' decode_req.req.bootstrap_room=99 with exception KVTransferError(bootstrap_room=99): Failed to get kvcache from prefill instance, it might be dead",
    ),
    ("pd-disaggregation-failure", "", TP0 + "Could not fetch prefill parallel info from bootstrap_addr: 10.0.0.1:8998"),
    (
        "pd-disaggregation-failure",
        "",
        TP0 + "Losing connection with prefill instance (bootstrap_addr: 10.0.0.1:8998), 3 requests affected",
    ),
    ("numeric-nan", "serving", TP0 + "Detected errors during sampling! NaN in the logits."),
    (
        "numeric-nan",
        "serving",
        HIT + FORWARD + "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    ),
    (
        "external-termination",
        "serving",
        MAIN
        + "SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
        + MAIN
        + "Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].",
    ),
    (
        "health-probe-misread",
        "serving",
        MAIN
        + "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 10:00:20. last_heartbeat time: 10:00:05",
    ),
    (
        "scheduler-hang",
        "serving",
        MAIN
        + "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 10:20:20. last_heartbeat time: 10:00:05",
    ),
    (
        "slow-jit-warmup",
        "graph-capture",
        TP0 + "Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)",
    ),
    (
        "slow-weight-load",
        "weights",
        "Loading safetensors checkpoint shards:  12% Completed | 20/163 [10:10<1:12:00, 30.51s/it]",
    ),
    ("healthy", "weights", "Multi-thread loading shards:  38% Completed | 3/8 [00:00<00:00, 22.90it/s]"),
    (
        "parallelism-invalid",
        "weights",
        HIT
        + LOAD
        + frame("sglang/srt/models/qwen2.py", "__init__").replace(
            "call()", "assert self.total_num_kv_heads % tp_size == 0"
        )
        + "AssertionError",
    ),
    ("server-args-invalid", "launch", POST_INIT.replace("call()", "assert self.page_size >= 1") + "AssertionError"),
    (
        "gpu-oom-graph-capture",
        "graph-capture",
        HIT + CAPTURE + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        "tokenizer-or-template-error",
        "",
        "ValueError: Unrecognized configuration class <class 'FooConfig'> to build an AutoTokenizer.",
    ),
    ("gpu-arch-unsupported", "", "RuntimeError: FlashInfer requires GPUs with sm75 or higher"),
    (
        "gpu-arch-unsupported",
        "",
        HIT
        + FORWARD
        + "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
    ),
    ("driver-or-dependency-mismatch", "launch", "/usr/bin/python3: No module named sglang.launch_server"),
    (
        "driver-or-dependency-mismatch",
        "",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    ),
    ("nccl-init-failure", "", "RuntimeError: CUDART error: peer access is not supported between these two devices"),
    (
        "dist-init-peer-missing",
        "dist-init",
        HIT
        + DIST
        + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    ),
    ("native-crash", "", "sglang.service: Main process exited, code=dumped, status=11/SEGV"),
    ("host-oom-killed", "", "sglang.service: Main process exited, code=killed, status=9/KILL"),
    ("checkpoint-corrupt", "weights", HIT + WEIGHTS + "OSError: [Errno 5] Input/output error"),
    ("slow-jit-warmup", "graph-capture", "DeepGEMM warmup:  45%|████▌     | 7372/16384 [05:04<06:12, 24.20it/s]"),
    ("slow-weight-load", "weights", "Fetching 163 files:  10%|█         | 16/163 [10:00<1:30:00, 37.02s/it]"),
    (
        "healthy",
        "graph-capture",
        TP0
        + "max_total_num_tokens=100, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=8192",
    ),
    (
        "healthy",
        "serving",
        TP0
        + "Decode batch. #running-req: 4, #token: 9071, token usage: 0.01, cuda graph: True, gen throughput (token/s): 77.0, #queue-req: 0",
    ),
    ("nccl-collective-timeout", "", "DeepEP error: CPU recv timeout"),
    ("healthy", "serving", MAIN + "The server is fired up and ready to roll!"),
]


def diagnose(text: str, engine: str = "sglang") -> tuple[DiagnosisView, str, str]:
    story = LogStory(load_profile(engine))
    story.read(LineCutter().feed(text.encode() + b"\n"))
    outcome = story.conclude()
    return outcome.diagnosis, outcome.stage, outcome.verdict


@pytest.mark.parametrize(("cause", "stage", "text"), CASES, ids=[f"{n:03}-{case[0]}" for n, case in enumerate(CASES)])
def test_wording_leads_to_its_class(cause: str, stage: str, text: str) -> None:
    diagnosis, seen, _ = diagnose(text, "vllm" if text.startswith("ERROR 03") else "sglang")
    assert diagnosis.cause == cause
    assert stage in ("", seen)


def test_every_class_has_a_remedy_and_a_case() -> None:
    profile = load_profile("sglang")
    assert len(profile.causes) == 44
    assert all(cause.remedy and cause.restart in ("yes", "no", "maybe") for cause in profile.causes)
    untested = {cause.name for cause in profile.causes} - {case[0] for case in CASES}
    assert untested == {"nccl-init-hang", "jit-compile-stall", "insufficient-evidence"}  # test_story.py has these


def test_an_orderly_end_is_somebodys_wish() -> None:
    stopped = MAIN + "The server is fired up and ready to roll!\n" + MAIN + "INFO:     Shutting down\n"
    diagnosis, stage, verdict = diagnose(stopped)
    assert (verdict, stage, diagnosis.cause) == ("crashed", "serving", "external-termination")
    failed = (
        MAIN
        + "Initialization failed. warmup error: Traceback (most recent call last):\nX\n"
        + MAIN
        + "INFO:     Shutting down\n"
    )
    assert diagnose(failed)[0].cause == "server-warmup-failed"
