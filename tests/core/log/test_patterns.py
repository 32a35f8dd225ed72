"""No pattern of a profile takes long, whatever text it is given: a line of the log can hold anybody's words."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from supervisor.core.log.grammar import LogReader
from supervisor.core.log.patterns import compiled, needs_backtracking
from supervisor.core.log.signatures import TEXT_SEARCHED, signature_index
from supervisor.lines import KEPT_BYTES, Line
from supervisor.profile import Profile, ProfileError, load_profile, profile_names

FILLERS = ["a", "A", "0", " ", ".", "_", "a.", "a ", "0.", "[", "(", "%|", "1/2 ", "x: "]
_WORDS = re.compile(r"[A-Za-z][\w ':.-]{2,}")  # what a pattern asks for, more or less


def literals(pattern: str) -> list[str]:
    """Texts that the pattern is made of, the longest first: repeated, they make a pattern begin again and again."""
    words = set(_WORDS.findall(re.sub(r"\\[wsSdDbB]|\(\?\w*[:=!]|\\", "", pattern)))
    return sorted(words, key=lambda word: (-len(word), word))


def adversarial(pattern: str, length: int) -> Iterator[str]:
    """Lines that somebody would write who has read the profile."""
    for filler in FILLERS:
        yield (filler * length)[:length]
    words = literals(pattern)
    for word in words[:30]:
        yield (word * length)[:length]
        yield (f"{word} " * length)[:length]
        yield word + "a" * (length - len(word))
    for count in range(2, 6):
        yield (" ".join(words[:count]) * length)[:length]
        yield ("".join(words[-count:]) * length)[:length]


def patterns(profile: Profile) -> Iterator[tuple[str, int]]:
    for rule in profile.rules:
        yield rule.pattern, KEPT_BYTES
    for one in profile.signatures:
        for pattern in (one.pattern, one.frames, one.not_frames, one.unless):
            yield pattern, TEXT_SEARCHED
    for place in profile.places:
        yield place.frames, KEPT_BYTES


@pytest.mark.parametrize("name", profile_names())
def test_no_adversarial_text_keeps_a_pattern_busy(name: str) -> None:
    """All of it takes 1 s where `re` did not end within a quarter of an hour; one pattern with one text 5 ms."""
    begin = time.process_time()
    slowest = 0.0
    for pattern, length in {one for one in patterns(load_profile(name)) if one[0]}:
        made = compiled(pattern)
        for text in adversarial(pattern, length):
            since = time.process_time()
            made.match(text)
            made.search(text[:TEXT_SEARCHED])
            slowest = max(slowest, time.process_time() - since)
    assert slowest < 0.5
    assert time.process_time() - begin < 30


@pytest.mark.parametrize("name", profile_names())
def test_no_adversarial_line_keeps_the_reader_busy(name: str) -> None:
    """The way a line takes from its prefix to its signatures, with all marks of all signatures in it."""
    profile = load_profile(name)
    stamp = "[2026-03-01 10:00:00 TP0] " if name == "sglang" else "INFO 03-01 10:00:00 [core.py:58] "
    marks = " ".join(signature_index(profile).record_marks)
    starts = [start for rule in profile.rules for start in rule.starts]
    reader = LogReader(profile, 1)
    begin = time.process_time()
    lines = 0
    for head in [
        "",
        stamp,
        "[rank3]: ",
        "Traceback (most recent call last): ",
        *(f"{stamp}{start}" for start in starts),
    ]:
        for tail in (marks * 8, "a" * KEPT_BYTES, marks[:2000] + "Error " * 2000, "10%|" * 4000, f"{stamp}" * 600):
            lines += 1
            reader.read([Line(lines, f"{head}{tail}"[:KEPT_BYTES], 0)])
    assert time.process_time() - begin < 0.1 * lines  # 3 to 5 ms each


def test_few_patterns_need_a_backtracking_engine() -> None:
    """Each has to be harmless by itself: keep them few, and their gaps short."""
    every = {pattern for name in profile_names() for pattern, _ in patterns(load_profile(name)) if pattern}
    assert len([pattern for pattern in every if needs_backtracking(pattern)]) <= 10
    assert needs_backtracking(r"a(?!b)")
    assert not needs_backtracking(r"(?is)a(?P<n>b)(?:c)")


def test_both_engines_answer_alike() -> None:
    for pattern in (r"used (?P<used>\d+) of (?P<total>\d+)?", r"used (?P<used>\d+)(?! GB) of (?P<total>\d+)?"):
        found = compiled(pattern).search("it has used 7 of them – ö")
        assert found is not None
        assert found.groupdict() == {"used": "7", "total": None}
        assert found.end() == len("it has used 7 of ")
    assert compiled("them").match("it has") is None


def test_what_only_re_knows_is_refused_in_words() -> None:
    with pytest.raises(ProfileError, match="cannot use the pattern"):
        compiled(r"a\Z")
