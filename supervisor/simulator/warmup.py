"""Plays the warm-up thread: waits for the own port, sends one request, declares the server ready."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import NoReturn

from supervisor.simulator import texts
from supervisor.simulator.engine import Engine, Status
from supervisor.simulator.plan import Fate, FateKind, Plan
from supervisor.simulator.scenario import Kind, Scenario, slowness

_TRIES = 120
_PATIENCE_S = 5.0
_WARMUP_TOKENS = 8
_WARMUP_PROMPT = 7
_WAIT_FOR_DECODE_S = 0.5
_CLIENT_PORT = 50310


def warm_up(engine: Engine, plan: Plan, give_up: Callable[[], NoReturn]) -> None:
    """Thread body. Status turns UP just before the `fired up` line, as in the real one; give_up kills the tree."""
    options, log = plan.options, engine.log
    if options.node_rank > 0:
        engine.status = Status.UP
        return
    if not options.skip_server_warmup:
        engine.clock.sleep(0.5)
        client = f"{options.host}:{_CLIENT_PORT}"
        log.record(texts.access(client, "GET", plan.dialect.model_info_path, 200, "OK"), stdout=True)
        engine.handlers_installed = True
        if plan.warmup_fate:
            _meet(engine, plan.warmup_fate, give_up)
        warmup_s = options.seconds("warmup") * slowness(options.scenarios, "warmup")
        engine.clock.sleep(max(0.0, warmup_s - 0.5 - _WAIT_FOR_DECODE_S))
        for _ in engine.generate(_WARMUP_PROMPT, _WARMUP_TOKENS):
            pass
        log.record(texts.access(client, "POST", "/generate", 200, "OK"), stdout=True)
    engine.status = Status.UP
    log.record(texts.FIRED_UP)
    for scenario in plan.serving:
        _misbehave(engine, scenario)


def _misbehave(engine: Engine, scenario: Scenario) -> None:
    """What goes wrong in the launcher itself once it is ready."""
    match scenario.kind:
        case Kind.HOSTILE:
            for data in texts.hostile_texts():
                engine.log.raw(data, stdout=True)
        case Kind.ZOMBIE_200:
            engine.clock.sleep(scenario.after_s or 0.0)
            engine.become_zombie(scenario.dead)
        case _:
            return  # the schedulers' business


def _meet(engine: Engine, fate: Fate, give_up: Callable[[], NoReturn]) -> NoReturn:
    for emission in fate.emissions:
        engine.log.emit(emission)
    if fate.kind is FateKind.CRASH:
        give_up()
    threading.Event().wait()  # for ever: the server goes on to answer 503
    raise AssertionError("an event that nobody sets was set")


def warm_up_somebody_else(engine: Engine) -> None:
    """Thread body after a lost port: talks to whoever owns it and takes a 200 for its own (fact 7 of the catalogue)."""
    for _ in range(_TRIES):
        if _ask(engine, "GET", engine.plan.dialect.model_info_path, b""):
            body = {"text": "The capital city of France is", "sampling_params": {"max_new_tokens": 8}}
            if _ask(engine, "POST", "/generate", json.dumps(body).encode()):
                engine.log.record(texts.FIRED_UP)
                engine.status = Status.UP
            return
        engine.clock.sleep(1.0)


def _ask(engine: Engine, method: str, path: str, body: bytes) -> bool:
    options = engine.options
    head = f"{method} {path} HTTP/1.1\r\nhost: {options.host}\r\nconnection: close\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection((options.host, options.port), engine.clock.real(_PATIENCE_S) + 0.2) as connection:
            connection.sendall(head.encode() + body)
            return b" 200 " in connection.recv(64)
    except OSError:
        return False  # refused or silent: asked again a second later, as the real one does
