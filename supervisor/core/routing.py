"""Which servers a router is to have: what is healthy joins, what ends leaves, and of the rest nobody knows better."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from supervisor.snapshot import RouterView, ServerSnapshot

_FIRST_RETRY_S = 0.5
_RETRY_MAX_S = 30.0


class Membership(enum.StrEnum):
    """Whether a server belongs into a router."""

    IN = "in"
    OUT = "out"
    KEEP = "keep"  # nobody knows: it stays as it is


class Plan(msgspec.Struct, frozen=True):
    """Addresses that are to be added, and such that are to be taken out."""

    joining: tuple[str, ...]
    leaving: tuple[str, ...]


def membership_of(snapshot: ServerSnapshot) -> Membership:
    """Ready is in; not running, or not ready, is out; a server that nobody has probed yet is left alone."""
    if snapshot.lifecycle.value != "running":
        return Membership.OUT
    match snapshot.readiness.value:
        case "success":
            return Membership.IN
        case "failure":
            return Membership.OUT
        case _:
            return Membership.KEEP


def plan(
    memberships: Mapping[str, Membership],
    listed: Collection[str],
    earlier: Collection[str] = (),
    *,
    complete: bool = True,
) -> Plan:
    """What makes the router have whom it is to have. Memberships are by address.

    `earlier` are addresses that were ours once: only those and ours are ever taken out. When the router cannot be asked
    (`complete` is False), whoever does not belong there is taken out whether it has him or not.
    """
    gone = [url for url in earlier if url not in memberships]
    out = [url for url, membership in memberships.items() if membership is Membership.OUT]
    return Plan(
        joining=tuple(
            url for url, membership in memberships.items() if membership is Membership.IN and url not in listed
        ),
        leaving=tuple(url for url in (*out, *gone) if url in listed or not complete),
    )


def settled(memberships: Mapping[str, Membership], listed: Collection[str], ready: Collection[str]) -> bool:
    """Whether the router has whom it is to have; of whom nobody knows do not count."""
    inside = all(url in ready for url, membership in memberships.items() if membership is Membership.IN)
    return inside and not any(url in listed for url, membership in memberships.items() if membership is Membership.OUT)


def view(
    name: str, membership: Membership, url: str, listed: Collection[str], ready: Collection[str], trouble: str = ""
) -> RouterView:
    """How one server stands with a router that can be asked. `trouble` is what it has refused to do."""
    match membership:
        case Membership.IN if url in ready:
            return RouterView(name, "joined")
        case Membership.IN if url in listed:
            return RouterView(name, "joining", trouble or "the router has it and does not find it healthy yet")
        case Membership.IN:
            return RouterView(name, "joining", trouble)
        case Membership.OUT if url in listed:
            return RouterView(name, "leaving", trouble)
        case Membership.OUT:
            return RouterView(name, "out")
        case _:
            return RouterView(name, "joined" if url in listed else "out", "nobody knows whether it is ready")


def retry_s(failures: int) -> float:
    """The pause after so many failures in a row."""
    return min(_RETRY_MAX_S, _FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
