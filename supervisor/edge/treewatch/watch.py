"""Keeps track of one tree's processes, as two feeds: samples of all, and deaths of those that have a role.

A process has a role when it belongs to the tree *and* its title says so: a stranger's title counts for nothing, nor
does the copy of a title that a fork leaves until its exec. `cmdline` takes the memory lock that a process stuck in the
kernel may hold for ever, so it is read in a thread that can be left behind; `stat` and `io` do not block.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from typing import TypeAlias

import anyio
import anyio.to_thread
import msgspec

from supervisor.edge.treewatch.deaths import Bearer, Deaths
from supervisor.edge.treewatch.proc import Seen, children, look, read_titles
from supervisor.edge.treewatch.roles import NO_CLAIM, Claim, Rules
from supervisor.events import ProcessSample, RoleDied, TreeSampled
from supervisor.pace import until_shared
from supervisor.procstat import Process
from supervisor.threads import Threads

TITLES_LIMIT_S = 2.0
INLINE_PROCESSES = 64  # a look at them takes a millisecond; the way to a thread and back costs a fifth of that
TITLE_EVERY_LOOKS = 6  # a title may change without the name, which is looked at every time

_titles = Threads("a process of a server", 32)

ListMembers: TypeAlias = Callable[[], Awaitable[Collection[int]]]


class Member(msgspec.Struct):
    """One process of the tree, as last seen."""

    pid: int
    start_ticks: int
    parent: int = 0
    state: str = "?"
    alive: bool = True
    name: str = ""
    title: str = ""
    claim: Claim = NO_CLAIM
    role: str = ""
    rank: str = ""
    cpu_s: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    readable: bool = True


class TreeWatch:
    """The eyes on one attempt. Run `samples` and `deaths` each in a task of its own, then `close`.

    `list_members` names the tree's processes (those it has named before may be left out); `cpu_s` tells the CPU
    seconds of everything that ever ran in the tree, where a cgroup counts them.
    """

    def __init__(
        self,
        attempt: int,
        leader: int,
        rules: Rules,
        list_members: ListMembers,
        cpu_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._attempt = attempt
        self._leader = leader
        self._rules = rules
        self._list_members = list_members
        self._counted_cpu_s = cpu_s
        self._known: dict[int, Member] = {}
        self._ended = Member(0, 0)  # the sums of those that are gone
        self._highest_cpu_s = 0.0
        self._looks = 0
        self._one_at_a_time = anyio.Lock()
        self._deaths = Deaths(attempt, leader)

    def members(self) -> tuple[Member, ...]:
        """Everybody seen at the last look, those with a role first."""
        return tuple(_in_order(self._known.values()))

    async def samples(self, period_s: Callable[[], float]) -> AsyncGenerator[TreeSampled, None]:
        """A sample at once, then one every period, for ever.

        All watches of the daemon look at the same moments: one wake-up and one write of the journal serve them all.
        """
        while True:
            try:
                sample = await self.sample()
            except OSError:  # no descriptor is left to look with, which is no news of anybody
                pass
            else:
                yield sample
            await anyio.sleep(until_shared(period_s(), time.monotonic()))

    async def deaths(self) -> AsyncGenerator[RoleDied, None]:
        """Each death of a process with a role while the leader lives; the feed ends with the leader."""
        while (died := await self._deaths.next()) is not None:
            for event in died:
                yield event

    @property
    def first_death(self) -> RoleDied | None:
        """Who with a role ended first, when that was before the leader."""
        return self._deaths.first

    def close(self) -> None:
        """Give back the descriptors; both feeds must have ended."""
        self._deaths.close()

    # --- one look ------------------------------------------------------------------------------------------------

    async def sample(self) -> TreeSampled:
        """Look at every process once. Bounded in time, whatever one of them is stuck in. OSError when nobody can look:
        then everybody is remembered as he was."""
        async with self._one_at_a_time:
            return await self._sample()

    async def _sample(self) -> TreeSampled:
        listed = frozenset(await self._list_members())
        if self._looks == 0:
            listed |= {self._leader}
        listed |= self._children()
        seen = await self._look(listed | self._known.keys())
        self._merge([one for one in seen if one.process.pid in listed or self._knows(one.process)])
        for member in self._known.values():
            if member.role:
                self._deaths.watch(Bearer(member.pid, member.start_ticks, member.role, member.rank))
        return self._sum_up()

    def _children(self) -> set[int]:
        """Of those who matter: a cgroup and a search by environment do not name a child that has ended already."""
        parents = {self._leader, *(one.pid for one in self._known.values() if one.role)}
        return {child for parent in parents for child in children(parent)}

    async def _look(self, pids: Collection[int]) -> list[Seen]:
        if len(pids) <= INLINE_PROCESSES:
            found = look(pids)
        else:
            found = await anyio.to_thread.run_sync(look, pids)
        self._looks += 1
        wanted = [
            one.process.pid for one in found if one.process.first_thread_alive and self._title_wanted(one.process)
        ]
        if not wanted:
            return found
        titles: dict[int, str] = {}
        with contextlib.suppress(TimeoutError):
            await _titles.run(read_titles, wanted, titles, limit_s=TITLES_LIMIT_S, thing=f"tree of pid {self._leader}")
        read = dict(titles)  # a thread that was left behind may go on
        return [
            msgspec.structs.replace(one, title=read[one.process.pid]) if one.process.pid in read else one
            for one in found
        ]

    def _title_wanted(self, process: Process) -> bool:
        known = self._known.get(process.pid)
        if known is None or known.start_ticks != process.start_ticks:
            return True
        return self._rules.may_say_more(known.role, known.rank) and (
            known.name != process.name or self._looks % TITLE_EVERY_LOOKS == 0
        )

    def _knows(self, process: Process) -> bool:
        known = self._known.get(process.pid)
        return known is not None and known.start_ticks == process.start_ticks

    # --- what it means -------------------------------------------------------------------------------------------

    def _merge(self, seen: list[Seen]) -> None:
        """Take over everybody's present figures; who is gone leaves his last ones in the sums."""
        here = {one.process.identity for one in seen}
        for member in list(self._known.values()):
            if (member.pid, member.start_ticks) not in here:
                del self._known[member.pid]
                self._ended.cpu_s += member.cpu_s
                self._ended.read_bytes += member.read_bytes
                self._ended.write_bytes += member.write_bytes
        for one in seen:
            now = one.process
            if now.pid not in self._known and (now.alive or self._rules.role_named(now.name)):
                self._known[now.pid] = Member(now.pid, now.start_ticks)
            if now.pid in self._known:
                _update(self._known[now.pid], one)
        self._assign([self._known[one.process.pid] for one in seen if one.title is not None])
        for one in seen:
            if not one.process.first_thread_alive and one.process.pid in self._known:
                self._assign_untitled(self._known[one.process.pid])

    def _assign(self, retitled: Iterable[Member]) -> None:
        """Roles by newly read titles. A role stays: the process is what it was, whatever it calls itself later.

        Its rank may come later: a worker of vLLM gets its own once it has met the others.
        """
        changed = []
        for member in retitled:
            before, member.claim = member.claim, self._rules.claim(member.title)
            news = member.role in ("", member.claim[0]) and not member.rank
            if member.claim not in (before, NO_CLAIM) and news and member.pid != self._leader:
                changed.append(member)
        for member in changed:
            if not self._is_copy(member):
                member.role, member.rank = member.claim

    def _assign_untitled(self, member: Member) -> None:
        """A role for who ended before its title was read; a fork that failed to exec still has its parent's name."""
        parent = self._known.get(member.parent)
        if not member.role and parent is not None and parent.name != member.name:
            member.role = self._rules.role_named(member.name)

    def _is_copy(self, member: Member) -> bool:
        """Whether the title comes from who forked the process: its parent, or with an orphan anybody, has it too."""
        parent = self._known.get(member.parent)
        if parent is not None:
            return parent.claim == member.claim
        return any(other.claim == member.claim and other is not member for other in self._known.values())

    def _sum_up(self) -> TreeSampled:
        everybody = self._known.values()
        shown = [one for one in everybody if one.role or one.pid == self._leader]
        counted = self._counted_cpu_s()
        if counted is None:
            counted = self._ended.cpu_s + sum(one.cpu_s for one in everybody)
        self._highest_cpu_s = max(self._highest_cpu_s, counted)  # the cgroup may vanish before we do
        return TreeSampled(
            self._attempt,
            cpu_s=self._highest_cpu_s,
            read_bytes=self._ended.read_bytes + sum(one.read_bytes for one in everybody),
            write_bytes=self._ended.write_bytes + sum(one.write_bytes for one in everybody),
            processes=tuple(_shown(one) for one in _in_order(shown)),
            compilers=sum(one.name in self._rules.compilers and one.alive for one in everybody),
            unreadable=sum(not one.readable for one in everybody),
            members=sum(one.alive for one in everybody),
        )


def _in_order(members: Iterable[Member]) -> list[Member]:
    return sorted(members, key=lambda one: (not one.role, one.role, one.rank, one.pid))


def _update(member: Member, seen: Seen) -> None:
    now = seen.process
    member.parent, member.state, member.alive, member.name = now.parent, now.state, now.alive, now.name
    member.cpu_s = max(member.cpu_s, seen.cpu_s)
    if seen.transfer is not None:
        member.read_bytes, member.write_bytes = seen.transfer
    if member.alive:
        member.readable = seen.transfer is not None
    if seen.title is not None:
        member.title = seen.title


def _shown(one: Member) -> ProcessSample:
    return ProcessSample(one.pid, one.state, one.role, one.rank, one.cpu_s, one.read_bytes, one.write_bytes)
