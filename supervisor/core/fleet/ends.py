"""In which order servers end, whoever needs another one first; turned round, in which they start."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from supervisor.config.groups import Ties
from supervisor.core.fleet.member import Member


def dependants(ties: Mapping[str, Ties], name: str) -> tuple[str, ...]:
    """Everybody who requires it, directly or not: those who are furthest from it first."""
    found: dict[str, None] = {}
    layer = [name]
    while layer:
        layer = [other for other in ties if any(one in ties[other].requires for one in layer)]
        for other in layer:
            found.pop(other, None)
            found[other] = None
    return tuple(reversed(found))


def in_the_way(
    ties: Mapping[str, Ties], name: str, members: Mapping[str, Member], held: Collection[str]
) -> tuple[str, ...]:
    """Whose processes must be gone before the server is ended: dependants, and followers that are about to end too."""
    return tuple(
        other
        for other, one in members.items()
        if one.alive
        and other != name
        and (
            name in ties.get(other, Ties()).requires
            or (name in ties.get(other, Ties()).after and (one.ending or not one.wanted or other in held))
        )
    )


def by_need(ties: Mapping[str, Ties], names: Sequence[str]) -> tuple[str, ...]:
    """The names, each after those of them that come before it: the order of starts; reversed, that of stops."""
    ordered: list[str] = []
    left = list(names)
    while left:
        name = next((one for one in left if not any(two in left for two in ties.get(one, Ties()).before)), left[0])
        left.remove(name)
        ordered.append(name)
    return tuple(ordered)
