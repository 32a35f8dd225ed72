"""The cutter: every byte counted, no line longer than the limit, whatever comes and however it is cut."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.lines import KEPT_BYTES, Line, LineCutter, clean


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_newline_return_and_both_end_a_line() -> None:
    lines = LineCutter().feed(b"one\ntwo\rthree\r\nfour\n")
    assert texts(lines) == ["one", "two", "three", "four"]


def test_numbers_are_those_of_grep() -> None:
    lines = LineCutter().feed(b"one\n\nbar 1\rbar 2\rbar 3\nlast\n")
    assert [(line.number, line.text) for line in lines] == [
        (1, "one"),
        (3, "bar 1"),
        (3, "bar 2"),
        (3, "bar 3"),
        (4, "last"),
    ]


def test_a_crlf_between_two_chunks_is_one_line_end() -> None:
    cutter = LineCutter()
    assert texts(cutter.feed(b"one\r")) == ["one"]
    assert [(line.number, line.text) for line in cutter.feed(b"\ntwo\n")] == [(2, "two")]


def test_offsets_name_the_byte_behind_the_line() -> None:
    cutter = LineCutter(offset=100)
    assert [line.end_offset for line in cutter.feed(b"ab\ncd\r\nef")] == [103, 107]
    assert [line.end_offset for line in cutter.feed(b"\n")] == [110]


def test_a_bar_without_an_end_can_be_asked_for() -> None:
    cutter = LineCutter()
    assert cutter.pending() is None
    assert texts(cutter.feed(b"\rloading 10%\rloading 20%")) == ["loading 10%"]
    pending = cutter.pending()
    assert pending is not None
    assert (pending.text, pending.partial) == ("loading 20%", True)
    assert texts(cutter.feed(b"\r")) == ["loading 20%"]
    assert cutter.pending() is None


def test_a_long_line_is_kept_to_its_limit_and_counted_to_its_end() -> None:
    cutter = LineCutter(limit=10)
    line, after = cutter.feed(b"0123456789abcdef\nafter\n")
    assert (line.text, line.truncated, line.end_offset) == ("0123456789", True, 17)
    assert (after.text, after.truncated, after.number) == ("after", False, 2)


def test_two_hundred_megabytes_without_an_end_take_no_memory() -> None:
    cutter = LineCutter()
    chunk = b"x" * (1 << 20)
    tracemalloc.start()
    for _ in range(200):
        assert cutter.feed(chunk) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cutter.held_bytes == KEPT_BYTES
    assert peak < 1 << 20
    (line,) = cutter.feed(b"\n")
    assert line.truncated
    assert line.end_offset == 200 * (1 << 20) + 1


def test_nuls_and_broken_utf8_are_text_of_a_kind() -> None:
    (line,) = LineCutter().feed(b"a\x00b\xff\xfec\n")
    assert line.text == "ab��c"


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[A\x1b[2Kbar", "bar"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("bell\x07 back\x08", "bell back"),
        ("right\u202eleft", "rightleft"),
        ("tab\tstays", "tab\tstays"),
        ("c1 \x9b31m", "c1 31m"),
        ("ünïcode ▍", "ünïcode ▍"),
    ],
)
def test_nothing_printed_moves_a_terminal(dirty: str, expected: str) -> None:
    assert clean(dirty) == expected


def test_lines_that_somebody_else_has_read_are_counted() -> None:
    cutter = LineCutter()
    cutter.feed(b"one\n")
    assert cutter.between_lines
    cutter.skip(8, 2)
    (line,) = cutter.feed(b"four\n")
    assert (line.number, line.end_offset, cutter.lines) == (4, 17, 4)


@given(st.lists(st.binary(max_size=200), max_size=20))
@settings(max_examples=200, deadline=None)
def test_the_same_bytes_in_other_pieces_are_the_same_lines(chunks: list[bytes]) -> None:
    data = b"".join(chunks) + b"\n"
    whole, pieces = LineCutter(limit=64), LineCutter(limit=64)
    expected = whole.feed(data)
    got = [line for chunk in chunks for line in pieces.feed(chunk)] + pieces.feed(b"\n")
    # between \r and a \n that has not come yet, the offset behind the line is not known
    assert [(one.number, one.text, one.truncated) for one in got] == [
        (one.number, one.text, one.truncated) for one in expected
    ]
    assert pieces.held_bytes == 0
    assert all(len(line.text) <= 64 and "\n" not in line.text and "\r" not in line.text for line in got)


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_splitting_gives_the_lines_that_feeding_gives(parts: list[bytes], limit: int) -> None:
    split, fed = LineCutter(limit), LineCutter(limit)
    for part in parts:
        number = split.lines
        pieces = split.split(part)
        if pieces is None:
            got = split.feed(part)
        else:
            got = [split.line(at, piece) for at, piece in enumerate(pieces, number + 1) if piece]
        expected = fed.feed(part)
        assert [(one.number, one.text, one.truncated) for one in got] == [
            (one.number, one.text, one.truncated) for one in expected
        ]
        assert (split.lines, split.pending(), split.held_bytes) == (fed.lines, fed.pending(), fed.held_bytes)


def test_splitting_leaves_returns_and_long_lines_to_feeding() -> None:
    cutter = LineCutter(limit=10)
    assert cutter.split(b"bar\rbar\n") is None
    assert cutter.split(b"one\ntwo") == [b"one"]
    assert cutter.split(b" and more than is kept") == []
    assert cutter.split(b" of it\n") is None
    assert texts(cutter.feed(b" of it\n")) == ["two and mo"]
    cutter.feed(b"x\r")
    assert cutter.split(b"\ny\n") is None
