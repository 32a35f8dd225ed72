"""The fake vLLM: what it prints, how it ends, and what it refuses to play."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest

from supervisor.simulator.scenario import ScenarioError
from supervisor.simulator.vllm.failures import CAUSES
from supervisor.simulator.vllm.options import PHASE_SECONDS, parse_options
from supervisor.simulator.vllm.script import render
from tests.simulator.conftest import Engine

TP2 = ("--engine", "vllm", "--tensor-parallel-size", "2")
UP = b"Application startup complete."


def rendered(*arguments: str) -> str:
    return b"".join(render(parse_options([*TP2, *arguments], {}))).decode()


# --- its log ---------------------------------------------------------------------------------------------------------


def test_every_process_names_itself_in_its_lines() -> None:
    log = rendered()
    for name in ("APIServer", "EngineCore", "Worker_TP0", "Worker_TP1"):
        assert f"({name} pid=" in log
    assert log.count("Loading safetensors checkpoint shards") == 17, "one rank draws the bar"
    alone = b"".join(render(parse_options(["--engine", "vllm"], {}))).decode()
    assert "(Worker pid=" in alone


def test_a_traceback_has_the_prefix_before_every_line() -> None:
    log = rendered("--scenario", "crash:phase=weights,cause=gpu-oom-weights")
    lines = [line for line in log.split("\n") if "(Worker_TP0" in line and "ERROR" in line]
    assert len(lines) >= 5
    assert all(line.endswith("\r") for line in lines[:-1])
    assert "Process EngineCore:\nTraceback" in log, "and then Python's own, without any"
    assert "Engine core initialization failed" in log


def test_without_graphs_nothing_is_compiled_or_captured() -> None:
    log = rendered("--enforce-eager")
    assert "torch.compile" not in log
    assert "Capturing" not in log
    assert "Application startup complete" in log


def test_a_rank_that_stalls_is_silent_and_the_others_wait() -> None:
    log = rendered("--scenario", "stall:phase=weights,rank=TP1,after=10%")
    assert "(Worker_TP0 pid=4242) INFO 11-29 08:01:31 [gpu_model_runner.py:5150] Model loading took" in log
    assert "Worker_TP1" in log
    assert "Worker_TP1 pid=4242) INFO 11-29 08:01:31" not in log
    assert "compile" not in log


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_can_be_rendered(cause: str) -> None:
    assert rendered("--scenario", f"crash:phase=weights,cause={cause}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "zombie-200"], "cannot play 'zombie-200' with this engine"),
        (["--scenario", "stall:phase=verify-graph"], "cannot play phase 'verify-graph'"),
        (["--scenario", "stall:phase=compile", "--enforce-eager"], "cannot play phase 'compile'"),
        (["--phase-seconds", "tokenizer=1"], "cannot set the seconds of 'tokenizer'"),
        (["--speed", "0"], "cannot play at speed 0.0"),
    ],
)
def test_what_cannot_be_played_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        parse_options([*TP2, *arguments], {})


def test_options_of_the_engine() -> None:
    read = parse_options(["--engine", "vllm", "/models/a", "--port", "9", "-tp", "4", "--unknown", "x"], {})
    assert (read.model, read.port, read.tensor_parallel_size) == ("/models/a", 9, 4)
    assert parse_options(["--engine=vllm", "--model", "/models/b"], {}).model == "/models/b"
    assert parse_options(["--scenario", "slow:factor=2,phase=weights"], {}).seconds("weights") == 120.0
    assert set(PHASE_SECONDS) == set(parse_options([], {}).phases)


# --- its life --------------------------------------------------------------------------------------------------------


def test_it_listens_last_and_stops_with_0(start: Callable[..., Engine]) -> None:
    engine = start(*TP2)
    log = engine.until(UP)
    assert log.index(b"Starting vLLM server") < log.index(UP)
    status, body = engine.fetch("/v1/models")
    assert (status, b'"owned_by": "vllm"' in body) == (200, True)
    assert {one.command for one in engine.tree() if "VLLM" in one.command} == {
        "VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"
    }  # fmt: skip
    engine.process.send_signal(signal.SIGTERM)
    assert engine.ended() == 0
    assert engine.gone()


def test_a_term_while_it_starts_is_not_obeyed(start: Callable[..., Engine]) -> None:
    engine = start(*TP2, "--phase-seconds", "compile=300")
    engine.until(b"Dynamo bytecode")
    engine.process.send_signal(signal.SIGTERM)
    engine.until(UP)


def test_a_dead_worker_ends_it_with_0(start: Callable[..., Engine]) -> None:
    engine = start(*TP2)
    engine.until(UP)
    os.kill(engine.child("VLLM::Worker_TP1"), signal.SIGKILL)
    assert engine.ended() == 0
    assert engine.gone()
    assert b"Worker proc VllmWorker-1 died unexpectedly (exit code: -9)" in engine.log
    assert b"EngineDeadError" in engine.log


def test_a_taken_port_is_found_at_once(start: Callable[..., Engine]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        engine = start(*TP2, port=other.getsockname()[1])
        assert engine.ended() == 1
    assert b"[Errno 98] Address already in use" in engine.log
    assert b"EngineCore" not in engine.log
