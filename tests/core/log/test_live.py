"""The live reader finds, at a glance and however the log is cut, what reading every line finds."""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.log.grammar import LogReader
from supervisor.core.log.live import STEP_BYTES, LiveReader
from supervisor.events import LineMatched
from supervisor.lines import LineCutter
from supervisor.profile import Profile, load_profile
from supervisor.simulator.options import Options
from supervisor.simulator.render import render
from supervisor.simulator.scenario import parse_scenarios
from tests.core import golden

PROFILE = load_profile("sglang")
VLLM = load_profile("vllm")


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def live(parts: Iterable[bytes], profile: Profile = PROFILE) -> list[LineMatched]:
    reader = LiveReader(profile, 1)
    found = [match for part in parts for step in reader.feed(part) for match in step]
    return found + reader.finish()


def sampled(parts: Iterable[bytes], profile: Profile = PROFILE) -> list[LineMatched]:
    """As it was done before: all lines of a chunk decoded, the newest of each kind reported."""
    reader, cutter = LogReader(profile, 1), LineCutter()
    return [match for part in parts for match in reader.read(cutter.feed(part))] + reader.finish()


def every(data: bytes, profile: Profile = PROFILE) -> list[LineMatched]:
    """Without any sampling: each line is the newest of its read."""
    reader, cutter = LogReader(profile, 1), LineCutter()
    return [match for line in cutter.feed(data) for match in reader.read([line])] + reader.finish()


def samples(found: list[LineMatched], profile: Profile) -> list[LineMatched]:
    starts = {start for rule in profile.rules if rule.sampled for start in rule.starts}
    names = {rule.name for rule in profile.rules if starts & set(rule.starts)}
    return [match for match in found if match.rule in names]


def assert_nothing_is_lost(data: bytes, parts: list[bytes], profile: Profile = PROFILE) -> None:
    """All but samples exactly; of samples at least those that reading every line reports, and no invented ones."""
    found, truth = live(parts, profile), every(data, profile)
    told, known = samples(found, profile), samples(truth, profile)
    assert [match for match in found if match not in told] == [match for match in truth if match not in known]
    assert all(match in known for match in told)
    assert all(match in told for match in samples(sampled(parts, profile), profile))


DECODE = "[2026-03-01 10:00:{:02} {}] Decode batch, #running-req: {}, #token: 7, token usage: 0.01, #queue-req: 0"
SERVED = '[2026-03-01 10:00:{:02}] INFO:     10.0.0.{}:{} - "POST /generate HTTP/1.1" 200 OK'
PROBED = '[2026-03-01 10:00:{:02}] INFO:     127.0.0.1:{} - "GET /health HTTP/1.1" 200 OK'


def serving(lines: int, seed: int = 1) -> bytes:
    chance = random.Random(seed)
    kinds = [
        lambda n: DECODE.format(n // 50 % 60, chance.choice(["TP0", "DP1 TP1 EP1", "DP0 PP1 TP3"]), n),
        lambda n: SERVED.format(n // 50 % 60, n % 9, 30000 + n % 1000),
        lambda n: PROBED.format(n // 50 % 60, 30000 + n % 1000),
        lambda n: f"[2026-03-01 10:00:{n // 50 % 60:02} TP0] Prefill batch, #new-seq: {n % 2 + 1}, #new-token: {n}",
        lambda n: f"[2026-03-01 10:00:{n // 50 % 60:02}] Receive: obj=GenerateReqInput(text='{'word ' * (n % 50)}')",
    ]
    return "".join(f"{chance.choice(kinds)(n)}\n" for n in range(lines)).encode()


@pytest.mark.parametrize("path", golden.recorded(), ids=lambda path: path.name.removesuffix(".log.gz"))
def test_a_recorded_log_is_read_live_as_line_by_line(path: golden.Path) -> None:
    data = gzip.decompress(path.read_bytes())
    for size in (4099, 256 * 1024):
        assert_nothing_is_lost(data, chunks(data, size))
    few = data[:20_000] + data[-20_000:]
    assert_nothing_is_lost(few, chunks(few, 7))


@pytest.mark.parametrize("scenario", ["", "flood:mb=1", "crash:cause=gpu-oom-graph-capture"])
def test_the_simulators_logs_are_read_live_as_line_by_line(scenario: str) -> None:
    options = Options(shards=8, tp=2, scenarios=parse_scenarios([scenario]))
    data = b"".join(write.data for write in render(options))
    for size in (997, 64 * 1024):
        assert_nothing_is_lost(data, chunks(data, size))


def test_rare_lines_among_thousands_are_all_found() -> None:
    rare = (
        b"[2026-03-01 10:00:30 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3\n"
        b"[2026-03-01 10:00:31] Receive: obj=GenerateReqInput(text='one\nTraceback (most recent call last):\nValueError\n"
        b"[2026-03-01 10:00:32 DP1 TP1 EP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        b'  File "/x/sglang/srt/managers/scheduler.py", line 1, in event_loop_normal\n'
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79.10 GiB\n"
    )
    data = serving(3000) + rare + serving(3000, 2) + b"NaN in the logits\r\n" + serving(500, 3) + rare
    for size in (5003, 64 * 1024, 1 << 20):
        assert_nothing_is_lost(data, chunks(data, size))
    assert [match.rule for match in live([data])].count("exception") == 2


def test_the_newest_of_each_rank_is_told_and_the_request_that_was_answered() -> None:
    lines = [DECODE.format(1, "TP0", 1), DECODE.format(1, "DP1 TP1", 2), SERVED.format(1, 1, 1), PROBED.format(1, 1)]
    data = "\n".join([*lines, "", DECODE.format(2, "TP0", 3), PROBED.format(3, 2), ""]).encode()
    told = [(match.rank, match.rule, match.line) for match in live([data])]
    assert told == [("DP1 TP1", "decode", 2), ("", "served", 3), ("TP0", "decode", 6), ("", "access", 7)]


def test_what_follows_a_run_of_calm_lines_has_their_rank_and_time() -> None:
    data = serving(100) + b"[2026-03-01 11:00:00 TP5] Decode batch, #running-req: 1\n\nCUDA error: device-side assert\n"
    (match,) = [match for match in live([data]) if match.line == 103]
    assert (match.rank, match.stamp) == ("TP5", "2026-03-01 11:00:00")


def test_a_record_that_says_nothing_is_looked_at_once_and_still_counts() -> None:
    dull = "[2026-03-01 10:00:{:02} TP3] Unexpected key in checkpoint: model.layers.7; ignored\n"
    data = "".join(dull.format(n % 60) for n in range(5000)).encode() + b"CUDA error: device-side assert triggered\n"
    assert_nothing_is_lost(data, chunks(data, 64 * 1024))
    assert [(match.rank, match.stamp) for match in live([data])] == [("TP3", "2026-03-01 10:00:19")]


def test_a_line_of_serving_is_not_taken_for_one_that_says_nothing() -> None:
    line = f"{DECODE.format(1, 'DP1 TP1 EP1', 1)}\n".encode()
    opened = b"[rank3]: Traceback (most recent call last):\n"
    closed = b"[2026-03-01 10:00:02 TP3] Load weight begin. avail mem=7.00 GB\n"
    data = line * 3 + opened + line * 3 + closed + line * 500 + b"x" * STEP_BYTES + b"\n" + line * 3
    for parts in ([data, line], [data, line * 5, data], chunks(data * 2, 30_000)):
        assert_nothing_is_lost(b"".join(parts), parts)


def test_a_traceback_that_is_cut_between_two_chunks_stays_one() -> None:
    head = b"Traceback (most recent call last):\n" + b'  File "/x/sglang/srt/a.py", line 1, in f\n'
    calm = f"{DECODE.format(1, 'TP0', 1)}\n".encode() * 50
    found = live([calm + head, b"FooError: no\n" + calm])
    assert [match.text for match in found if match.rule == "traceback"] == ["FooError: no"]


def test_the_other_engines_lines_of_serving_are_told_apart_too() -> None:
    line = "(APIServer pid={}) INFO 03-01 10:00:{:02} [loggers.py:123] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: {} reqs\n"  # fmt: skip
    ready = "(APIServer pid=7) INFO:     Application startup complete.\n"
    data = (ready + "".join(line.format(7, n // 50, n) for n in range(2000))).encode()
    assert_nothing_is_lost(data, chunks(data, 64 * 1024), VLLM)
    assert len(live([data], VLLM)) < 200


SCRAPS = [
    *(DECODE.format(n, rank, n) for n in (1, 2) for rank in ("TP0", "TP1", "DP1 PP0 TP0 EP3")),
    *(form for n in (1, 2) for form in (SERVED.format(n, n, n), PROBED.format(n, n))),
    "[2026-03-01 10:00:01 TP0] Prefill batch, #new-seq: 2, #new-token: 9",
    "[2026-03-01 10:00:01] Receive: obj=GenerateReqInput(text='x",
    "[2026-03-01 10:00:01 TP0] Load weight begin. avail mem=7.00 GB",
    "[2026-03-01 10:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):",
    "[rank3]: Traceback (most recent call last):",
    '  File "/x/a.py", line 1, in f',
    "ValueError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "Capturing batches:  10%|#   | 1/8 [00:00<00:00, 22.90it/s]",
    "[2026-03-01 10:00:01 \x1b[1mTP0] Decode batch, #running-req: 5",
    "\x00[2026-03-01 10:00:01 TP0] Decode batch, #running-req: 6",
    "[2026-03-01 10:00:0 ö TP0] Decode batch, #running-req: 6",
    "x" * 50 + "] Decode batch, #running-req: 6",
    "Segmentation fault",
]
LINES = st.one_of(st.sampled_from(SCRAPS), st.sampled_from(SCRAPS[:12]), st.text(max_size=30))
ENDS = st.sampled_from(["\n", "\n", "\n", "\n", "\r\n", "\r", "\n\n", ""])


@given(st.lists(st.tuples(LINES, ENDS), max_size=80), st.lists(st.integers(1, 3000), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_mixture_in_any_pieces(lines: list[tuple[str, str]], sizes: list[int]) -> None:
    data = "".join(text + end for text, end in lines).encode(errors="replace")
    parts, at = [], 0
    while at < len(data):
        size = sizes[len(parts) % len(sizes)]
        parts.append(data[at : at + size])
        at += size
    assert_nothing_is_lost(data, parts)


def test_numbers_are_those_of_the_file() -> None:
    data = serving(5000)
    reader = LiveReader(PROFILE, 1)
    told = [match for part in chunks(data, 50_000) for step in reader.feed(part) for match in step]
    texts = data.decode().split("\n")
    assert all(match.text[:40] in texts[match.line - 1] for match in told)
    assert reader.lines == 5000
    assert 0 < len(told) < 300


HOSTILE = [
    b"[2026-03-01 10:00:00 TP0] Capture    - draft " * 400,
    b"Capturing Capturing 1% " + b"Capturing 0000000000000%" * 700,
    b"0" * 16_000 + b"%|",
    b"[2026-03-01 10:00:00 TP0] quantization must be " + b"quantiz" * 2300,
    b"[2026-03-01 10:00:00 TP0] cuda_graph Invalid page_size " + b"cuda_graph" * 1600,
    b"PermissionError: " + b"creat" * 3200,
    b"a." * 8000,
    b"Traceback (most recent call last):" * 480,
    b"\x1b[" * 8000,
    b"[rank7]: " * 1800,
    b"ValueError: " + b"Kernel build failed " * 800,
]


def test_no_hostile_line_costs_more_than_its_length() -> None:
    """One search took 32 s with a pattern that backtracks; 1.4 MB take less than a second and may take ten."""
    reader = LiveReader(PROFILE, 1)
    begin = time.process_time()
    for _ in range(8):
        for line in HOSTILE:
            for _ in reader.feed(line + b"\n" + serving(5)):
                pass
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("ended", [b"\n", b"\r"])
def test_a_hostile_chunk_is_read_in_steps(ended: bytes) -> None:
    chunk = b"".join(line[:400] + ended for line in HOSTILE * 60)
    steps = len(list(LiveReader(PROFILE, 1).feed(chunk)))
    assert steps >= len(chunk) // STEP_BYTES // 2


def test_a_traceback_without_end_and_ranks_without_number_fill_no_memory() -> None:
    reader = LiveReader(PROFILE, 1)
    for n in range(300):
        block = f"[rank{n}]: Traceback (most recent call last):\n" + f'[rank{n}]:   File "{"x" * 4000}", line 1, in f\n'
        for _ in reader.feed(block.encode()):
            pass
    assert len(reader.finish()) <= 65


def test_a_traceback_that_nobody_goes_on_with_is_told_while_others_print() -> None:
    calm = f"{DECODE.format(1, 'TP0', 1)}\n".encode()
    head = b"[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: lost\n"
    reader = LiveReader(PROFILE, 1)
    found = [match for part in (head, calm * 3000) for step in reader.feed(part) for match in step]
    assert [(match.rank, match.text) for match in found if match.rule == "traceback"] == [("TP3", "ValueError: lost")]
    assert not reader.finish()
    assert len(found) < 1100
