"""What the kernel's OOM killer ended is told by the count of the server's cgroup, each time once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from supervisor.edge.process import Tree
from supervisor.shell.host import Host
from supervisor.shell.oomcount import OomCount

TREE = cast(Tree, SimpleNamespace(attempt=3, server="kimi", cgroup=object()))
SWEPT = cast(Tree, SimpleNamespace(attempt=3, server="kimi", cgroup=None))


class Group:
    """A cgroup that counts `kills`; None: it has no memory controller."""

    def __init__(self, kills: int | None) -> None:
        self.kills = kills

    def oom_kills(self) -> int | None:
        return self.kills


def counted(group: Group) -> OomCount:
    controllers = () if group.kills is None else ("memory",)
    cgroups = SimpleNamespace(server=lambda _: group, controllers=controllers)
    return OomCount(cast(Host, SimpleNamespace(cgroups=cgroups)))


def test_kills_of_earlier_attempts_are_no_news() -> None:
    group = Group(2)
    count = counted(group)
    count.begin(TREE)
    assert count.counted
    assert count.news(TREE) is None


def test_each_kill_is_told_once() -> None:
    group = Group(2)
    count = counted(group)
    count.begin(TREE)
    group.kills = 5
    news = count.news(TREE)
    assert news is not None
    assert (news.attempt, news.source) == (3, "memory.events of its cgroup counts 3")
    assert count.news(TREE) is None


def test_where_nobody_counts_there_is_no_news() -> None:
    without = OomCount(cast(Host, SimpleNamespace(cgroups=None)))
    for count, tree in ((counted(Group(None)), TREE), (counted(Group(1)), SWEPT), (without, TREE)):
        count.begin(tree)
        assert count.news(tree) is None
    assert not without.counted
