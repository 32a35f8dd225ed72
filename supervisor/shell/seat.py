"""One server at work: its configuration, its loop and its hands, and what is under way between them."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup

from supervisor.actions import Announce
from supervisor.config import ServerConfig, started_with
from supervisor.core.lifecycle import RESTING, WITHOUT_DEVICES, State
from supervisor.edge.process import Tree
from supervisor.profile import CommandFacts, Profile, api_key
from supervisor.saved import SavedServer
from supervisor.shell import clock
from supervisor.shell.adoption import GONE, Inheritance
from supervisor.shell.effects import Effects
from supervisor.shell.host import Host
from supervisor.shell.loop import ServerLoop
from supervisor.shell.recall import recall
from supervisor.shell.router import Door

log = structlog.get_logger()

_DRIFTED = "it was started with other settings than the file has now; sglctl restart brings these into force"
# Where nothing is under way that must not be broken off: no spawn, no kill, no look at devices.
_CALM = (*RESTING, State.BACKOFF, State.RUNNING)


class Seat:
    """Its tasks live in its scope; `left` is set when they have ended."""

    def __init__(
        self,
        config: ServerConfig,
        profile: Profile,
        known: CommandFacts,
        loop: ServerLoop,
        host: Host,
        announce: Callable[[str, Announce], None],
    ) -> None:
        self.config = config
        self.loop = loop
        self.effects: Effects | None = None
        self.scope = anyio.CancelScope()
        self.left = anyio.Event()
        self._profile = profile
        self._known = known
        self._host = host
        self._announce = announce

    def equip(self, tasks: TaskGroup) -> Effects:
        """Give it hands, whose work is done in tasks of this group."""
        loop = self.loop
        self.effects = Effects(
            self.config,
            loop.server.settings,
            self._profile,
            self._known,
            self._host,
            tasks,
            loop.post,
            loop.snapshot,
            loop.report_bug,
        )
        return self.effects

    async def resume(self, effects: Effects, saved: SavedServer, inherited: Inheritance) -> None:
        """Go on where an earlier daemon, or an earlier configuration, left off."""
        loop, tree = self.loop, inherited.tree
        if saved.state not in WITHOUT_DEVICES:  # the record was written right before its lease ended
            self._host.devices.adopt(saved.name, saved.devices)
        actions = loop.server.restore(saved, clock.monotonic(), tree_lives=inherited.lives, ended=inherited.ended)
        if tree is not None and saved.attempt is not None:
            effects.take(tree, await recall(loop.server, self._profile, saved.attempt))
            log.info("adopted", server=saved.name, pid=tree.pid, attempt=saved.number, state=saved.state)
            if inherited.started_with not in ("", started_with(self.config)):
                self._announce(saved.name, Announce("supervisor", "", "configuration", _DRIFTED, saved.number))
                log.warning("configuration", server=saved.name, problem=_DRIFTED)
        elif inherited.outcome == GONE and saved.attempt is not None:
            await recall(loop.server, self._profile, saved.attempt, over=True)  # why it ended nobody else tells
        loop.resume(actions, effects.carry)
        if tree is not None and saved.attempt is not None and saved.attempt.pid is None:
            # The news of the spawn was lost with the daemon that had asked for it.
            await loop.post(msgspec.structs.replace(tree.spawned, pid=tree.pid))

    # --- what is under way ---------------------------------------------------------------------------------------

    @property
    def tree(self) -> Tree | None:
        """The process tree, while there is one."""
        return self.effects.tree if self.effects is not None else None

    @property
    def keeps_evidence(self) -> bool:
        """Whether the evidence of an attempt is being kept: the end of our tasks would break that off."""
        return self.effects is not None and self.effects.keeps_evidence

    @property
    def calm(self) -> bool:
        """Whether nothing is under way: a start whose process has been spawned and is not being ended is calm, too."""
        state = self.loop.server.state
        return self.loop.settled and (state in _CALM or (state is State.STARTING and not self._spawning))

    @property
    def unsettled(self) -> bool:
        """At something short that the next daemon could only begin anew, or not even that: evidence of the past."""
        ending = self.loop.server.state is State.STOPPING
        return not self.loop.settled or ending or self._spawning or self.keeps_evidence

    @property
    def _spawning(self) -> bool:
        return self.loop.server.state is State.STARTING and self.loop.snapshot().pid is None

    @property
    def door(self) -> Door | None:
        """Where its requests go; a node of several has no port of its own."""
        port, known = self.loop.server.settings.port, self._known
        if not port or known.node_rank:
            return None
        key = api_key(self._profile, self.config.command)
        prefills = known.disaggregation == "prefill"
        bootstrap = [use.port for use in known.ports if "bootstrap" in use.purpose and prefills]
        return Door(known.host, port, known.disaggregation, key, self.loop.snapshot(), *bootstrap[:1])
