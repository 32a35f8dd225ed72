"""Which servers depend on which, with groups written out; and what is wrong with that: unknown names, cycles."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from supervisor.config.model import Config, GroupConfig, GroupOrder
from supervisor.config.names import EVERYBODY, name_problem, there_is_no
from supervisor.config.reader import Problems, join, shown

GROUP_MARK = "g:"


class Ties(msgspec.Struct, frozen=True):
    """What the start, the stop and the restart of one server have to do with others.

    `after`: these are healthy or given up first; `requires`: these are healthy; `mates`: the others of `group`, whose
    members restart together. `gang`: the group, when its members start at once and may wait for each other within their
    start, as the ranks of several nodes do: then they share a start slot.
    """

    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    group: str = ""
    mates: tuple[str, ...] = ()
    gang: str = ""

    @property
    def before(self) -> tuple[str, ...]:
        """Everybody who comes before this one in any way."""
        return tuple(dict.fromkeys((*self.requires, *self.after)))


def ties(config: Config) -> dict[str, Ties]:
    """The ties of every server of the configuration. Whoever is not there is not waited for, but still required."""
    found: dict[str, Ties] = {}
    for name, server in config.servers.items():
        group = next((one for one in config.groups.values() if one.together and name in one.members), None)
        found[name] = Ties(
            after=_known(config, (*_servers(config, server.after), *_predecessors(config, name))),
            requires=_servers(config, server.requires),
            group=group.name if group is not None else "",
            mates=tuple(mate for mate in group.members if mate != name) if group is not None else (),
            gang=group.name if group is not None and group.order is GroupOrder.ANY else "",
        )
    return found


def members(config: Config, name: str) -> tuple[str, ...]:
    """Of a group that there is, in the order in which they are listed."""
    return _known(config, config.groups[name].members)


def check_groups(config: Config) -> Problems:
    """What is wrong with groups and dependencies, taken all together."""
    problems = [
        *(problem for group in config.groups.values() for problem in _group(config, group)),
        *_two_togethers(config),
        *_unknown_dependencies(config),
    ]
    return problems or _cycle(config)


def _group(config: Config, group: GroupConfig) -> Iterator[tuple[str, str]]:
    path = join("group", group.name)
    if text := name_problem(group.name, EVERYBODY):
        yield path, text
    if group.name in config.servers:
        yield path, f"there is a server of this name: {group.name} would mean both"
    if not group.members:
        yield f"{path}.members", 'expected a list such as ["a", "b"], got none'
    for index, member in enumerate(group.members):
        if member not in config.servers:
            yield f"{path}.members[{index}]", there_is_no("server", member, config.servers)
        elif member in group.members[:index]:
            yield f"{path}.members[{index}]", f"names {member} twice"


def _two_togethers(config: Config) -> Iterator[tuple[str, str]]:
    first: dict[str, str] = {}
    for group in config.groups.values():
        for index, member in enumerate(group.members if group.together else ()):
            if first.setdefault(member, group.name) != group.name:
                where = f"{join('group', group.name)}.members[{index}]"
                yield where, f"{member} restarts together with group {first[member]} already"


def _unknown_dependencies(config: Config) -> Iterator[tuple[str, str]]:
    for name, server in config.servers.items():
        for key, wanted in (("after", server.after), ("requires", server.requires)):
            for index, other in enumerate(wanted):
                if text := _complaint(config, other):
                    yield f"{join('server', name)}.{key}[{index}]", text


def _complaint(config: Config, name: str) -> str:
    if name.startswith(GROUP_MARK):
        group = name.removeprefix(GROUP_MARK)
        return "" if group in config.groups else there_is_no("group", group, config.groups)
    if name in config.groups:
        return f'{shown(name)} is a group, write "{GROUP_MARK}{name}"'
    return "" if name in config.servers else there_is_no("server", name, config.servers)


def _cycle(config: Config) -> Problems:
    """The first one found, as a path that ends where it begins."""
    known = ties(config)
    done: set[str] = set()
    for name in known:
        path = _way_back(known, name, done)
        if path:
            return [(_key(config, path[0], path[1]), f"nobody can be first of {' → '.join(path)}")]
    return []


def _way_back(known: dict[str, Ties], name: str, done: set[str]) -> list[str]:
    """Depth first, without recursion: a chain may be as long as there are servers."""
    stack = [(name, iter(known[name].before))]
    path = [name]
    while stack:
        current, others = stack[-1]
        other = next((one for one in others if one not in done), None)
        if other is None:
            done.add(current)
            stack.pop()
            path.pop()
        elif other in path:
            return [*path[path.index(other) :], other]
        else:
            stack.append((other, iter(known[other].before)))
            path.append(other)
    return []


def _key(config: Config, name: str, other: str) -> str:
    """The key that ties the one to the other."""
    server = config.servers[name]
    for key, wanted in (("after", server.after), ("requires", server.requires)):
        if other in _servers(config, wanted):
            return f"{join('server', name)}.{key}"
    group = next(one for one in config.groups.values() if other in _predecessor(one, name))
    return f"{join('group', group.name)}.order"


def _servers(config: Config, names: tuple[str, ...]) -> tuple[str, ...]:
    """Groups replaced by their members."""
    written: list[str] = []
    for name in names:
        group = config.groups.get(name.removeprefix(GROUP_MARK)) if name.startswith(GROUP_MARK) else None
        written += group.members if group is not None else (name,)
    return tuple(dict.fromkeys(written))


def _predecessors(config: Config, name: str) -> tuple[str, ...]:
    return tuple(other for group in config.groups.values() for other in _predecessor(group, name))


def _predecessor(group: GroupConfig, name: str) -> tuple[str, ...]:
    """Who comes before it in a group whose order counts."""
    if group.order is GroupOrder.ANY or name not in group.members:
        return ()
    at = group.members.index(name)
    return group.members[max(0, at - 1) : at]


def _known(config: Config, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name in config.servers))
