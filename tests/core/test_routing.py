"""Who belongs into a router, and what has to be done about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.routing import Membership, Plan, membership_of, plan, retry_s, settled, view
from supervisor.snapshot import FacetView, RouterView, ServerSnapshot

A, B, C, FOREIGN = "http://h:1", "http://h:2", "http://h:3", "http://other:1"


def snapshot(lifecycle: str, readiness: str) -> ServerSnapshot:
    unknown = FacetView("unknown", 0.0)
    return ServerSnapshot(
        "a", 0.0, "up", FacetView(lifecycle, 0.0), unknown, unknown, FacetView(readiness, 0.0), unknown
    )


@pytest.mark.parametrize(
    ("lifecycle", "readiness", "membership"),
    [
        ("running", "success", Membership.IN),
        ("running", "failure", Membership.OUT),
        ("running", "unknown", Membership.KEEP),
        ("running", "held", Membership.KEEP),
        ("draining", "success", Membership.OUT),
        ("draining", "held", Membership.OUT),
        ("starting", "unknown", Membership.OUT),
        *((state, "unknown", Membership.OUT) for state in ("stopped", "stopping", "reclaiming", "backoff", "fatal")),
        ("quarantined", "unknown", Membership.OUT),
    ],
)
def test_who_belongs_into_a_router(lifecycle: str, readiness: str, membership: Membership) -> None:
    assert membership_of(snapshot(lifecycle, readiness)) is membership


def test_what_is_missing_joins_and_what_ends_leaves_and_others_stay() -> None:
    memberships = {A: Membership.IN, B: Membership.OUT, C: Membership.IN}
    assert plan(memberships, {B, C, FOREIGN}) == Plan(joining=(A,), leaving=(B,))
    assert plan(memberships, {A, C, FOREIGN}) == Plan((), ())


def test_whose_place_nobody_knows_stays_where_he_is() -> None:
    assert plan({A: Membership.KEEP, B: Membership.KEEP}, {A}) == Plan((), ())
    assert settled({A: Membership.KEEP, B: Membership.KEEP}, {A}, {A})


def test_what_was_ours_before_leaves_and_what_was_never_does_not() -> None:
    assert plan({A: Membership.IN}, {A, B, FOREIGN}, earlier=[A, B, C]) == Plan((), (B,))


def test_who_cannot_be_asked_is_told_of_everybody_who_is_out() -> None:
    assert plan({A: Membership.OUT, B: Membership.IN}, {B}, [C], complete=False) == Plan((), (A, C))


MEMBERSHIPS = st.dictionaries(st.sampled_from([A, B, C]), st.sampled_from(list(Membership)))
URLS = st.frozensets(st.sampled_from([A, B, C, FOREIGN]))


@given(MEMBERSHIPS, URLS, URLS.map(lambda urls: urls - {FOREIGN}))
def test_carried_out_a_plan_settles_and_leaves_foreign_workers_alone(
    memberships: dict[str, Membership], listed: frozenset[str], earlier: frozenset[str]
) -> None:
    done = plan(memberships, listed, earlier)
    after = (listed - set(done.leaving)) | set(done.joining)
    assert settled(memberships, after, after)
    assert (FOREIGN in after) == (FOREIGN in listed)
    assert plan(memberships, after, earlier) == Plan((), ())
    assert all(
        (url in after) == (url in listed) for url, membership in memberships.items() if membership is Membership.KEEP
    )


@pytest.mark.parametrize(
    ("membership", "listed", "ready", "state"),
    [
        (Membership.IN, {A}, {A}, "joined"),
        (Membership.IN, {A}, set(), "joining"),
        (Membership.IN, set(), set(), "joining"),
        (Membership.OUT, {A}, {A}, "leaving"),
        (Membership.OUT, set(), set(), "out"),
        (Membership.KEEP, {A}, {A}, "joined"),
        (Membership.KEEP, set(), set(), "out"),
    ],
)
def test_how_a_server_stands_with_a_router(
    membership: Membership, listed: set[str], ready: set[str], state: str
) -> None:
    seen = view("front", membership, A, listed, ready)
    assert (seen.name, seen.state) == ("front", state)


def test_what_a_router_refused_is_told_of_those_whom_it_concerns() -> None:
    assert view("front", Membership.IN, A, set(), set(), "does not take it").reason == "does not take it"
    assert view("front", Membership.OUT, A, {A}, {A}, "answered 500").reason == "answered 500"
    assert view("front", Membership.IN, A, {A}, {A}, "does not take another") == RouterView("front", "joined")


def test_a_router_has_settled_when_all_who_belong_there_are_ready_and_nobody_else_is_listed() -> None:
    memberships = {A: Membership.IN, B: Membership.OUT}
    assert settled(memberships, {A}, {A})
    assert not settled(memberships, {A}, set()), "it has him and does not find him healthy"
    assert not settled(memberships, {A, B}, {A}), "one is still to leave"
    assert not settled(memberships, {B}, set())


def test_why_somebody_has_not_joined_is_told_by_what_the_router_says() -> None:
    listed = "the router has it and does not find it healthy yet"
    assert view("front", Membership.IN, A, {A}, set()).reason == listed
    assert view("front", Membership.IN, A, {A}, set(), "answered 500").reason == "answered 500"
    assert view("front", Membership.IN, A, set(), set()).reason == ""


def test_retries_come_ever_later_up_to_half_a_minute() -> None:
    assert [retry_s(failures) for failures in (1, 2, 3, 7, 1000)] == [0.5, 1.0, 2.0, 30.0, 30.0]
