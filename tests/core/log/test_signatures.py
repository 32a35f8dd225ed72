"""Looking for marks first finds what looking for every signature would find."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.log.patterns import Match, compiled
from supervisor.core.log.signatures import Found, signature_index
from supervisor.core.log.traceback import HEAD, TracebackBlock
from supervisor.profile import Signature, load_profile, profile_names

PROFILES = {name: load_profile(name) for name in profile_names()}
NEEDLES = sorted({needle for one in PROFILES.values() for signature in one.signatures for needle in signature.needles})
FILLERS = ["", " ", "a", "Error", "RuntimeError: ", "7", "–ö", "12.5 GiB", "rank 3", "x" * 500, "(", "'"]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Needles whole and in part, one after the other with little between: marks overlap and break off."""
    pieces = []
    for _ in range(draw(st.integers(0, 6))):
        needle = draw(st.sampled_from(NEEDLES))
        pieces.append(needle[draw(st.sampled_from([0, 0, 0, 1, 3])) :][: draw(st.sampled_from([99, 99, 5, 7]))])
        pieces.append(draw(st.sampled_from(FILLERS)))
    return "".join(pieces)


def one_by_one(signatures: list[Signature], text: str) -> list[Found]:
    """Each signature on its own, without any mark."""
    found = ((one.name, match_of(one, text)) for one in signatures)
    return [Found(name, groups(match)) for name, match in found if match]


def match_of(one: Signature, text: str) -> Match | bool | None:
    if one.needles and not any(needle in text for needle in one.needles):
        return None
    if one.unless and compiled(one.unless).search(text):
        return None
    if not one.pattern:
        return True
    pattern = compiled(one.pattern)
    return pattern.match(text) if one.at_start else pattern.search(text)


def groups(match: Match | bool) -> dict[str, str]:
    if isinstance(match, bool):
        return {}
    return {name: value for name, value in match.groupdict().items() if value is not None}


@pytest.mark.parametrize("name", PROFILES)
@given(text=texts())
@settings(max_examples=60, deadline=None)
def test_lines_have_the_same_signatures_with_and_without_marks(name: str, text: str) -> None:
    index = signature_index(PROFILES[name])
    every = PROFILES[name].signatures
    assert index.record(text) == one_by_one([one for one in every if "record" in one.where], text)
    assert index.raw(text) == one_by_one([one for one in every if "raw" in one.where], text)


@pytest.mark.parametrize("name", PROFILES)
@given(text=texts())
@settings(max_examples=60, deadline=None)
def test_tracebacks_have_the_same_signatures_with_and_without_marks(name: str, text: str) -> None:
    block = TracebackBlock(1, "", "", HEAD)
    block.takes(f"RuntimeError: {text}", 2)
    raised = "\n".join([block.header, *(one.text for one in block.chain)])
    anywhere = [one for one in PROFILES[name].signatures if "traceback" in one.where and not one.frames]
    assert signature_index(PROFILES[name]).traceback(block) == one_by_one(anywhere, raised)


@pytest.mark.parametrize("name", PROFILES)
def test_every_needle_is_found_by_its_mark(name: str) -> None:
    """A needle alone is enough for those without a pattern."""
    index = signature_index(PROFILES[name])
    for one in PROFILES[name].signatures:
        if "record" in one.where and not one.pattern:
            for needle in one.needles:
                assert one.name in [found.name for found in index.record(needle)], needle


def test_who_has_no_mark_is_not_asked_for() -> None:
    assert signature_index(PROFILES["sglang"]).record("Decode batch, #running-req: 12") == []
