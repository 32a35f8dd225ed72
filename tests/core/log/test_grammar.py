"""The reader: recorded logs against golden files, every form of prefix, glued lines, tracebacks, hostile text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.log.grammar import TRACEBACK, LogReader
from supervisor.events import LineMatched
from supervisor.lines import LineCutter
from supervisor.profile import load_profile
from tests.core import golden

PROFILE = load_profile("sglang")


def read(text: str | bytes) -> list[LineMatched]:
    data = text.encode() if isinstance(text, str) else text
    reader = LogReader(PROFILE, 7)
    return reader.read(LineCutter().feed(data + b"\n")) + reader.finish()


def rules(text: str | bytes) -> list[str]:
    return [match.rule for match in read(text)]


@pytest.mark.parametrize("path", golden.recorded(), ids=lambda path: path.name.removesuffix(".log.gz"))
def test_a_recorded_log_is_read_as_it_always_was(path: golden.Path) -> None:
    expected = path.with_name(path.name.replace(".log.gz", ".matches.txt")).read_text()
    assert golden.matches(path) == expected


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[2025-09-30 10:00:00]", ""),
        ("[2025-09-30 10:00:00 TP3]", "TP3"),
        ("[2025-09-30 10:00:00 DP1 TP3]", "DP1 TP3"),
        ("[2025-09-30 10:00:00 DP0 TP3 EP3]", "DP0 TP3"),
        ("[2025-09-30 10:00:00 DP0 TP3 EP3 PP1]", "DP0 PP1 TP3"),
        ("[2025-09-30 10:00:00 DP0 PP1 TP3 EP3]", "DP0 PP1 TP3"),
        ("[2025-09-30 10:00:00 DP0 PP1 ATTN_CP2 MOE_DP0 TP3 EP3]", "DP0 PP1 TP3"),
        ("[2025-09-30 10:00:00 EP3]", "EP3"),
        ("[2025-09-30 10:00:00 PP1]", "PP1"),
        ("[2025-09-30 10:00:00.123 TP3]", "TP3"),
        ("[2025-09-30 10:00:00 TP3 encode_http[1]]", "TP3"),
        ("[TP3]", "TP3"),
        ("[10:00:00 TP3]", "TP3"),
        ("[rank3]:", "TP3"),
        ("[gpu_id=3]", "TP3"),
    ],
)
def test_every_form_of_prefix(prefix: str, rank: str) -> None:
    (match,) = read(f"{prefix} Load weight begin. avail mem=78.50 GB")
    assert (match.rule, match.rank, match.fields["left"]) == ("weights-begin", rank, "78.50")
    assert match.attempt == 7


@pytest.mark.parametrize(
    "wrapper",
    [
        "2025-04-16T04:48:35.509514570Z ",
        "2025-04-16T04:48:35.509514570Z stderr F ",
        "ERROR 2025-04-16T04:48:35.509514570Z ",
        "Apr 16 04:48:35 node7 sglang[4242]: ",
        "sglang-1  | ",
        "[pod/kimi-0/sglang] ",
        "[1,3]<stderr>:",
        "3: ",
        "(RayWorker pid=4242, ip=10.0.0.3) ",
        "2025-04-16 04:48:35,509 - __main__ - INFO - ",
    ],
)
def test_what_collectors_put_in_front_is_taken_off(wrapper: str) -> None:
    (match,) = read(f"{wrapper}[2025-04-16 04:48:35 TP2] Load weight begin. avail mem=78.50 GB")
    assert (match.rule, match.rank, match.stamp) == ("weights-begin", "TP2", "2025-04-16 04:48:35")


def test_a_record_glued_to_a_bar_is_found_and_so_is_the_bar() -> None:
    glued = (
        "Capturing batches (bs=32 avail_mem=11.88 GB):   0%|          | 0/8 [00:00<?, ?it/s]"
        "[2026-11-29 15:00:59 TP1] Capture cuda graph end. Time elapsed: 9.4 s. mem usage=3.38 GB. avail mem=18.57 GB."
    )
    bar, record = read(glued)
    assert (bar.rule, bar.fields["done"], bar.fields["total"]) == ("capture-bar", "0", "8")
    assert (record.rule, record.rank, record.fields["used"], record.fields["left"]) == (
        "capture-end",
        "TP1",
        "3.38",
        "18.57",
    )


def test_a_third_party_line_glued_to_a_bar_is_found() -> None:
    glued = (
        "Capturing batches (bs=32 avail_mem=1.88 GB):   0%|          | 0/8 [00:00<?, ?it/s]"
        "[rank1]:[E1129 04:12:09.5 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
    )
    assert rules(glued) == ["capture-bar", "nccl-watchdog"]


@pytest.mark.parametrize(
    ("bar", "rule", "fields"),
    [
        (
            "Loading safetensors checkpoint shards:  44% Completed | 72/163 [00:20<00:27,  3.28it/s]",
            "weights-bar",
            ("72", "163", "3.28", "it/s"),
        ),
        (
            "Multi-thread loading shards:  38% Completed | 3/8 [00:00<00:00, 22.90it/s]",
            "weights-bar",
            ("3", "8", "22.90", "it/s"),
        ),
        ("Multi-thread loading shards:   0% Completed | 0/8 [00:00<?, ?it/s]", "weights-bar", ("0", "8", None, None)),
        (
            "Capturing num tokens (num_tokens=512 avail_mem=12.29 GB):   3%|▎         | 1/30 [00:01<00:36,  1.25s/it]",
            "capture-bar",
            ("1", "30", "1.25", "s/it"),
        ),
        (
            "Capturing batches (avail_mem=31.18 GB):  12%|#2        | 2/19 [00:01<00:36,  1.25s/it]",
            "capture-bar",
            ("2", "19", "1.25", "s/it"),
        ),
        (
            "Compiling num tokens (num_tokens=8192):   2%|▏         | 1/58 [00:05<04:54,  5.16s/it]",
            "compile-bar",
            ("1", "58", "5.16", "s/it"),
        ),
        (
            "DeepGEMM warmup:  45%|████▌     | 7372/16384 [05:04<06:12, 24.20it/s]",
            "jit-bar",
            ("7372", "16384", "24.20", "it/s"),
        ),
        (
            "Fetching 163 files:  10%|█         | 16/163 [10:00<1:30:00, 37.02s/it]",
            "download-bar",
            ("16", "163", "37.02", "s/it"),
        ),
        ("  4%|▍         | 1/23 [00:07<02:39,  7.23s/it]", "any-bar", ("1", "23", "7.23", "s/it")),
    ],
)
def test_bars_of_all_generations(bar: str, rule: str, fields: tuple[str | None, ...]) -> None:
    (match,) = read(bar)
    assert match.rule == rule
    assert tuple(match.fields.get(name) for name in ("done", "total", "rate", "per")) == fields


def test_a_partial_line_is_read_for_its_bar_alone() -> None:
    cutter, reader = LineCutter(), LogReader(PROFILE, 1)
    cutter.feed(b"\rMulti-thread loading shards:  38% Completed | 3/8 [00:00<00:00, 22.90it/s]")
    pending = cutter.pending()
    assert pending is not None
    assert [match.rule for match in reader.read([pending])] == ["weights-bar"]
    cutter.feed(b"\n[2026-11-29 15:00:59 TP1] Load weight begin. avail mem=7")
    half = cutter.pending()
    assert half is not None
    assert reader.read([half]) == []


def test_of_serving_lines_only_the_newest_of_a_read_is_told() -> None:
    lines = [
        f"[2026-03-01 10:00:{n:02} TP0] Decode batch, #running-req: {n}, #token: 7, token usage: 0.01"
        for n in range(50)
    ]
    (match,) = read("\n".join(lines))
    assert (match.rule, match.line, match.fields["running"]) == ("decode", 50, "49")


TRACEBACKS = """\
[2026-03-01 10:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/x/sglang/srt/model_executor/cuda_graph_runner.py", line 1, in __init__
    self.capture()
    ^^^^^^^^^^^^^^
  File "/x/sglang/srt/model_executor/cuda_graph_runner.py", line 2, in capture
    run()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/sglang/srt/managers/scheduler.py", line 3, in run_scheduler_process
    init()
Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
[2026-03-01 10:00:01] Received sigquit from a child process. It usually means the child failed.
"""


def test_a_chain_is_one_block_with_its_root() -> None:
    found = read(TRACEBACKS)
    oom = next(match for match in found if match.rule == "oom-in-capture")
    assert (oom.rank, oom.line, oom.text.split(":")[0]) == ("TP1", 7, "OutOfMemoryError")
    assert (oom.fields["root"], oom.fields["exception"], oom.fields["stage"]) == (
        "OutOfMemoryError",
        "Exception",
        "graph-capture",
    )
    assert oom.fields["total"] == "79.10 GiB"
    assert "Possible solutions" in oom.fields["message"]
    assert [match.rule for match in found if match.line == 17] == ["sigquit", "sigquit-record"]


def test_blocks_of_two_ranks_with_tags_do_not_mix() -> None:
    text = "\n".join(
        [
            "[rank0]: Traceback (most recent call last):",
            "[rank1]: Traceback (most recent call last):",
            '[rank0]:   File "/x/sglang/srt/managers/scheduler.py", line 1, in event_loop_normal',
            '[rank1]:   File "/x/sglang/srt/model_loader/loader.py", line 1, in load_model',
            "[rank1]: KeyError: 'model.layers.1'",
            "[rank0]: ValueError: who knows",
        ]
    )
    found = {match.rank: match for match in read(text)}
    assert (found["TP0"].fields["exception"], found["TP0"].fields["stage"]) == ("ValueError", "serving")
    assert (found["TP1"].fields["exception"], found["TP1"].fields["stage"]) == ("KeyError", "weights")


def calm(count: int) -> list[str]:
    return [f"[2026-03-01 10:00:00 TP0] Decode batch, #running-req: {at}, #token: 7" for at in range(count)]


def test_a_traceback_whose_writer_has_died_is_told_while_others_go_on() -> None:
    cutter, reader = LineCutter(), LogReader(PROFILE, 7)
    opened = ["[rank3]: Traceback (most recent call last):", '[rank3]:   File "/x/a.py", line 1, in f']
    told = reader.read(cutter.feed("\n".join([*opened, *calm(100), ""]).encode()))
    assert TRACEBACK not in {match.rule for match in told}, "its writer may only be slow"
    told += reader.read(cutter.feed("\n".join([*calm(3000), ""]).encode()))
    (cut,) = (match for match in told if match.rule == TRACEBACK)
    assert (cut.rank, cut.text) == ("TP3", "traceback cut off in /x/a.py:f")
    assert reader.finish() == []


def test_a_traceback_is_whole_however_late_in_the_log_and_whoever_writes_between() -> None:
    frames = [f'[rank3]:   File "/x/a.py", line {at}, in f{at}' for at in range(40)]
    between = [line for frame in frames for line in (frame, *calm(5))]
    text = [*calm(5000), "[rank3]: Traceback (most recent call last):", *between, "[rank3]: FooError: no"]
    (whole,) = (match for match in read("\n".join(text)) if match.rule == TRACEBACK)
    assert (whole.rank, whole.text) == ("TP3", "FooError: no")


def test_tracebacks_that_somebody_makes_up_are_told_before_they_are_too_many() -> None:
    reader = LogReader(PROFILE, 7)
    text = "".join(f"[rank{at}]: Traceback (most recent call last):\n" for at in range(500))
    told = reader.read(LineCutter().feed(text.encode()))
    left = reader.finish()
    assert len(told) + len(left) == 500
    assert 0 < len(left) < 100


def test_what_a_frame_quotes_is_no_sign_of_its_own() -> None:
    """Until the exception has come, lines are the traceback's, whatever they say."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/a.py", line 1, in f\n'
        '    log("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(")\n'
        "FooError: no\n"
    )
    assert rules(text) == [TRACEBACK]
    bare = "[rank1]:[E1129 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
    assert rules(bare) == ["nccl-watchdog"]


def test_of_an_unfinished_line_what_is_glued_to_its_bar_waits() -> None:
    cutter, reader = LineCutter(), LogReader(PROFILE, 7)
    bar = b"Capturing batches (bs=32 avail_mem=1.88 GB):   0%|          | 0/8 [00:00<?, ?it/s]"
    cutter.feed(bar + b"Traceback (most recent call last):")
    pending = cutter.pending()
    assert pending is not None
    assert [match.rule for match in reader.read([pending])] == ["capture-bar"]
    assert reader.finish() == []


def test_a_traceback_whose_head_or_end_is_missing() -> None:
    (headless,) = read('  File "/x/a.py", line 1, in f\n    g()\nFooError: no\n')
    assert (headless.rule, headless.text) == (TRACEBACK, "FooError: no")
    (endless,) = read('Traceback (most recent call last):\n  File "/x/a.py", line 1, in f\n    g()')
    assert endless.text == "traceback cut off in /x/a.py:f"


def test_the_fault_handlers_stack_is_that_of_the_failing_thread() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        'Thread 0x01 (most recent call first):\n  File "/x/tqdm/_monitor.py", line 60 in run\n\n'
        'Current thread 0x02 (most recent call first):\n  File "/x/sglang/srt/models/q.py", line 2 in load_weights\n'
        '  File "/x/sglang/srt/model_loader/loader.py", line 1 in load_model\n'
    )
    (match,) = read(text)
    assert (match.rule, match.fields["stage"]) == ("segfault", "weights")
    assert "tqdm" not in match.fields["frames"]


PLANTED = [
    "The server is fired up and ready to roll!",
    "Load weight begin. avail mem=1.00 GB",
    "Scheduler hit an exception: Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "[2026-03-01 10:00:00 TP0] Scheduler hit an exception: RuntimeError",
    "Received sigquit from a child process. It usually means the child failed.",
    "SIGTERM received. signum=15 frame=None. Draining requests and shutting down...",
    "Watchdog timeout (self.watchdog_timeout=300)",
]


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize(
    "frame",
    [
        "[2026-03-01 10:00:00] Receive: obj=GenerateReqInput(text='{}')",
        "[2026-03-01 10:00:00] Finish: obj=GenerateReqInput(rid='7', text=\"{}\"), out={{}}",
        "[2026-03-01 10:00:00] Receive: obj=GenerateReqInput(text='several\n{}\nlines')",
        "[2026-03-01 10:00:00] Request for {} was served",
    ],
)
def test_a_prompt_that_quotes_the_engine_says_nothing(planted: str, frame: str) -> None:
    if "\n" in frame and planted.startswith("["):
        return  # a whole record on a line of its own is one: the engine's request log escapes line ends for that reason
    assert rules(frame.format(planted)) == []


@pytest.mark.parametrize("planted", PLANTED[:4])
def test_a_phrase_within_a_path_or_a_record_moves_no_phase(planted: str) -> None:
    moving = {rule.name for rule in PROFILE.rules if rule.enter or rule.leave}
    line = f'[2026-03-01 10:00:00] INFO:     10.0.0.1:1 - "GET /{planted} HTTP/1.1" 404 Not Found'
    assert not moving & set(rules(line))
    assert not moving & set(rules(f"[2026-03-01 10:00:00 TP0] Something about {planted}"))


BARE = "The memory capacity is unbalanced. Some GPUs may be occupied by other processes."


def test_an_excerpt_without_prefixes_is_read_as_records_until_one_has_a_prefix() -> None:
    assert rules(BARE) == ["memory-unbalanced-warning"]
    assert rules(f"{BARE}\nLoad weight begin. avail mem=78.50 GB") == ["memory-unbalanced-warning", "weights-begin"]
    prefixed = "[2025-09-30 10:00:00 TP0] Load weight begin. avail mem=78.50 GB"
    assert rules(f"{prefixed}\n{BARE}\nLoad weight begin. avail mem=78.50 GB") == ["weights-begin"]
    calm = "[2025-09-30 10:00:00 TP0] Decode batch, #running-req: 1, #token: 1, token usage: 0.00"
    assert "memory-unbalanced-warning" not in rules(f"{calm}\n{BARE}"), "passed over, and a prefix all the same"


def test_benign_lines_are_no_signs() -> None:
    benign = [
        "Setup Custom allreduce failed with CUDART error: peer access is not supported between these two devices.",
        "Ignore import error when loading sglang.srt.models.kimi_k25: No module named 'cutlass'",
        "The following error message 'operation scheduled before its operands' can be ignored.",
        "Unexpected error during package walk: cutlass.cute.experimental",
        "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit",
        "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0.",
        "kill_process_tree called: parent_pid=7, include_parent=True, pid=7",
    ]
    signatures = {signature.name for signature in PROFILE.signatures}
    assert not signatures & set(rules("\n".join(f"[2026-03-01 10:00:00 TP0] {line}" for line in benign)))


SCRAPS = [
    "[2026-03-01 10:00:00 TP0] ",
    "[2026-03-01 10:00:00] ",
    "Traceback (most recent call last):",
    '  File "/x/a.py", line 1, in f',
    "ValueError: x",
    "Fatal Python error: y",
    "Current thread 0x1 (most recent call first):",
    "During handling of the above exception, another exception occurred:",
    "100%|██| 3/8 [00:00<00:00, 22.90it/s]",
    "Load weight begin. avail mem=-.GB",
    "Capture ",
    "[rank9999]: ",
    "\r",
    "\x00",
    "│ │ ",
]


@given(st.lists(st.one_of(st.sampled_from(SCRAPS), st.text(max_size=40), st.sampled_from(["\n"])), max_size=60))
@settings(max_examples=150, deadline=None)
def test_no_text_breaks_the_reader(parts: list[str]) -> None:
    for match in read("".join(parts).encode(errors="replace")):
        assert len(match.text) <= 2000
        assert match.line >= 1


def test_random_bytes_neither_break_the_reader_nor_fill_its_memory() -> None:
    chance = random.Random(7)
    reader, cutter = LogReader(PROFILE, 1), LineCutter()
    for _ in range(200):
        reader.read(cutter.feed(chance.randbytes(20_000)))
    assert len(reader.finish()) < 10
    assert cutter.held_bytes <= 16 * 1024
