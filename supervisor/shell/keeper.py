"""Keeps the evidence of one server's failures, each in the folder of its attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import anyio
from msgspec.structs import replace

from supervisor.actions import KeepEvidence
from supervisor.core.desk import REPLY_SLACK_S
from supervisor.core.lifecycle import State
from supervisor.edge import evidence
from supervisor.events import AnyEvent
from supervisor.shell import clock
from supervisor.shell.dossier import Dossier
from supervisor.shell.host import Host
from supervisor.shell.watch import ServerWatch
from supervisor.snapshot import ServerSnapshot
from supervisor.threads import Threads

DECISION_LIMIT_S = 0.1
_RECALL_LIMIT_S = 1.0
_PRUNE_LIMIT_S = 60.0
_recalling, _pruning = Threads("a process", 32), Threads("the disk of the evidence")


class EvidenceKeeper:
    """One server's."""

    def __init__(
        self,
        name: str,
        host: Host,
        dossier: Dossier,
        post: Callable[[AnyEvent], Awaitable[None]],
        snapshot: Callable[[], ServerSnapshot],
        decision_limit_s: float = DECISION_LIMIT_S,
    ) -> None:
        self._name = name
        self._host = host
        self._dossier = dossier
        self._post = post
        self._snapshot = snapshot
        self._decision_limit_s = decision_limit_s
        self._bundles = 0  # that have been asked for, and are not written yet

    @property
    def busy(self) -> bool:
        """Whether evidence is being kept: a short while, and what is broken off is lost."""
        return self._bundles > 0

    def asked(self) -> None:
        """Busy from now: what comes next may look before the task of `keep` has begun."""
        self._bundles += 1

    async def keep(self, action: KeepEvidence, watch: ServerWatch | None, pid: int) -> None:
        """Answer the action. `watch`: of the attempt, while it lives; `pid` its leader's, 0 when it has none."""
        try:
            with anyio.move_on_after(action.limit_s + REPLY_SLACK_S):  # somebody may wait for us, whatever hangs
                await self._bundle(action, watch, pid)
        finally:
            self._bundles -= 1
            self._host.hub.publish()
        with contextlib.suppress(TimeoutError):  # the next one removes what is too much
            await _pruning.run(evidence.prune, str(self._host.evidence_dir), limit_s=_PRUNE_LIMIT_S)

    async def _bundle(self, action: KeepEvidence, watch: ServerWatch | None, pid: int) -> None:
        began, host = clock.monotonic(), self._host
        subjects = await watch.subjects() if watch is not None else ()
        with contextlib.suppress(TimeoutError):
            await _recalling.run(self._dossier.recall, pid, host.environment, limit_s=_RECALL_LIMIT_S, thing=self._name)
        log_path = str(host.log_path(self._name, action.attempt))
        facts = self._dossier.facts(action, self._snapshot(), subjects, log_path, host.devices.view())
        bundle = host.evidence_dir / self._name / f"{action.attempt:06d}"
        await self._decided()
        left_s = max(1.0, action.limit_s - (clock.monotonic() - began))
        await self._post(await evidence.keep(replace(action, limit_s=left_s), str(bundle), facts))

    async def _decided(self) -> None:
        """Where no process is left whose state could change, what follows is decided first: mostly in milliseconds."""
        seen = -1
        with anyio.move_on_after(self._decision_limit_s):
            while self._snapshot().lifecycle.value == State.RECLAIMING:
                seen = await self._host.hub.changed(seen)
