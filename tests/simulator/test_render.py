"""The rendered log against the order of lines in the recorded starts, and against the table of who prints what."""

import re
import time
from itertools import pairwise

import pytest

from supervisor.simulator.failures import CAUSES, Where
from supervisor.simulator.options import Options
from supervisor.simulator.render import render
from supervisor.simulator.scenario import ScenarioError, parse_scenario

EAGLE3 = {"speculative_algorithm": "EAGLE3"}
PREFIX = re.compile(r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<ranks>(?: (?:DP|PP|TP|EP)\d+)*)\] (?P<text>.*)")

# What a start prints first, from the recorded 0.5.15 and 0.5.23 logs (g5) and the constructors' order (g1, g2).
OLD_PLAIN = ["Init torch distributed begin.", "Init torch distributed ends.", "Load weight begin.", "Load weight end.",
             "KV Cache is allocated.", "Memory pool end.", "Capture cuda graph begin.", "Capture cuda graph bs",
             "Capture cuda graph end.", "max_total_num_tokens=", "Started server process", "Uvicorn running on",
             "The server is fired up"]  # fmt: skip
OLD_EAGLE = [*OLD_PLAIN[:9], "Init torch distributed begin.", "Init torch distributed ends.", "Load weight begin.",
             "Load weight end.", "KV Cache is allocated.", "Memory pool end.", "Capture draft cuda graph begin.",
             "Capture draft cuda graph end.", "Capture draft extend cuda graph begin.",
             "Capture draft extend cuda graph end.", *OLD_PLAIN[9:]]  # fmt: skip
NEW_PLAIN = ["Init parallel begin.", "Init parallel ends.", "Memory baseline taken.", "Load weight begin.",
             "Load weight end.", "KV Cache is allocated.", "Memory pool end.",
             "Capture target prefill CUDA graph begin.", "Capture target prefill CUDA graph end.",
             "Capture target decode CUDA graph begin.", "Capture target decode CUDA graph end.",
             "max_total_num_tokens=", "Tree cache initialized", "Engine startup timings (s):",
             "Started server process", "Uvicorn running on", "The server is fired up"]  # fmt: skip
NEW_EAGLE = [*NEW_PLAIN[:5], "Load weight begin.", "Load weight end.", "KV Cache is allocated.", "Memory pool end.",
             "KV Cache is allocated.", "Memory pool end.", "Capture target prefill CUDA graph begin.",
             "Capture target prefill CUDA graph end.", "Capture target verify CUDA graph begin.",
             "Capture target verify CUDA graph end.", "Capture draft prefill CUDA graph begin.",
             "Capture draft prefill CUDA graph end.", "Capture draft decode CUDA graph begin.",
             "Capture draft decode CUDA graph end.", "Capture draft extend CUDA graph begin.",
             "Capture draft extend CUDA graph end.", *NEW_PLAIN[11:]]  # fmt: skip


def log(**options) -> bytes:
    return b"".join(write.data for write in render(Options(shards=8, **options)))


def records(text: bytes) -> list[tuple[str, str]]:
    """(ranks, message) of every record, glued ones included."""
    pieces = re.split(r"[\r\n]|(?=\[\d{4}-)", text.decode(errors="replace"))
    return [(match["ranks"].strip(), match["text"]) for piece in pieces if (match := PREFIX.match(piece))]


def order(text: bytes, markers: list[str], rank: str = "TP0") -> list[str]:
    """The markers that this rank and the launcher printed, in order."""
    mine = [message for ranks, message in records(text) if ranks in ("", rank)]
    wanted = sorted(set(markers), key=len, reverse=True)
    found = [next((marker for marker in wanted if marker in message), None) for message in mine]
    return [marker for marker in found if marker]


def printers(text: bytes, marker: str) -> set[str]:
    return {ranks for ranks, message in records(text) if message.startswith(marker)}


@pytest.mark.parametrize(
    ("dialect", "options", "expected"),
    [
        ("0.5.3", {}, OLD_PLAIN),
        ("0.5.9", {}, OLD_PLAIN),
        ("0.5.23", {}, NEW_PLAIN),
        ("0.5.3", EAGLE3, OLD_EAGLE),
        ("0.5.9", EAGLE3, OLD_EAGLE),
        ("0.5.23", EAGLE3, NEW_EAGLE),
    ],
)
def test_phases_come_in_the_generations_order(dialect, options, expected):
    assert order(log(dialect=dialect, tp=2, **options), expected) == expected


ALL, FIRST = {"TP0", "TP1", "TP2", "TP3"}, {"TP0"}


@pytest.mark.parametrize(
    ("dialect", "marker", "expected"),
    [
        ("0.5.3", "Load weight begin.", FIRST),
        ("0.5.3", "Memory pool end.", FIRST),
        ("0.5.3", "Capture cuda graph end.", FIRST),
        ("0.5.3", "KV Cache is allocated.", ALL),
        ("0.5.3", "Capture draft cuda graph begin.", ALL),
        ("0.5.3", "Registering ", ALL),
        ("0.5.9", "Load weight begin.", ALL),
        ("0.5.9", "Capture cuda graph end.", ALL),
        ("0.5.9", "Capture draft extend cuda graph end.", ALL),
        ("0.5.9", "Registering ", FIRST),
        ("0.5.9", "Capture cuda graph bs", FIRST),
        ("0.5.23", "Init parallel ends.", ALL),
        ("0.5.23", "Capture target verify CUDA graph end.", ALL),
        ("0.5.23", "Capture draft decode CUDA graph begin.", FIRST),
        ("0.5.23", "Capture draft extend CUDA graph end.", FIRST),
        ("0.5.23", "max_total_num_tokens=", FIRST),
    ],
)
def test_who_prints_what(dialect, marker, expected):
    assert printers(log(dialect=dialect, tp=4, **EAGLE3), marker) == expected


def test_one_step_captures_no_draft_decode():
    for dialect, marker in (("0.5.9", b"Capture draft cuda"), ("0.5.23", b"Capture draft decode")):
        text = log(dialect=dialect, speculative_num_steps=1, speculative_num_draft_tokens=16, **EAGLE3)
        assert marker not in text
        assert b"speculative_num_draft_tokens is adjusted to speculative_num_steps + 1" in text


def test_verify_says_how_many_tokens_the_clamp_left():
    text = log(dialect="0.5.23", speculative_num_steps=1, speculative_num_draft_tokens=16, **EAGLE3)
    assert b"Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=2," in text


def test_without_graphs_there_is_no_capture():
    for dialect in ("0.5.3", "0.5.9", "0.5.23"):
        text = log(dialect=dialect, disable_cuda_graph=True, **EAGLE3)
        assert b"Capture" not in text
        assert text.rstrip().endswith(b"ready to roll!")


@pytest.mark.parametrize(
    ("dialect", "opening"),
    [("0.5.9", b"server_args=ServerArgs(model_path="), ("0.5.23", b"server_args={'model_path':")],
)
def test_server_args_is_one_long_line(dialect, opening):
    line = next(line for line in log(dialect=dialect).splitlines() if b"server_args=" in line)
    assert opening in line
    assert 10_000 < len(line) < 40_000


def test_argument_warnings_are_bare_up_to_0_5_10():
    lines = log(dialect="0.5.9", **EAGLE3).splitlines()
    assert lines[0].startswith(b"Max running requests is reset to 48")
    assert any(re.match(rb"\[.*\] Max running", line) for line in log(dialect="0.5.23", **EAGLE3).splitlines())


def test_records_are_glued_to_bars_without_a_line_feed():
    text = log(dialect="0.5.23", tp=8)
    assert re.search(rb"\d+/\d+ \[[^\r\n]*it/s\]\[\d{4}-\d\d-\d\d [^\]]*TP\d\] ", text)
    alone = log(dialect="0.5.23")
    loading = alone[alone.index(b"Multi-thread loading") : alone.index(b"100% Completed")]
    assert b"\n" not in loading


def test_log_level_warning_leaves_only_bars_and_raw_lines():
    assert records(log(dialect="0.5.9", tp=2, log_level="warning", **EAGLE3)) == []
    assert b"Completed" in log(dialect="0.5.9", log_level="warning")


def test_the_same_seed_gives_the_same_bytes_and_another_one_another_order():
    assert log(tp=8, seed=3) == log(tp=8, seed=3)
    assert log(tp=8, seed=3) != log(tp=8, seed=4)


def test_time_never_runs_backwards_and_a_start_takes_minutes():
    writes = list(render(Options(tp=8, **EAGLE3)))
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(writes))
    assert 180 < writes[-1].at_s < 400


def test_rendering_costs_no_time_to_speak_of():
    began = time.process_time()
    log(tp=8, **EAGLE3)
    assert time.process_time() - began < 1.0


# --- scenarios


def test_a_stalled_rank_is_silent_and_the_others_stop_at_their_next_meeting():
    options = Options(tp=4, shards=8, scenarios=(parse_scenario("stall:phase=target-graph,rank=TP3,after=50%"),))
    writes = list(render(options))
    last = {write.source: write for write in writes}
    whole = {write.source: write for write in render(Options(tp=4, shards=8))}
    assert all(last[rank].at_s < whole[rank].at_s for rank in ("TP0", "TP1", "TP2", "TP3"))
    assert last["TP0"].phase == "target-graph"
    assert "main" in last
    assert last["main"].phase == "tokenizer"
    assert b"Capture cuda graph end" not in b"".join(write.data for write in writes)


def test_during_the_load_the_others_finish_their_share_first():
    text = log(tp=2, scenarios=(parse_scenario("stall:phase=weights,rank=TP1,after=30%"),))
    assert printers(text, "Load weight begin.") == {"TP0", "TP1"}
    assert printers(text, "Load weight end.") == {"TP0"}


def test_slow_stretches_its_phase_only():
    def moment(marker: bytes, *scenarios: str) -> float:
        options = Options(tp=2, shards=8, scenarios=tuple(map(parse_scenario, scenarios)))
        return next(write.at_s for write in render(options) if marker in write.data)

    slow = "slow:factor=8,phase=weights"
    assert moment(b"Load weight begin", slow) == pytest.approx(moment(b"Load weight begin"), abs=30)
    assert moment(b"KV Cache", slow) - moment(b"KV Cache") == pytest.approx(7 * 120, abs=10)


@pytest.mark.parametrize("name", [name for name, cause in CAUSES.items() if cause.where is Where.SCHEDULER])
def test_every_cause_of_a_scheduler_ends_with_its_text(name):
    text = log(tp=2, scenarios=(parse_scenario(f"crash:phase=target-graph,rank=TP1,cause={name}"),))
    assert b"TP1] Scheduler hit an exception: Traceback" in text or CAUSES[name].before
    assert text.endswith(b"Received sigquit from a child process. It usually means the child failed.\n")
    assert b"{" not in text[text.rindex(b"Completed") :]


def test_a_launcher_cause_comes_before_any_scheduler():
    text = log(tp=2, model_path="/models/absent", scenarios=(parse_scenario("crash:cause=model-path-missing"),))
    assert text.endswith(b"'/models/absent'. Use `repo_type` argument if needed.\n")
    assert b"Init torch" not in text


def test_an_oom_kill_is_silent_up_to_0_5_9_unless_it_hits_rank_0():
    silent = log(dialect="0.5.9", tp=2, scenarios=(parse_scenario("oom-kill:phase=weights,rank=TP1"),))
    assert b"dead" not in silent
    told = log(dialect="0.5.9", tp=2, scenarios=(parse_scenario("oom-kill:phase=weights,rank=TP0"),))
    assert told.endswith(b"EOFError\n")
    polled = log(dialect="0.5.23", tp=2, scenarios=(parse_scenario("oom-kill:phase=weights,rank=TP1"),))
    assert b"Rank 1 scheduler died during initialization (exit code: -9)" in polled


def test_jit_is_a_phase_when_asked_for():
    text = log(tp=2, scenarios=(parse_scenario("jit"),))
    assert b"Entering DeepGEMM JIT Pre-Compile session" in text
    assert b"DeepGEMM warmup: 100%" in text


def test_disaggregation_is_a_phase_when_asked_for():
    phases = {write.phase for write in render(Options(tp=2, disaggregation_mode="prefill"))}
    assert "pd-init" in phases


@pytest.mark.parametrize("text", ["stall:phase=verify-graph", "stall:phase=weights,rank=TP9", "crash:cause=bad-luck"])
def test_what_this_run_does_not_have_is_refused(text):
    with pytest.raises(ScenarioError, match="cannot play"):
        log(tp=2, scenarios=(parse_scenario(text),))


def test_hostile_text_is_in_the_serving_log():
    text = log(scenarios=(parse_scenario("hostile"),))
    assert b"\xff\xfe\x00" in text
    assert text.index(b"ready to roll!") < text.index(b"<script>")


def test_a_flood_has_its_size():
    assert len(log(scenarios=(parse_scenario("flood:mb=2,phase=weights"),))) > 2_000_000
