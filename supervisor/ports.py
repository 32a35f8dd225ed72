"""Which ports a server will bind besides its own, by its command line and the rules of its engine's profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from supervisor.units import parse_whole

HIGHEST = 65535


class PortRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`span` ports for one purpose: named by an option (PORT or HOST:PORT), else `default`, else own port + `offset`.

    Bound only with one of the options `needs` (of the value `needs_value`, if there is one), on the first node alone.
    """

    purpose: str
    flags: tuple[str, ...] = ()
    default: int = 0
    offset: int = 0
    span: int = 1
    needs: tuple[str, ...] = ()
    needs_value: str = ""


class PortUse(msgspec.Struct, frozen=True):
    """One port and what it is for."""

    port: int
    purpose: str


def derived_ports(
    rules: Iterable[PortRule], given: Mapping[str, str], own_port: int, node_rank: int = 0
) -> tuple[PortUse, ...]:
    """The further ports, each once. `given` are the command's options with their values."""
    if node_rank:
        return ()
    uses = {use.port: use for rule in rules for use in _uses(rule, given, own_port)}
    return tuple(uses[port] for port in sorted(uses) if port != own_port)


def _uses(rule: PortRule, given: Mapping[str, str], own_port: int) -> Iterator[PortUse]:
    asked = [given[flag] for flag in rule.needs if flag in given]
    if rule.needs and not (asked and rule.needs_value in ("", asked[0])):
        return
    first = _first(rule, given, own_port)
    for port in range(first, first + rule.span) if first else ():
        if port <= HIGHEST:
            yield PortUse(port, rule.purpose)


def _first(rule: PortRule, given: Mapping[str, str], own_port: int) -> int:
    """0 when nothing names a port."""
    for flag in rule.flags:
        port = parse_whole(given.get(flag, "").rpartition(":")[2])
        if port is not None:
            return port
    if rule.default:
        return rule.default
    if not rule.offset or not own_port:
        return 0
    # An engine turns round rather than leave the range of ports.
    return own_port + rule.offset if own_port + rule.offset <= HIGHEST else own_port - rule.offset
