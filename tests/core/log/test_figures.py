"""Numbers of a log: whatever its writer makes of them, reading them raises nothing."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisor.core.log.figures import amount_of, count_of
from supervisor.core.log.grammar import LogReader
from supervisor.core.progress import read_bar
from supervisor.core.ranks import Rank, Step
from supervisor.core.remedy import gigabytes
from supervisor.core.story import LogStory
from supervisor.events import LineMatched
from supervisor.lines import LineCutter
from supervisor.profile import load_profile
from supervisor.simulator.options import Options
from supervisor.simulator.render import render
from supervisor.units import MAX_DIGITS
from tests.core.world import World

HUGE = "9" * 5000
PROFILE = load_profile("sglang")
BAR = next(rule for rule in PROFILE.rules if rule.bar)


@given(st.text() | st.text("0123456789.e-+infa_"))
def test_any_text_is_a_number_or_none(text: str) -> None:
    count, amount = count_of(text), amount_of(text)
    assert count is None or 0 <= count < 10**MAX_DIGITS
    assert amount is None or math.isfinite(amount)


@pytest.mark.parametrize(
    ("text", "count", "amount"),
    [
        ("12", 12, 12.0),
        ("1.5", None, 1.5),
        ("", None, None),
        ("933,888", 933888, None),
        ("1,587,648", 1587648, None),
        ("1,58", None, None),
        (",123", None, None),
    ],
)
def test_numbers_are_read(text: str, count: int | None, amount: float | None) -> None:
    assert (count_of(text), amount_of(text)) == (count, amount)


def test_the_border_of_what_a_counter_can_have_reached() -> None:
    assert count_of("9" * MAX_DIGITS) == 10**MAX_DIGITS - 1
    assert count_of("9" * (MAX_DIGITS + 1)) is None
    assert amount_of("9" * 400) is None


@pytest.mark.parametrize("field", ["done", "total", "rate"])
def test_a_bar_with_a_number_nobody_can_have_counted_to(field: str) -> None:
    match = LineMatched(1, BAR.name, 1, "", text="", fields={"done": "1", "total": "8", "rate": "2.0", field: HUGE})
    view = read_bar(BAR, match)
    assert view is None if field != "rate" else (view is not None and view.rate_per_s is None)


def test_a_rank_with_a_number_nobody_can_have_counted_to() -> None:
    assert Rank(f"TP{HUGE}", Step("weights", 0.0)).sort_key == (("TP", 999_999_999),)


@given(st.text() | st.text("0123456789.").map(lambda digits: f"{digits} GiB"))
def test_any_text_is_a_size_or_none(text: str) -> None:
    size = gigabytes(text)
    assert size is None or size >= 0


@given(st.lists(st.text("0123456789.", min_size=1), min_size=5, max_size=5))
@example(["1.2.3"] * 5)
@example([HUGE] * 5)
def test_an_exhausted_gpu_is_one_whatever_its_sizes_are(sizes: list[str]) -> None:
    """In every place where a remedy looks for one."""
    tried, total, others, own, left = sizes
    story = LogStory(PROFILE)
    log = (
        f"[2026-03-01 10:00:00] server_args=ServerArgs(model_path='/m', mem_fraction_static={own}, tp_size=1)\n"
        f"[2026-03-01 10:00:01 TP0] Load weight begin. avail mem={left} GB\n"
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 0 has a total capacity of "
        f"{total} GiB of which 1.00 GiB is free. Process 1 has {others} GiB memory in use. Including non-PyTorch "
        f"memory, this process has {own} GiB memory in use.\n"
    )
    story.read(LineCutter().feed(log.encode()))
    assert story.conclude().diagnosis.cause in ("gpu-oom-weights", "gpu-memory-occupied")


def huge(line: bytes) -> bytes:
    """The line with every number behind its stamp and rank made too long to be one."""
    return line[:40] + re.sub(rb"\d+", HUGE.encode(), line[40:])


@pytest.mark.parametrize("dialect", ["0.5.3", "0.5.9", "0.5.23"])
def test_no_line_of_an_engine_hurts_however_long_its_numbers_are(dialect: str) -> None:
    """As text of the log, and as the fields of every rule that matched: some rules bound their digits, some do not."""
    log = b"".join(write.data for write in render(Options(dialect=dialect, tp=2)))
    world, story = World(), LogStory(PROFILE)
    world.start()
    world.until(1.0)
    matches = list(LogReader(PROFILE, 1).read(LineCutter().feed(log)))
    assert len({match.rule for match in matches}) > 10
    for match in matches:
        world.tell(replace(match, fields=dict.fromkeys(match.fields, HUGE)))
        world.tell(replace(match, rank=f"TP{HUGE}"))
    lines = b"\n".join(map(huge, log.splitlines())) + b"\n"
    world.log(*lines.decode().splitlines())
    story.read(LineCutter().feed(lines))
    story.conclude()
    assert world.server.snapshot().startup is not None
