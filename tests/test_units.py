"""Durations and sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.units import MAX_DIGITS, format_bytes, format_duration, parse_bytes, parse_duration, parse_whole


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h", 3600),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1m250ms", 60.25),
        ("2d", 172800),
        ("1.5h", 5400),
        ("0s", 0),
        ("1d2h3m4s5ms", 93784.005),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "90", "s", "-5s", "5 m", "5M", "1e3s", "٣s", "5s\n", "nan", "infs", "1h30", "5sec", "1_000s", ".5s"]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match='expected a duration such as "90s"'):
        parse_duration(text)


@pytest.mark.parametrize("text", ["30m1h", "5s5s", "1ms1s"])
def test_units_run_from_large_to_small(text: str) -> None:
    with pytest.raises(ValueError, match="from large to small"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (12.4, "12 s"),
        (59.6, "1 m"),
        (432, "7 m 12 s"),
        (3600, "1 h"),
        (11100, "3 h 5 m"),
        (11159, "3 h 5 m"),
        (187200, "2 d 4 h"),
        (-432, "-7 m 12 s"),
    ],
)
def test_durations_are_shown_in_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=0, max_value=1e7))
def test_what_is_shown_is_close_to_what_was_meant(seconds: float) -> None:
    shown = format_duration(seconds).replace(" ", "")
    assert parse_duration(shown) == pytest.approx(seconds, rel=0.05, abs=0.51)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("30000", 30000),
        ("9" * MAX_DIGITS, 10**MAX_DIGITS - 1),
        ("9" * (MAX_DIGITS + 1), None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("1.0", None),
        ("٧", None),
        ("²", None),
    ],
)
def test_whole_numbers_are_read(text: str, number: int | None) -> None:
    assert parse_whole(text) == number


@pytest.mark.parametrize(
    ("text", "count"),
    [("10GB", 10**10), ("512MiB", 512 * 2**20), ("1.5KiB", 1536), ("7B", 7), ("0B", 0), ("2 TB", 2 * 10**12)],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "10", "10gb", "10G", "-1B", "1 000B", "GB", "1e3B", "1PB", "10GB "])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match='expected a size such as "10GB" or "512MiB"'):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (812, "812 B"), (1500, "1.5 KB"), (999_600, "1.0 MB"), (131e9, "131 GB"), (99.96e9, "100 GB")],
)
def test_sizes_are_shown_in_three_digits(count: float, text: str) -> None:
    assert format_bytes(count) == text
