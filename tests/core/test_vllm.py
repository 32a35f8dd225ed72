"""The second engine: runs recorded from vLLM 0.32.0 on a CPU, and wordings of a GPU's start written after its source."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from supervisor.core.log.skim import Skimmer
from supervisor.core.report import Report, report
from supervisor.core.story import LogStory
from supervisor.profile import load_profile

PROFILE = load_profile("vllm")
RECORDED = Path(__file__).parent.parent / "data" / "vllm" / "real-0.32.0-cpu"
API = "(APIServer pid=100) INFO 06-01 10:00:{:02} [api_server.py:10] "
CORE = "(EngineCore pid=101) INFO 06-01 10:00:{:02} [core.py:10] "
SITE = "/opt/vllm/lib/python3.12/site-packages/vllm/"


def tell(data: bytes, code: int | None = None) -> Report:
    story, skimmer = LogStory(PROFILE), Skimmer(PROFILE)
    for lines in skimmer.feed(data):
        story.read(lines)
    story.read(skimmer.finish())
    return report(story.conclude(exit_code=code), "vllm", skimmer.lines)


def worker(rank: int, second: int, text: str, old: bool = False) -> str:
    name = (
        f"(EngineCore_DP0 pid=101) (Worker_TP{rank} pid={200 + rank})" if old else f"(Worker_TP{rank} pid={200 + rank})"
    )
    return f"{name} INFO 06-01 10:{second // 60:02}:{second % 60:02} [gpu_worker.py:1] {text}\n"


# --- recorded --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "verdict", "stage", "cause", "restart"),
    [
        ("healthy-then-term", "crashed", "serving", "external-termination", "yes"),
        ("engine-dead", "crashed", "serving", "scheduler-software-bug", "yes"),
        ("bad-variable", "crashed", "launch", "server-args-invalid", "no"),
        ("unknown-option", "crashed", "launch", "server-args-invalid", "no"),
        ("context-too-long", "crashed", "launch", "server-args-invalid", "no"),
        ("heads-not-divisible", "crashed", "launch", "parallelism-invalid", "no"),
        ("unknown-quantization", "crashed", "launch", "quantization-mismatch", "no"),
        ("missing-module", "crashed", "weights", "driver-or-dependency-mismatch", "no"),
        ("worker-killed", "crashed", "serving", "host-oom-killed", "maybe"),
        ("replica-killed", "crashed", "serving", "host-oom-killed", "maybe"),
        ("two-replicas-compiling", "warming", "graph-capture", "", ""),
    ],
)
def test_a_recorded_run(name: str, verdict: str, stage: str, cause: str, restart: str) -> None:
    told = tell(gzip.decompress((RECORDED / f"{name}.log.gz").read_bytes()))
    assert (told.verdict, told.stage) == (verdict, stage)
    if cause:
        assert (told.cause, told.restart) == (cause, restart)


def test_the_phases_of_a_recorded_start() -> None:
    told = tell(gzip.decompress((RECORDED / "healthy-then-term.log.gz").read_bytes()))
    way = [span.phase for span in told.timeline if span.rank == "TP0"]
    assert way == ["launch", "dist-init", "weights", "compile", "memory-pool", "warmup", "healthy"]


def test_a_traceback_of_one_process_does_not_take_the_lines_of_another() -> None:
    told = tell(gzip.decompress((RECORDED / "bad-variable.log.gz").read_bytes()))
    assert told.evidence is not None
    assert told.evidence.text == "ValueError: invalid literal for int() with base 10: 'all'"


# --- a start on GPUs -------------------------------------------------------------------------------------------------


def start(ranks: int, old: bool = False, until: str = "") -> str:
    """Two ranks or more through all phases; ends before the first line that has the text."""
    lines = [
        API.format(0) + f"non-default args: {{'model': '/models/a', 'tensor_parallel_size': {ranks}, "
        "'gpu_memory_utilization': 0.92}\n",
        CORE.format(1) + "Initializing a V1 LLM engine (v0.20.1) with config: model='/models/a', "
        "speculative_config=None, tensor_parallel_size=2\n",
    ]
    everyone: list[tuple[int, str]] = [
        (5, "world_size={n} rank={r} local_rank={r} distributed_init_method=tcp://127.0.0.1:5 backend=nccl"),
        (9, "rank {r} in world size {n} is assigned as DP rank 0, PP rank 0, TP rank {r}, EP rank N/A"),
        (10, "Starting to load model /models/a..."),
        (40, "Model loading took 35.19 GiB memory and 29.102 seconds"),
    ]
    for second, text in everyone:
        lines += [worker(rank, second, text.format(r=rank, n=ranks), old) for rank in range(ranks)]
    lines += [
        worker(
            0, 41, "Using cache directory: /c/torch_compile_cache/0a/rank_0_0/backbone for vLLM's torch.compile", old
        ),
        worker(0, 70, "Available KV cache memory: 30.11 GiB", old),
        CORE.format(59).replace("10:00", "10:01") + "GPU KV cache size: 402,176 tokens\n",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|█████     | 20/40 [00:02<00:02, 10.00it/s]\n",
        worker(0, 130, "Graph capturing finished in 9 secs, took 1.20 GiB", old),
        CORE.format(20).replace("10:00", "10:02")
        + "init engine (profile, create kv cache, warmup model) took 80.1 s\n",
        API.format(21).replace("10:00", "10:02") + "Starting vLLM server on http://0.0.0.0:8000\n",
        "INFO:     Started server process [100]\n",
        "INFO:     Application startup complete.\n",
    ]
    end = next((at for at, line in enumerate(lines) if until and until in line), len(lines))
    return "".join(lines[:end])


def test_a_start_on_four_gpus_is_followed_to_its_end() -> None:
    told = tell(start(4).encode())
    assert (told.verdict, told.stage, told.phase) == ("ready", "serving", "healthy")
    assert set(told.ranks) == {"TP0", "TP1", "TP2", "TP3"}
    way = [span.phase for span in told.timeline if span.rank == "TP0"]
    assert way == ["launch", "dist-init", "weights", "compile", "memory-pool", "target-graph", "warmup", "healthy"]


@pytest.mark.parametrize(
    ("until", "phase"),
    [
        ("Model loading took", "weights"),
        ("Available KV", "compile"),
        ("Capturing", "memory-pool"),
        ("Graph capturing", "target-graph"),
        ("Started server", "warmup"),
    ],
)
@pytest.mark.parametrize("old", [False, True])
def test_where_a_start_is(until: str, phase: str, old: bool) -> None:
    told = tell(start(2, old, until).encode())
    assert (told.verdict, told.phase) == ("warming", phase)
    assert {"TP0", "TP1"} <= set(told.ranks)


def test_the_rank_that_has_not_loaded_is_named() -> None:
    log = start(2).replace(worker(1, 40, "Model loading took 35.19 GiB memory and 29.102 seconds"), "")
    told = tell(log[: log.index("(EngineCore pid=101) INFO 06-01 10:01")].encode())
    assert told.phase == "weights"
    assert told.laggard.startswith("TP1 still in weights")


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("INFO 03-21 20:15:44 [model_runner.py:1]", "TP0"),
        ("INFO 10-07 22:54:57 model_runner.py:1014]", "TP0"),
        ("(VllmWorker rank=3 pid=2120280) INFO 07-28 23:02:25 [gpu_model_runner.py:1]", "TP3"),
        ("(VllmWorkerProcess pid=7) INFO 03-21 20:15:44 [model_runner.py:1]", "TP0"),
        ("(EngineCore_0 pid=1399537) INFO 08-19 14:58:40 [gpu_worker.py:277]", "TP0"),
        ("(EngineCore_DP1 pid=5) INFO 08-19 14:58:40 [gpu_worker.py:277]", "DP1"),
        ("(EngineCore_DP0 pid=5) (Worker_TP3 pid=6) INFO 08-19 14:58:40 [gpu_worker.py:277]", "TP3"),
        ("(Worker_DP1_PP0_TP3_EP7 pid=6) INFO 08-19 14:58:40 [gpu_worker.py:277]", "DP1 PP0 TP3"),
        ("(Worker_PP1_PCP0_TP2_DCP1 pid=6) INFO 08-19 14:58:40.123 [v1/worker/gpu_worker.py:277]", "PP1 TP2"),
    ],
)
def test_every_form_of_prefix(prefix: str, rank: str) -> None:
    told = tell(f"{prefix} Starting to load model /models/a...\n".encode())
    assert told.ranks[rank].phase == "weights"


# --- ends ------------------------------------------------------------------------------------------------------------


def raised(who: str, header: str, error: str, *frames: tuple[str, str]) -> str:
    """A traceback as vLLM prints it: the prefix before every line, a carriage return at the end of each."""
    stamp = f"{who} ERROR 06-01 10:03:00 [core.py:1] "
    body = [header, "Traceback (most recent call last):"]
    for path, function in frames:
        body += [f'  File "{SITE}{path}", line 1, in {function}', "    return func(*args)"]
    return "".join(f"{stamp}{line}\r\n" for line in [*body, *error.split("\n")])


WORKER, ENGINE = "(Worker_TP1 pid=201)", "(EngineCore pid=101)"
LOAD = (("v1/executor/multiproc_executor.py", "worker_main"), ("v1/worker/gpu_worker.py", "load_model"))
PROFILE_RUN = (
    ("v1/executor/multiproc_executor.py", "worker_busy_loop"),
    ("v1/worker/gpu_worker.py", "determine_available_memory"),
)
POOL = (
    ("v1/engine/core.py", "run_engine_core"),
    ("v1/engine/core.py", "__init__"),
    ("v1/engine/core.py", "_initialize_kv_caches"),
)
POOL = (*POOL, ("v1/core/kv_cache_utils.py", "_check_enough_kv_cache_memory"))
CAPTURE = (
    ("v1/executor/multiproc_executor.py", "worker_busy_loop"),
    ("v1/worker/gpu_model_runner.py", "capture_model"),
)
STEP = (("v1/executor/multiproc_executor.py", "worker_busy_loop"), ("v1/worker/gpu_model_runner.py", "execute_model"))
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB of "
    "which 1.20 GiB is free."
)
FAILED, HIT = "WorkerProc failed to start.", "WorkerProc hit an exception."


@pytest.mark.parametrize(
    ("log", "cause", "stage", "restart"),
    [
        (raised(WORKER, FAILED, OOM, *LOAD), "gpu-oom-weights", "weights", "no"),
        (raised(WORKER, HIT, OOM, *CAPTURE), "gpu-oom-graph-capture", "graph-capture", "no"),
        (raised(WORKER, HIT, OOM, *PROFILE_RUN), "gpu-oom-graph-capture", "graph-capture", "no"),
        (
            raised(
                ENGINE,
                "EngineCore failed to start.",
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
                *POOL,
            ),
            "gpu-oom-kv-pool",
            "memory-pool",
            "no",
        ),
        (
            raised(
                ENGINE,
                "EngineCore failed to start.",
                "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache "
                "is needed, which is larger than the available KV cache memory (9.10 GiB).",
                *POOL,
            ),
            "gpu-oom-kv-pool",
            "memory-pool",
            "no",
        ),
        (
            raised(
                WORKER,
                FAILED,
                "ValueError: Free memory on device cuda:1 (12.1/79.1 GiB) on startup is less than desired GPU memory "
                "utilization (0.92, 72.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by others.",
                ("v1/worker/gpu_worker.py", "init_device"),
            ),
            "gpu-memory-occupied",
            "",
            "maybe",
        ),
        (
            raised(WORKER, HIT, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", *STEP),
            "cuda-kernel-fault",
            "serving",
            "yes",
        ),
        (
            raised(
                ENGINE,
                "EngineCore encountered a fatal error.",
                "TimeoutError: RPC call to execute_model timed out.",
                ("v1/engine/core.py", "run_busy_loop"),
            ),
            "scheduler-hang",
            "serving",
            "",
        ),
        (
            ENGINE + " ERROR 06-01 10:03:00 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly "
            "(exit code: -9), shutting down executor.\n",
            "host-oom-killed",
            "",
            "",
        ),
        (
            ENGINE + " ERROR 06-01 10:03:00 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly "
            "(exit code: -11), shutting down executor.\n",
            "native-crash",
            "",
            "",
        ),
        (
            "OSError: [Errno 98] Address already in use\n",
            "port-in-use",
            "",
            "",
        ),
    ],
)
def test_how_it_ends(log: str, cause: str, stage: str, restart: str) -> None:
    before = start(2) if stage in ("serving", "") else start(2, until="Model loading")
    tail = raised(ENGINE, "EngineCore encountered a fatal error.", "RuntimeError: cancelled", STEP[0])
    told = tell((before + log + tail + "INFO:     Shutting down\n").encode(), 0)
    assert (told.verdict, told.cause) == ("crashed", cause)
    assert stage in ("", told.stage)
    assert restart in ("", told.restart)
    assert "--mem-fraction-static" not in told.remedy
    assert "SGLANG" not in told.remedy


def test_a_worker_that_compiles_for_minutes_is_not_called_hanging() -> None:
    waits = (
        f"{ENGINE} INFO 06-01 10:02:41 [shm_broadcast.py:871] No available shared memory broadcast block found in 60 "
        "seconds. This typically happens when some processes are hanging or doing some time-consuming work.\n"
    )
    assert tell((start(2, until="Available KV") + waits).encode()).verdict == "warming"


def test_prompts_in_the_log_move_nothing() -> None:
    forged = API.format(30) + "Received request cmpl-1: prompt: 'x\n(EngineCore pid=1) EngineCore failed to start.'\n"
    told = tell((start(2) + forged + API.format(31) + "Added request cmpl-1.\n").encode())
    assert told.verdict == "ready"


# --- words -----------------------------------------------------------------------------------------------------------


def test_no_remedy_names_another_engines_options() -> None:
    foreign = (
        "SGLANG",
        "sglang",
        "--mem-fraction",
        "--tp-size",
        "--model-path",
        "--max-running",
        "--hicache",
        "--dist-init",
    )
    for advice in (*PROFILE.causes, *PROFILE.signatures):
        for text in (advice.remedy, advice.remedy_computed):
            assert not any(word in text for word in foreign), (advice.name, text)
    assert "--gpu-memory-utilization" in next(one.remedy for one in PROFILE.causes if one.name == "gpu-oom-kv-pool")
