"""Tells a process's role in its tree by its title, as an engine's profile describes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from supervisor.profile import RoleRule

Claim: TypeAlias = tuple[str, str]  # role and rank, as a title says them
NO_CLAIM: Claim = ("", "")
_NAME_BYTES = 15  # TASK_COMM_LEN: the kernel keeps no more of a name
_RANK_WORD = re.compile(r"_([A-Z_]+\d+)")


class Rules:
    """How roles and compilers are recognised. `canonical` brings a rank's words into the order of the log."""

    def __init__(
        self,
        roles: Sequence[RoleRule] = (),
        compilers: Iterable[str] = (),
        canonical: Callable[[str], str] = lambda words: words,
    ) -> None:
        self._roles = tuple((re.compile(rule.title), rule.role) for rule in roles)
        self._names = tuple((rule.name[:_NAME_BYTES], rule.role) for rule in roles if rule.name)
        self._ranked = frozenset(role for pattern, role in self._roles if "rank" in pattern.groupindex)
        self._canonical = canonical
        self.compilers = frozenset(name[:_NAME_BYTES] for name in compilers)

    def may_say_more(self, role: str, rank: str) -> bool:
        """Whether the title of a process that is known so far by these may still tell something."""
        return not role or (not rank and role in self._ranked)

    def role_named(self, name: str) -> str:
        """The role by what the kernel keeps of a title: all that a process leaves that ended before its title was read.

        Without the rank, which lies beyond those bytes.
        """
        return next((role for beginning, role in self._names if name.startswith(beginning)), "")

    def claim(self, title: str) -> Claim:
        """What the title says; whether the process is one of ours is another question."""
        for pattern, role in self._roles:
            if found := pattern.search(title):
                words = _RANK_WORD.findall(found.groupdict().get("rank") or "")
                return role, self._canonical(" ".join(words))
        return NO_CLAIM
