"""`sglsup diagnose` from its arguments to its exit status: files, pipes, archives, bad input, the page, the object."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from supervisor.core.log.skim import Skimmer
from supervisor.core.story import Verdict
from supervisor.diagnose import diagnose, main
from supervisor.edge.archive import LogArchive, finish, live_path
from supervisor.lines import LineCutter
from supervisor.logsource import recognise
from supervisor.profile import load_profile

LOGS = Path(__file__).parent / "data" / "sglang" / "logs"
EXAMPLE = Path(__file__).parents[1] / "etc" / "supervisor.toml"
CONTRACT = {
    "verdict",
    "stage",
    "phase",
    "ranks",
    "cause",
    "evidence",
    "restart",
    "remedy",
    "confidence",
    "engine",
    "timeline",
}


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    status = main(["--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("log", "status", "verdict", "stage", "cause", "restart"),
    [
        ("gpu-b2_eagle3_steps1_tokens16_killall", 0, "ready", "serving", "healthy", "no"),
        ("gpu-c2_draft_hidden_size_mismatch", 2, "crashed", "graph-capture", "spec-decode-config", "no"),
        ("gpu-d1_oom_mem_fraction_0.999", 2, "crashed", "memory-pool", "gpu-oom-kv-pool", "no"),
        ("gpu-d2b_oom_other_process_holds_137GiB", 2, "crashed", "weights", "gpu-memory-occupied", "maybe"),
        ("gpu-d4_memory_taken_by_another_start", 2, "crashed", "memory-pool", "gpu-oom-kv-pool", "no"),
        ("gpu-g_bad_model_path", 2, "crashed", "launch", "model-path-missing", "no"),
        ("gpu-g_truncated_safetensors", 2, "crashed", "weights", "checkpoint-corrupt", "no"),
        ("gpu-h_tp2_sigstop_tp1_serving", 2, "crashed", "serving", "scheduler-hang", "yes"),
        ("gpu-x2_jit_build_fails_at_decode_capture.stderr", 2, "crashed", "graph-capture", "jit-compile-failure", "no"),
        ("gpu-a2_sigterm_with_request_in_flight", 2, "crashed", "serving", "external-termination", "yes"),
        ("cpu-fail-bad-value", 2, "crashed", "launch", "server-args-invalid", "no"),
        ("cpu-fail-corrupt-weights", 2, "crashed", "weights", "checkpoint-corrupt", "no"),
        ("cpu-fail-port-in-use-silent-listener", 2, "crashed", "warmup", "port-in-use", "maybe"),
        ("cpu-stop-SIGTERM-inflight", 2, "crashed", "serving", "external-termination", "yes"),
    ],
)
def test_recorded_runs(
    capsys: pytest.CaptureFixture[str], log: str, status: int, verdict: str, stage: str, cause: str, restart: str
) -> None:
    code, found = told(capsys, str(LOGS / f"{log}.log.gz"))
    assert (code, found["verdict"], found["stage"], found["cause"], found["restart"]) == (
        status,
        verdict,
        stage,
        cause,
        restart,
    )
    assert set(found) >= CONTRACT
    assert found["engine"] == "sglang"


def test_ranks_and_timeline_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = told(capsys, str(LOGS / "gpu-h_tp2_sigstop_tp1_at_load.log.gz"))
    ranks = found["ranks"]
    assert isinstance(ranks, dict)
    assert set(ranks) == {"TP0", "TP1"}
    assert set(ranks["TP0"]) >= {"stage", "phase", "since", "last_line"}
    spans = [span for span in found["timeline"] if span["rank"] == "TP0"]  # type: ignore[attr-defined]
    weights = next(span for span in spans if span["phase"] == "weights")
    assert weights == {
        "rank": "TP0", "phase": "weights", "begin": "2026-11-29 15:00:26", "end": "2026-11-29 15:00:27", "seconds": 1.0,
        "mem_gb": 1.38,
    }  # fmt: skip


def test_a_stall_needs_a_now(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text("[2026-02-26 18:27:00 TP6] Capture cuda graph begin. avail mem=7.43 GB\n")
    assert told(capsys, str(log))[0] == 0
    status, found = told(capsys, "--now", "2026-02-26 20:00:00", str(log))
    assert (status, found["verdict"], found["stage"]) == (1, "stalled", "graph-capture")
    assert told(capsys, "--now", "20:00:00", str(log))[0] == 0
    status, found = told(capsys, "--exit-code", "-9", str(log))
    assert (status, found["verdict"], found["cause"]) == (2, "crashed", "host-oom-killed")


def test_the_page_says_what_a_person_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(LOGS / "gpu-d1_oom_mem_fraction_0.999.log.gz")]) == 2
    page = capsys.readouterr().out
    assert page.startswith("CRASHED in memory-pool   sglang · 1 rank")
    assert "gpu-oom-kv-pool   (92% sure; a restart does not help)" in page
    assert "line 73: OutOfMemoryError: CUDA out of memory." in page
    assert "--mem-fraction-static to 0.97" in page
    assert "  TP0       LLLL" in page
    assert "Last sign" in page
    assert "\x1b" not in page
    assert max(map(len, page.splitlines())) <= 120


def test_the_page_of_a_good_start_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(LOGS / "gpu-b2_eagle3_steps1_tokens16_killall.log.gz")]) == 0
    page = capsys.readouterr().out
    assert page.startswith("READY   sglang")
    assert "To do" not in page
    assert len(page.splitlines()) < 20


def test_standard_input_and_a_closed_pipe() -> None:
    data = gzip.decompress((LOGS / "gpu-g_truncated_safetensors.log.gz").read_bytes())
    command = [sys.executable, "-m", "supervisor.main", "diagnose", "-"]
    run = subprocess.run(command, input=data, capture_output=True, timeout=60)
    assert (run.returncode, run.stderr) == (2, b"")
    assert b"checkpoint-corrupt" in run.stdout
    closed = subprocess.run(["sh", "-c", f"{' '.join(command)} | true"], input=data, capture_output=True, timeout=60)
    assert closed.stderr == b""


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "it is empty"), (bytes(4096), "binary data"), (random.Random(1).randbytes(4096), "binary data")],
)
def test_what_is_no_log_is_said_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, reason: str
) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(content)
    assert main([str(log)]) == 66
    error = capsys.readouterr().err
    assert error.startswith(f"sglsup diagnose: cannot read {log}: ")
    assert reason in error


def test_missing_files_and_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "none")]) == 66
    assert "No such file or directory" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 66
    assert "Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--now", "yesterday", "x"], ["--engine", "none", "x"], ["--what", "x"]])
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 64
    assert "usage: sglsup diagnose" in capsys.readouterr().err


NGINX = '10.0.0.1 - - [26/Feb/2026:18:27:00 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/8.5"\n'
FULL = "2026/02/26 18:27:00 [crit] 7#7: *1 pwrite() failed (28: No space left on device)\n"
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"
KILLED = "Out of memory: Killed process 4242 (python3) total-vm:123kB, anon-rss:12kB\n"
USB = "usb 1-1: new high-speed USB device number 2 using xhci_hcd\n"
NOBODY = "No engine that we know wrote this: is it the right file, and complete?"
DOUBT = "Read as an excerpt: no line here is one that only an engine writes."


@pytest.mark.parametrize(
    "text",
    [
        NGINX * 3,
        NGINX * 60 + FULL * 60,
        "hello\n",
        "\n\n\n",
        *("".join(head + line for line in (XID, KILLED, USB)) for head in (
            "[12345.123456] ",
            "<4>[    7.000001] ",
            "[Thu Feb 26 18:27:00 2026] ",
            "Feb 26 18:27:00 gpu1 kernel: ",
            "2026-02-26T18:27:00.123456+01:00 gpu1 kernel: ",
        )),
    ],
    ids=["web", "web-full", "short", "blank", "dmesg", "kmsg", "dmesg-T", "syslog", "journal"],
)  # fmt: skip
def test_a_log_that_no_engine_wrote_is_not_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    log = tmp_path / "other.log"
    log.write_text(text)
    status, found = told(capsys, str(log))
    assert (status, found["verdict"], found["engine"]) == (66, "unknown engine", "unknown")
    assert not found["recognised"]
    assert main([str(log)]) == 66
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("NO ENGINE'S LOG   ")
    assert shown[-2:] == ["", NOBODY]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "it is empty"), (bytes(range(256)) * 50, "this is binary data, not a log")],
    ids=["empty", "binary"],
)
def test_what_is_no_text_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, reason: str
) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(content)
    assert main([str(log)]) == 66
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"sglsup diagnose: cannot read {log}: {reason}\n")


def test_standard_input_is_called_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for content, said in (
        (b"", "cannot read standard input: it is empty"),
        (b"hello\n", "\nstandard input   no times\n"),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert main(["-"]) == 66
        shown = capsys.readouterr()
        assert said in shown.out + shown.err


SCRIPT = "#!/bin/bash\nsource /opt/sglang/bin/activate\nexec python -m sglang.launch_server --model-path /m\n"
UNIT = "[Service]\nExecStart=/opt/v/bin/vllm serve /m\n"


@pytest.mark.parametrize("text", [EXAMPLE.read_text(), SCRIPT, UNIT, "# SGLang, see vLLM\n"])
def test_what_only_names_an_engine_is_no_log_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    file = tmp_path / "sup.toml"
    file.write_text(text)
    status, found = told(capsys, str(file))
    assert (status, found["verdict"], found["engine"], found["recognised"]) == (66, "unknown engine", "unknown", False)
    assert main([str(file)]) == 66
    assert NOBODY in capsys.readouterr().out.splitlines()
    assert main(["--engine", "sglang", str(file)]) == 0, "who names the engine is believed"


def test_a_few_lines_are_read_as_an_excerpt_and_said_to_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "excerpt.log"
    log.write_text("[12345.123456] " + XID)
    status, found = told(capsys, str(log))
    assert (status, found["cause"], found["recognised"]) == (2, "gpu-hardware-fault", False)
    assert main([str(log)]) == 2
    assert DOUBT in capsys.readouterr().out.splitlines()


def test_a_long_usage_text_that_the_engine_ends_with_is_its_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With its name, and, where that was cut off, as an excerpt of any length."""
    log = tmp_path / "usage.log"
    usage = "".join(f"                        [--option-{number} N]\n" for number in range(300))
    reason = "error: argument --tp-size/--tp: invalid int value: 'eight'\n"
    for first, name, recognised in (("usage: launch_server.py [-h]\n", "launch_server.py: ", True), ("", "x: ", False)):
        log.write_text(first + usage + name + reason)
        status, found = told(capsys, str(log))
        assert (status, found["cause"], found["recognised"]) == (2, "server-args-invalid", recognised)


def test_an_engine_that_is_late_in_a_long_log_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "late.log"
    log.write_text(NGINX * 4000 + "[2026-02-26 18:27:00] Received sigquit from a child process.\n" + XID)
    _, found = told(capsys, str(log))
    assert (found["recognised"], found["verdict"]) == (True, "crashed")


def test_a_damaged_archive_is_judged_as_far_as_it_goes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = (LOGS / "gpu-a2_sigterm_with_request_in_flight.log.gz").read_bytes()
    log = tmp_path / "cut.log.gz"
    log.write_bytes(whole[: len(whole) * 2 // 3])
    assert main(["--json", str(log)]) in (0, 2)
    shown = capsys.readouterr()
    assert "the archive is damaged" in shown.err
    assert json.loads(shown.out)["engine"] == "sglang"


def test_zstd_with_and_without_its_package(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "x.log.zst"
    try:
        import zstandard
    except ImportError:
        log.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
        assert main([str(log)]) == 66
        assert "pip install 'sglang-supervisor[zst]'" in capsys.readouterr().err
        return
    log.write_bytes(zstandard.compress(gzip.decompress((LOGS / "gpu-g_truncated_safetensors.log.gz").read_bytes())))
    assert told(capsys, str(log))[1]["cause"] == "checkpoint-corrupt"


def test_a_log_cut_within_a_line_or_a_character(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = gzip.decompress((LOGS / "gpu-h_tp2_sigstop_tp1_at_load.log.gz").read_bytes())
    log = tmp_path / "cut.log"
    for length in range(20_000, 30_000, 997):
        log.write_bytes(data[:length])
        assert told(capsys, str(log))[0] == 0


@pytest.mark.parametrize(
    ("sample", "engine"),
    [
        (b"[2026-03-01 10:00:00 TP0] Load weight begin. avail mem=7 GB", "sglang"),
        (b"INFO 03-01 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.10.2) vllm", "vllm"),
        (b"hello world", None),
    ],
)
def test_the_engine_is_recognised(sample: bytes, engine: str | None) -> None:
    assert recognise(sample) == engine


def test_the_other_engines_start(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    worker = "(Worker_TP{} pid=77) INFO 03-01 10:00:{:02} [gpu_model_runner.py:1] {}\n"
    log = tmp_path / "vllm.log"
    lines = ["(APIServer pid=7) INFO 03-01 10:00:00 [api_server.py:1] vLLM API server version 0.10.2\n"]
    lines += [worker.format(rank, 10, "Starting to load model /m...") for rank in (0, 1)]
    lines += [worker.format(rank, 30, "Model loading took 14.99 GiB and 5.3 seconds") for rank in (0, 1)]
    lines += [worker.format(0, 40, "Available KV cache memory: 51.20 GiB")]
    log.write_text("".join(lines))
    _, found = told(capsys, str(log))
    assert (found["engine"], found["verdict"], found["stage"]) == ("vllm", "warming", "memory-pool")
    error = "(EngineCore_DP0 pid=9) ERROR 03-01 10:00:50 [core.py:700] "
    frames = ["Traceback (most recent call last):", '  File "/x/vllm/v1/engine/core.py", line 1, in _initialize_kv_caches',
              "    raise ValueError(", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."]  # fmt: skip
    log.write_text("".join(lines) + "".join(f"{error}{line}\n" for line in frames))
    status, found = told(capsys, str(log))
    assert (status, found["verdict"], found["stage"], found["cause"]) == (
        2,
        "crashed",
        "memory-pool",
        "gpu-oom-kv-pool",
    )


def serving(lines: int) -> bytes:
    line = b"[2026-03-01 10:%02d:%02d TP0] Decode batch, #running-req: %d, #token: 7, token usage: 0.01\n"
    return b"".join(line % (n // 60 % 60, n % 60, n % 64) for n in range(lines))


def test_skimming_gives_the_lines_that_matter_with_their_numbers() -> None:
    data = (
        serving(5000)
        + b"[2026-03-01 11:30:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3\n"
        + serving(5000)
    )
    skimmer = Skimmer(load_profile("sglang"))
    read = [line for at in range(0, len(data), 4096) for lines in skimmer.feed(data[at : at + 4096]) for line in lines]
    whole = {line.number: line.text for line in LineCutter().feed(data)}
    assert all(whole[line.number] == line.text for line in read)
    assert 5001 in {line.number for line in read}
    assert 10001 in {line.number for line in read}
    assert len(read) < 1000
    assert skimmer.lines == 10001


def test_a_long_log_takes_little_memory() -> None:
    class Repeated(io.RawIOBase):
        def __init__(self, block: bytes, times: int) -> None:
            self.block, self.times = block, times

        def read(self, size: int = -1) -> bytes:
            self.times -= 1
            return self.block if self.times >= 0 else b""

    start = gzip.decompress((LOGS / "gpu-h_tp2_sigstop_tp1_at_load.log.gz").read_bytes())
    ready = start[: start.index(b"fired up and ready to roll!") + 28]
    tracemalloc.start()
    outcome, _, lines = diagnose(Repeated(ready + serving(10_000), 1 + 60))  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.verdict is Verdict.READY
    assert lines > 600_000
    assert peak < 24 << 20


def test_one_line_of_many_megabytes() -> None:
    log = b"[2026-03-01 10:00:00 TP0] Load weight begin. avail mem=7.00 GB\n" + b"x" * (40 << 20) + b"\n"
    tracemalloc.start()
    outcome, _, lines = diagnose(io.BytesIO(log))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (outcome.verdict, outcome.stage, lines) == (Verdict.WARMING, "weights", 2)
    assert peak < 16 << 20


def test_a_log_that_was_archived_is_read_by_the_name_it_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its live file begins with a hole, or is gone; the segments have the lines."""
    line = b"[2025-11-29 10:00:00 TP0] Load weight begin. avail mem=78.63 GB\n"
    path = live_path(tmp_path, 5)
    path.write_bytes(line * 2000)
    LogArchive(tmp_path, 5).archive(len(line) * 1999)
    with_hole = main([str(path)])
    finish(tmp_path, 5)
    assert not path.exists()
    assert (with_hole, main([str(path)])) == (0, 0)
    assert capsys.readouterr().out.count("2,000 lines") == 2
