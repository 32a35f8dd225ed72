"""Writes the lines of the launcher, the HTTP server and the serving schedulers."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from supervisor.simulator.dialect import Dialect
from supervisor.simulator.options import Options

FIRED_UP = "The server is fired up and ready to roll!"
SIGQUIT_AT_LAUNCH = "Received sigquit from a child process. It usually means the child failed."
SIGQUIT_WHILE_SERVING = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
SIGTERM = "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
HEALTH_WHILE_DRAINING = "Health check request received during shutdown. Returning 503."
CHAT_TEMPLATE = "Using default HuggingFace chat template with detected content format: string"
CLAMP = "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
RESET_48 = (
    "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting "
    "--max-running-requests."
)
SLEEP_BEFORE_DIAGNOSTICS = "Sleeping 5 seconds before crash diagnostics to let GPU activity settle."
NO_LIVE_SCHEDULERS = "No live scheduler processes found; skipping py-spy and CUDA coredump."
WAITING_FOR_COREDUMPS = "Waiting 60.0 seconds for CUDA coredumps before exiting."
CONFIG_ERROR = "error: argument --tp-size/--tensor-parallel-size/--tp: invalid int value: 'eight'"


def serve_warning() -> str:
    return (
        "/opt/sglang/lib/python3.12/site-packages/sglang/launch_server.py:71: UserWarning: 'python -m "
        "sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]\n  warnings.warn(\n"
    )


def usage_error() -> str:
    """The real usage text is 37 kB long; its last line is the reason."""
    facts = _server_args_facts()
    flags = [f"[--{name.strip('_').replace('_', '-')} {name.strip('_').upper()}]" for name in facts]
    lines = ["usage: launch_server.py [-h] --model-path MODEL_PATH"]
    lines += ["                        " + " ".join(flags[n : n + 2]) for n in range(0, len(flags), 2)]
    return "\n".join(lines) + f"\nlaunch_server.py: {CONFIG_ERROR}\n"


def server_args_line(options: Options, dialect: Dialect) -> str:
    """One line of some 18 kB: a repr up to 0.5.18, a dict from 0.5.19."""
    facts = _server_args_facts()
    facts.update(_given(options))
    if dialect.args_as_dict:
        return f"server_args={facts!r}"
    return "server_args=ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in facts.items()) + ")"


def _server_args_facts() -> dict[str, object]:
    facts: dict[str, object] = json.loads(Path(__file__).with_name("server_args.json").read_text("utf-8"))
    return facts


def _given(options: Options) -> dict[str, object]:
    values: dict[str, object] = {
        "model_path": options.model_path, "tokenizer_path": options.model_path,
        "served_model_name": options.model_name, "host": options.host, "port": options.port, "tp_size": options.tp,
        "dp_size": options.dp, "pp_size": options.pp, "ep_size": options.ep, "nnodes": options.nnodes,
        "node_rank": options.node_rank, "enable_dp_attention": options.enable_dp_attention,
        "api_key": options.api_key or None, "enable_metrics": options.enable_metrics,
        "log_level": options.log_level, "watchdog_timeout": options.watchdog_timeout_s,
        "skip_server_warmup": options.skip_server_warmup, "disable_cuda_graph": options.disable_cuda_graph,
        "disaggregation_mode": options.disaggregation_mode,
    }  # fmt: skip
    if options.speculative:
        values |= {
            "speculative_algorithm": options.speculative_algorithm.upper(),
            "speculative_draft_model_path": options.speculative_draft_model_path,
            "speculative_num_steps": options.speculative_num_steps,
            "speculative_eagle_topk": options.speculative_eagle_topk,
            "speculative_num_draft_tokens": options.draft_tokens, "max_running_requests": 48,
        }  # fmt: skip
    return values


def watchdog_timeout(dialect: Dialect, seconds: float) -> str:
    """Reworded in 0.5.7."""
    if not dialect.elapsed_in_load:
        return f"Watchdog timeout (self.watchdog_timeout={seconds})"
    return f"Scheduler watchdog timeout (self.watchdog_timeout={seconds}, self.soft=False)"


def startup_timings(options: Options) -> str:
    capture = options.seconds("verify-graph" if options.speculative else "target-graph")
    graphs = f"prefill={capture * 0.4:.2f}, decode=0.00, target_verify={capture * 0.6:.2f}, draft_prefill=0.00, "
    graphs += "draft_decode=0.00, draft_extend=0.00"
    load = options.seconds("weights")
    return (
        f"Engine startup timings (s): load_weight={load:.2f}, kv_cache_allocation="
        f"{options.seconds('memory-pool'):.2f}, scheduler_e2e={load + capture + 12:.2f}, cuda_graph={{{graphs}}}, "
        "tokenizer_e2e=1.52"
    )


def uvicorn(level: str, message: str) -> str:
    return f"{level + ':':<9} {message}"


def uvicorn_running(host: str, port: int) -> str:
    return uvicorn("INFO", f"Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")


def bind_error(host: str, port: int, number: int) -> str:
    where = f"('{host}', {port})"
    why = "address already in use" if number == errno.EADDRINUSE else os.strerror(number).lower()
    return uvicorn("ERROR", f"[Errno {number}] error while attempting to bind on address {where}: {why}")


def access(client: str, method: str, path: str, status: int, reason: str) -> str:
    return uvicorn("INFO", f'{client} - "{method} {path} HTTP/1.1" {status} {reason}')


def prefill_batch(dialect: Dialect, tokens: int, running: int) -> str:
    mark = "," if dialect.batch_comma else "."
    tail = "#pending-token: 0, cuda graph: True, input throughput (token/s): 11.06" if dialect.new_wording else ""
    text = f"Prefill batch{mark} #new-seq: 1, #new-token: {tokens}, #cached-token: 0, token usage: 0.00, "
    return (text + f"#running-req: {running}, #queue-req: 0, {tail}").rstrip(", ")


def decode_batch(dialect: Dialect, running: int, tokens: int, rate: float, speculative: bool) -> str:
    mark = "," if dialect.batch_comma else "."
    accept = "accept len: 2.84, accept rate: 0.61, " if speculative else ""
    text = f"Decode batch{mark} #running-req: {running}, #token: {tokens}, token usage: 0.00, {accept}"
    return text + f"cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0"


def kill_process_tree(pid: int, include_parent: bool) -> str:
    return f"kill_process_tree called: parent_pid={pid}, include_parent={include_parent}, pid={pid}"


def crashed_subprocess(name: str, pid: int, code: int) -> str:
    return f"Subprocess {name} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup..."


def died_during_initialization(rank: int, code: int) -> str:
    """What a launcher from 0.5.10 on raises; the traceback is cut short."""
    return (
        "Traceback (most recent call last):\n"
        '  File "/opt/sglang/lib/python3.12/site-packages/sglang/srt/entrypoints/engine.py", line 2006, in '
        "_wait_for_scheduler_ready\n    raise RuntimeError(\n"
        f"RuntimeError: Rank {rank} scheduler died during initialization (exit code: {code}). If exit code is -9 "
        "(SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.\n"
    )


def dead_scheduler(rank: int) -> str:
    return f"Rank {rank} scheduler is dead. Please check if there are relevant logs."


def eof_traceback() -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "/opt/sglang/lib/python3.12/site-packages/sglang/srt/entrypoints/engine.py", line 892, in '
        "_launch_subprocesses\n    data = scheduler_pipe_readers[i].recv()\nEOFError\n"
    )


def keyboard_interrupt() -> str:
    return "Traceback (most recent call last):\nKeyboardInterrupt\n"


def hostile_texts() -> tuple[bytes, ...]:
    """What a malicious prompt puts into the log when requests are logged: forged markers, escapes, junk bytes."""
    forged = "]\\n[2026-01-01 00:00:00 TP3] Load weight begin. avail mem=1.00 GB"
    request = "Receive: obj=GenerateReqInput(rid='c6e0aad4', text='%s')\n"
    return (
        (request % forged).encode(),
        (request % "\n[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call").encode(),
        (request % "Received sigquit from a child process. It usually means the child failed.").encode(),
        (request % "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\r\x1b[A").encode(),
        b"Receive: obj=GenerateReqInput(text='\xff\xfe\x00\xc3\x28')\n",
        b"Receive: obj=GenerateReqInput(text='" + b"A" * 1_000_000 + b"')\n",
        (request % "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB").encode(),
    )


def health_failed() -> str:
    return (
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
        "tic start time: 04:12:09. last_heartbeat time: 04:11:47"
    )


def server_info(options: Options, dialect: Dialect) -> dict[str, object]:
    return _server_args_facts() | _given(options) | {"version": dialect.version, "internal_states": [{}]}


def failed_dumps(pids: list[int]) -> list[str]:
    """The crash path without py-spy and without CUDA core dumps, as recorded."""
    lines = [f"All pyspy dump attempts failed for PID {pid}." for pid in pids]
    hint = "CUDA user-triggered coredump is not enabled. Set CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 before CUDA "
    hint += "initialization."
    return [*lines, hint, WAITING_FOR_COREDUMPS]


def dummy_server(host: str, port: int) -> str:
    return f"Dummy health check server started in background thread at {host}:{port}"


def sigterm_on_node(node_rank: int) -> str:
    waiting = "waiting for the rank-0 ShutdownReq broadcast to stop the schedulers."
    return f"SIGTERM received on node_rank {node_rank}; {waiting}"
