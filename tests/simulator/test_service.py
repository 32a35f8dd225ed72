"""A fake engine that serves: its endpoints, its stops and its crashes, by dialect and as measured on the real one."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time

import pytest

DIALECTS = ("0.5.3", "0.5.9", "0.5.23")
READY = b"The server is fired up and ready to roll!"
LISTENING = b"Uvicorn running on"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_health_is_503_while_warming_and_200_afterwards(start, dialect):
    engine = start("--tp", "2", "--dialect", dialect, "--phase-seconds", "warmup=300")
    engine.until(LISTENING)
    assert engine.get("/health") == 503
    assert engine.get("/health_generate") == 503
    assert engine.get("/get_model_info") == 200
    engine.until(READY)
    assert engine.get("/health") == 200
    assert engine.get("/health_generate") == 200
    assert b'"GET /health HTTP/1.1" 503 Service Unavailable' in engine.until(b'"GET /health_generate HTTP/1.1" 200 OK')


def test_a_healthy_probe_takes_one_scaled_second(start):
    engine = start(speed=20.0, SGLSUP_SIM_SCENARIO="slow:factor=0.05")
    engine.until(READY, patience_s=40.0)
    began = time.monotonic()
    assert engine.get("/health") == 200
    assert 0.045 <= time.monotonic() - began < 0.5


@pytest.mark.parametrize(
    ("dialect", "served", "missing"),
    [
        ("0.5.3", ("/get_model_info", "/get_server_info"), ("/model_info", "/ready", "/metrics")),
        ("0.5.9", ("/model_info", "/server_info", "/v1/models"), ("/ready",)),
        ("0.5.23", ("/model_info", "/server_info", "/ready"), ("/nonsense",)),
    ],
)
def test_each_generation_has_its_endpoints(start, dialect, served, missing):
    engine = start("--dialect", dialect)
    engine.until(READY)
    assert {path: engine.get(path) for path in served} == dict.fromkeys(served, 200)
    assert {path: engine.get(path) for path in missing} == dict.fromkeys(missing, 404)


def test_the_model_tells_who_it_is(start):
    engine = start("--model-path", "/models/kimi", "--served-model-name", "kimi")
    engine.until(READY)
    info = json.loads(engine.fetch("/model_info")[1])
    assert (info["model_path"], info["served_model_name"]) == ("/models/kimi", "kimi")


def test_the_old_name_is_deprecated_but_answers(start):
    engine = start("--dialect", "0.5.23")
    engine.until(READY)
    assert engine.get("/get_model_info") == 200
    engine.until(b"Endpoint '/get_model_info' is deprecated")


def test_a_key_guards_all_but_the_probes(start):
    engine = start("--api-key", "secret", "--enable-metrics")
    log = engine.until(READY)
    assert b"'secret'" in log  # as in the real one: server_args shows it in clear
    assert engine.get("/v1/models") == 401
    assert engine.get("/health") == 200
    assert engine.get("/metrics") == 200


def test_generation_counts_tokens_in_the_log_and_in_the_metrics(start):
    engine = start("--enable-metrics", "--speculative-algorithm", "EAGLE3")
    engine.until(READY)
    status, body = engine.fetch("/generate", {"text": "a b c", "sampling_params": {"max_new_tokens": 90}})
    assert status == 200
    assert json.loads(body)["meta_info"]["completion_tokens"] == 90
    log = engine.until(b"Decode batch, #running-req: 1")
    assert b"accept len: " in log
    page = engine.fetch("/metrics")[1].decode()
    assert 'sglang:generation_tokens_total{model_name="/models/target"} 98.0' in page  # with the warm-up's eight
    assert "# TYPE sglang:num_running_reqs gauge" in page


def test_a_body_in_chunks_is_read_whole(start):
    engine = start()
    engine.until(READY)
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=20)
    pieces = [b'{"text": "hi", "sampling_', b'params": {"max_new_tokens": 3}}']
    for _ in range(2):
        connection.request("POST", "/generate", iter(pieces), {"content-type": "application/json"}, encode_chunked=True)
        assert json.loads(connection.getresponse().read())["meta_info"]["completion_tokens"] == 3
    connection.close()


def test_a_stream_is_chunked_events(start):
    engine = start()
    engine.until(READY)
    status, body = engine.fetch("/generate", {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 5}})
    events = [line for line in body.split(b"\n\n") if line]
    assert status == 200
    assert events[-1] == b"data: [DONE]"
    assert json.loads(events[-2][6:])["meta_info"]["completion_tokens"] == 5


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"{}", 200)])
def test_bad_bodies_are_refused(start, body, status):
    engine = start()
    engine.until(READY)
    head = f"POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", engine.port), 10) as connection:
        connection.sendall(head.encode() + body)
        assert connection.recv(64).startswith(f"HTTP/1.1 {status} ".encode())


# --- stopping


@pytest.mark.parametrize(("dialect", "status"), [("0.5.3", -9), ("0.5.9", -9), ("0.5.23", 0)])
def test_sigterm_drains_and_ends_as_its_generation_does(start, dialect, status):
    engine = start("--tp", "2", "--dialect", dialect, speed=100.0)
    engine.until(READY)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.ended() == status
    assert b"Draining requests and shutting down..." in engine.log
    assert b"Remaining number of requests 0. Remaining requests remaining_rids=[]." in engine.log
    assert engine.gone()


def test_a_drain_waits_for_the_request_in_flight(start):
    engine = start("--dialect", "0.5.23", speed=50.0)
    engine.until(READY, patience_s=40.0)
    answers = []
    body = {"text": "x", "sampling_params": {"max_new_tokens": 3000}}
    request = threading.Thread(target=lambda: answers.append(engine.fetch("/generate", body)))
    request.start()
    engine.until(b"Decode batch")
    engine.process.send_signal(signal.SIGTERM)
    engine.until(b"Draining requests")
    assert engine.get("/health") == 503
    engine.until(b"Health check request received during shutdown. Returning 503.")
    engine.until(b"Remaining number of requests 1.")
    assert engine.fetch("/generate", {"text": "y", "sampling_params": {"max_new_tokens": 1}})[0] == 200
    assert engine.ended() == 0
    request.join(10)
    assert answers[0][0] == 200


def test_sigterm_to_the_whole_group_looks_like_a_crash(start):
    engine = start("--tp", "1", "--dialect", "0.5.23", speed=20.0, SGLSUP_SIM_SCENARIO="slow:factor=0.05")
    engine.until(READY)
    os.killpg(engine.process.pid, signal.SIGTERM)
    assert engine.ended() == -signal.SIGKILL
    assert b"crashed with exit code -15. Triggering SIGQUIT for cleanup..." in engine.log
    assert engine.gone()


def test_sigint_ends_at_once_with_0(start):
    engine = start("--tp", "2", "--dialect", "0.5.9")
    engine.until(READY)
    engine.process.send_signal(signal.SIGINT)
    assert engine.ended() == 0
    assert b"Finished server process" in engine.log
    assert engine.gone()


def test_sigterm_before_the_first_request_is_uvicorns_alone(start):
    engine = start("--skip-server-warmup")
    engine.until(READY)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.ended() == -signal.SIGTERM
    assert b"Draining" not in engine.log
    assert b"Finished server process" in engine.log
    assert engine.gone()


def test_ignore_term_ignores_it(start):
    engine = start("--scenario", "ignore-term")
    engine.until(READY)
    for process in engine.tree():
        os.kill(process.pid, signal.SIGTERM)
    assert engine.get("/health") == 200
    assert engine.process.poll() is None


def test_sigkill_of_the_launcher_takes_the_children_along(start):
    engine = start("--tp", "2")
    engine.until(READY)
    engine.process.kill()
    assert engine.gone()


# --- crashing and hanging


def test_a_dead_scheduler_hangs_every_endpoint_for_five_seconds_then_all_die(start):
    engine = start("--tp", "1", "--dialect", "0.5.23", speed=10.0, SGLSUP_SIM_SCENARIO="slow:factor=0.03")
    engine.until(READY)
    os.kill(engine.child("sglang::scheduler"), signal.SIGKILL)
    engine.until(b"Subprocess scheduler_0")
    engine.until(b"Sleeping 5 seconds before crash diagnostics")
    with socket.create_connection(("127.0.0.1", engine.port), 5) as connection:
        connection.sendall(b"GET /model_info HTTP/1.1\r\nhost: x\r\n\r\n")
        connection.settimeout(10)
        assert cut_off(connection)  # accepted, never answered, cut by the death of the process
    assert engine.ended() == -signal.SIGKILL
    assert b"No live scheduler processes found" in engine.log
    assert engine.gone()


def cut_off(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_dead_detokenizer_costs_a_minute_more(start):
    engine = start("--tp", "1", "--dialect", "0.5.23")
    engine.until(READY)
    os.kill(engine.child("sglang::detokenizer"), signal.SIGKILL)
    engine.until(b"Waiting 60.0 seconds for CUDA coredumps before exiting.")
    assert engine.ended() == -signal.SIGKILL
    assert engine.gone()


def test_peers_of_a_dead_rank_raise_in_every_generation(start):
    engine = start("--tp", "2", "--dialect", "0.5.9")
    engine.until(READY)
    os.kill(engine.child("sglang::scheduler_TP1"), signal.SIGKILL)
    assert engine.ended() == -signal.SIGKILL
    assert b"TP0] Scheduler hit an exception" in engine.log
    assert b"SIGQUIT received. signum=None, frame=None. It usually means one child failed." in engine.log


def test_up_to_0_5_9_a_lone_dead_scheduler_is_never_noticed(start):
    engine = start("--tp", "1", "--dialect", "0.5.9")
    engine.until(READY)
    os.kill(engine.child("sglang::scheduler"), signal.SIGKILL)
    assert engine.get("/health") == 503
    assert engine.get("/model_info") == 200
    assert engine.process.poll() is None


def test_a_dead_scheduler_of_a_controller_is_never_noticed(start):
    engine = start("--dp", "2", "--dialect", "0.5.23")
    engine.until(READY)
    os.kill(engine.child("sglang::scheduler_DP1"), signal.SIGKILL)
    assert sorted(engine.get("/health") for _ in range(4)) == [200, 200, 503, 503]
    assert engine.process.poll() is None


def test_a_stopped_scheduler_lets_health_wait_twenty_seconds(start):
    engine = start("--tp", "2", speed=20.0, SGLSUP_SIM_SCENARIO="slow:factor=0.05")
    engine.until(READY)
    stopped = engine.child("sglang::scheduler_TP1")
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    assert engine.get("/health") == 503
    assert 0.95 <= time.monotonic() - began < 3
    assert engine.get("/model_info") == 200
    engine.until(b"Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.")
    os.kill(stopped, signal.SIGCONT)
    assert engine.get("/health") == 200


def test_a_rank_stopped_under_load_stops_the_tokens_and_wakes_the_watchdog(start):
    engine = start("--tp", "2", "--dialect", "0.5.23", "--enable-metrics", "--watchdog-timeout", "30", speed=20.0,
                   SGLSUP_SIM_SCENARIO="slow:factor=0.05")  # fmt: skip
    engine.until(READY)
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 1_000_000}}
    request = threading.Thread(target=lambda: cut_short(engine, body))
    request.start()
    engine.until(b"TP0] Decode batch")
    os.kill(engine.child("sglang::scheduler_TP1"), signal.SIGSTOP)
    engine.falls_silent(0.3)
    pages = [engine.fetch("/metrics")[1].decode() for _ in range(2)]
    assert pages[0] == pages[1]
    assert "sglang:num_running_reqs{" in pages[0]
    assert " 1.0" in next(line for line in pages[0].splitlines() if line.startswith("sglang:num_running_reqs{"))
    engine.until(b"TP0] Scheduler watchdog timeout (self.watchdog_timeout=30.0, self.soft=False)")
    engine.until(b"Waiting 60.0 seconds for CUDA coredumps before exiting.")
    assert engine.ended() == -signal.SIGKILL
    request.join(10)
    assert engine.gone()


def cut_short(engine, body):
    with contextlib.suppress(OSError, http.client.IncompleteRead):  # the engine dies under the stream
        engine.fetch("/generate", body)


def test_a_stopped_detokenizer_shows_nowhere(start):
    engine = start("--tp", "1")
    engine.until(READY)
    os.kill(engine.child("sglang::detokenizer"), signal.SIGSTOP)
    assert engine.get("/health") == 200


@pytest.mark.parametrize("how", ["hang", "dead"])
def test_a_zombie_says_200_without_schedulers(start, how):
    engine = start("--tp", "2", "--dialect", "0.5.23", "--scenario", f"zombie-200:how={how}")
    engine.until(READY)
    end = time.monotonic() + 10
    while how == "dead" and any("scheduler" in process.command for process in engine.tree()):
        assert time.monotonic() < end
    assert engine.get("/health") == 200
    assert engine.falls_silent()
    assert engine.process.poll() is None


def test_a_stall_while_serving_comes_when_told(start):
    engine = start("--tp", "2", "--scenario", "stall:phase=serving,rank=TP1,after=40s")
    engine.until(READY)
    statuses = [engine.get("/health")]
    while statuses[-1] == 200 and len(statuses) < 500:
        statuses.append(engine.get("/health"))
    assert statuses[0] == 200
    assert statuses[-1] == 503


def test_a_crash_while_serving_has_its_cause(start):
    engine = start("--tp", "2", "--dialect", "0.5.23", "--scenario", "crash:phase=serving,cause=cuda-kernel-fault")
    assert engine.ended() == -signal.SIGKILL
    assert b"an illegal memory access was encountered" in engine.log


def test_a_failed_warm_up_kills_the_tree(start):
    engine = start("--scenario", "crash:phase=warmup,cause=server-warmup-failed")
    assert engine.ended() == -signal.SIGKILL
    assert b"Initialization failed. warmup error: Traceback" in engine.log
    assert engine.gone()


def test_a_stalled_warm_up_stays_at_503(start):
    engine = start("--scenario", "stall:phase=warmup")
    engine.until(b"model_info HTTP")
    assert engine.get("/health") == 503
    assert engine.falls_silent()
    assert READY not in engine.log


# --- the port


def test_a_port_taken_by_somebody_silent_is_noticed_after_the_load_and_kept_quiet(start):
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        engine = start(port=owner.getsockname()[1])
        log = engine.until(b"Waiting for application shutdown.")
        assert b"[Errno 98] error while attempting to bind on address ('127.0.0.1'" in log
        assert b"max_total_num_tokens=" in log
        assert engine.falls_silent()
        assert engine.process.poll() is None
        assert READY not in engine.log


def test_a_port_taken_by_another_engine_gives_a_false_ready(start):
    first = start()
    first.until(READY)
    second = start(port=first.port)
    log = second.until(READY)
    assert b"[Errno 98]" in log
    assert second.ended() == -signal.SIGKILL
    assert first.get("/health") == 200


def test_a_second_node_says_200_and_ignores_sigterm_from_0_5_21_on(start):
    engine = start("--tp", "4", "--nnodes", "2", "--node-rank", "1", "--dialect", "0.5.23")
    engine.until(b"Dummy health check server started in background thread at")
    assert engine.get("/health") == 200
    assert engine.get("/model_info") == 404
    assert {"sglang::scheduler_TP2", "sglang::scheduler_TP3"} < {process.command for process in engine.tree()}
    engine.process.send_signal(signal.SIGTERM)
    engine.until(b"SIGTERM received on node_rank 1")
    assert engine.process.poll() is None


def test_hostile_requests_reach_the_log(start):
    engine = start("--scenario", "hostile")
    engine.until(b"A" * 1000)
    log = engine.until(b"Tried to allocate 1 GiB")
    assert b"\x1b[2J" in log
    assert b"\xff\xfe\x00" in log


def test_with_log_level_warning_every_marker_disappears(start):
    engine = start("--log-level", "warning", "--tp", "2")
    while engine.refuses():
        engine.read(0.05)
    while engine.get("/health") != 200:
        engine.read(0.05)
    assert b"Loading safetensors checkpoint shards" in engine.log
    for marker in (b"Load weight", b"Capture cuda graph", b"Uvicorn running", READY, b"HTTP/1.1"):
        assert marker not in engine.log
