"""Asks one server whether it is ready, and looks whose answer that would be."""

from __future__ import annotations

from supervisor.actions import Probe
from supervisor.config import ServerConfig
from supervisor.core.settings import Settings
from supervisor.edge import listener
from supervisor.edge.probe import Prober
from supervisor.edge.process import Tree
from supervisor.events import Listener, Probed, ProbeOutcome
from supervisor.profile import CommandFacts, Profile
from supervisor.shell import clock

_LOOK_EVERY_S = 5.0


class Asker:
    """One server's."""

    def __init__(
        self, config: ServerConfig, settings: Settings, profile: Profile, facts: CommandFacts, prober: Prober
    ) -> None:
        self._port = settings.port
        self._host = facts.host
        self._rules = profile.readiness
        self._path = config.readiness.path or self._rules.path
        self._prober = prober
        self._looked_at = 0.0

    async def ask(self, action: Probe, tree: Tree | None) -> Probed:
        """The answer to the action."""
        if not self._port:
            return Probed(action.attempt, ProbeOutcome.UNKNOWN, detail="no port is known to probe")
        whose = await self._whose(tree) if action.identify and tree is not None else Listener.UNKNOWN
        if whose is Listener.NONE:  # as a refused connection would say
            return Probed(action.attempt, ProbeOutcome.REFUSED, listener=whose)
        rules = self._rules
        return await self._prober.probe(
            action, self._host, self._port, self._path, rules.identity_path, rules.identity_fields, whose
        )

    async def _whose(self, tree: Tree) -> Listener:
        """The leader is asked first: to find the rest of the tree reads all of /proc, four times a second at start."""
        whose = await listener.whose(self._port, [tree.pid])
        unseen = tree.cgroup is None and clock.monotonic() - self._looked_at > _LOOK_EVERY_S
        if whose is Listener.FOREIGN or unseen:  # without a cgroup a tree remembers only whom it has seen
            self._looked_at = clock.monotonic()
            members = [process.pid for process in await tree.members()]
            whose = await listener.whose(self._port, members) if whose is Listener.FOREIGN else whose
        return whose
