"""Lets the operator's `before_start` hooks refuse or delay a start, in between the look at devices and the launch."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from anyio.abc import TaskGroup

from supervisor.config import HooksConfig
from supervisor.edge.hook import HookRun, run_hook
from supervisor.events import DevicesChecked
from supervisor.shell import clock
from supervisor.shell.guard import Report, guarded
from supervisor.shell.hooks import Outputs, start_variables, tell

# The look at the devices must be answered within the core's patience; a hook that takes longer is asked for again.
ANSWER_S = 3.0
STALE_S = 60.0
NOT_YET = 75  # EX_TEMPFAIL of sysexits.h: ask again later
_EVENT = "before_start"


class Gate:
    """One server's. A start passes when every hook has ended with 0 since it was wanted."""

    def __init__(
        self,
        server: str,
        hooks: tuple[HooksConfig, ...],
        outputs: Outputs,
        tasks: TaskGroup,
        report_bug: Report,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._server = server
        self._hooks = tuple(one for one in hooks if one.before_start)
        self._outputs = outputs
        self._tasks = tasks
        self._report_bug = report_bug
        self._answer_s = answer_s
        self._scope: anyio.CancelScope | None = None
        self._done = anyio.Event()
        self._refusal: HookRun | None = None
        self._ended_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether a hook is running."""
        return self._scope is not None

    async def judge(self, found: DevicesChecked, *, start: bool, port: int, gpus: tuple[int, ...]) -> DevicesChecked:
        """The look's answer, or a refusal in its place. Nothing is asked before the look itself finds all free."""
        if not start or found.clean is False:
            self._forget()
            return found
        if not self._hooks:
            return found
        if self._scope is None:
            self._begin(found.attempt, port, gpus)
        with anyio.move_on_after(self._answer_s):
            await self._done.wait()
        if not self._done.is_set():
            return DevicesChecked(found.attempt, False, "the before_start hook is running", waiting=True)
        refusal, stale = self._refusal, clock.monotonic() - self._ended_at > STALE_S
        self._forget()
        if stale:
            return DevicesChecked(found.attempt, False, "the before_start hook is asked again", waiting=True)
        return found if refusal is None else _refused(found, refusal)

    def _begin(self, attempt: int, port: int, gpus: tuple[int, ...]) -> None:
        self._scope, self._done, self._refusal = anyio.CancelScope(), anyio.Event(), None
        name = f"{self._server}: before_start"
        work = (self._scope, self._done, attempt, port, gpus)
        self._tasks.start_soon(guarded, self._report_bug, _EVENT, self._ask, *work, name=name)

    def _forget(self) -> None:
        """The next start is judged anew; a hook that still runs for this one is ended."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None

    async def _ask(
        self, scope: anyio.CancelScope, done: anyio.Event, attempt: int, port: int, gpus: tuple[int, ...]
    ) -> None:
        with scope:
            refusal = await self._first_refusal(start_variables(self._server, attempt, port, gpus))
            self._refusal, self._ended_at = refusal, clock.monotonic()
            done.set()

    async def _first_refusal(self, environment: Mapping[str, str]) -> HookRun | None:
        for one in self._hooks:
            run = await run_hook(one.before_start, environment, one.timeout_s)
            await self._outputs.keep(self._server, _EVENT, run)
            tell(self._server, _EVENT, run)
            if run.status != 0:
                return run
        return None


def _refused(found: DevicesChecked, run: HookRun) -> DevicesChecked:
    reason = f"the before_start hook refuses: {run.last_line}"
    if run.status == NOT_YET:
        return DevicesChecked(found.attempt, False, reason, waiting=True)
    return DevicesChecked(found.attempt, False, reason, refuse=True)
