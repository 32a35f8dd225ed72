"""What holds for one server whatever happens to it: random histories in virtual time.

The invariants, as docs/architecture.md lists them: never two trees for one server; never a spawn on devices whose last
look found them dirty; no waiting state without a deadline; every event and action survives JSON; events of an attempt
that is over change nothing; the facts can be told at any time; goal down always ends stopped, or quarantined while the
kernel does not let a process or its memory go; a replayed history gives the same actions.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.settings import PhaseLimit, ReclaimSettings, RestartSettings, StopSettings
from tests.core.world import SETTINGS, World

LINES = (
    "[2026-11-29 10:00:01 TP0] Init torch distributed begin.",
    "[2026-11-29 10:00:02 TP0] Load weight begin. avail mem=78.00 GB",
    "[2026-11-29 10:00:09 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.00 GB",
    "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]",
    "[2026-11-29 10:00:11 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.92 GB",
    "[2026-11-29 10:00:40] The server is fired up and ready to roll!",
    "[2026-11-29 10:00:41] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    "[2026-11-29 10:00:42 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
    "not a line of any engine \x1b[31m \x00",
)
FOREIGN = e.DevicesChecked(0, False, "held by pid 9", (e.Holder(0, 2**30, 9, kind="foreign"),))
LEFTOVER = e.DevicesChecked(0, False, "still held", (e.Holder(0, 2**30, kind="unattributed"),))
REFUSED = e.DevicesChecked(0, False, "there is no GPU 7", refuse=True)
QUARANTINED = e.DevicesChecked(0, False, "GPU 0 is quarantined", quarantined=(0,))
NOT_SEEN = e.DevicesChecked(0, False, "waiting for the first look", waiting=True)
ENDS_STOPPED = (None, FOREIGN, REFUSED)  # what does not keep a server from being called stopped


class AnyHistory(RuleBasedStateMachine):
    """Requests, logs, exits, hangs, dirty devices and time, in any order."""

    @initialize(
        budget=st.integers(0, 4),
        grace_s=st.sampled_from([0.0, 3.0, 90.0]),
        attempt=st.sampled_from([0, 7]),
        leave_limit_s=st.sampled_from([0.0, 15.0]),
    )
    def begin(self, budget: int, grace_s: float, attempt: int, leave_limit_s: float) -> None:
        self.deaths = 0
        self.looks_lost = False
        self.world = World(
            replace(
                SETTINGS,
                deadlines={"weights": PhaseLimit(60, 300), "launch": PhaseLimit(120, 120)},
                restart=RestartSettings(budget=budget, backoff_s=1.0),
                stop=StopSettings(grace_s=grace_s, leave_limit_s=leave_limit_s),
                reclaim=ReclaimSettings(own_limit_s=75.0),
            ),
            last_attempt=attempt,
        )

    # --- people ---

    @rule()
    def somebody_starts_it(self) -> None:
        self.world.start()

    @rule()
    def somebody_stops_it(self) -> None:
        self.world.stop()

    @rule(grace_s=st.sampled_from([0.0, 30.0]))
    def somebody_drains_it(self, grace_s: float) -> None:
        self.world.tell(e.StopRequested("test", grace_s))

    @rule(grace_s=st.sampled_from([None, 30.0]))
    def somebody_restarts_it(self, grace_s: float | None) -> None:
        self.world.tell(e.RestartRequested("test", grace_s=grace_s))

    @rule()
    def somebody_is_to_stop_it_after_others(self) -> None:
        self.world.tell(e.StopRequested("test", hold=True))

    @rule(delay_s=st.sampled_from([None, 0.0, 20.0]))
    def a_mate_fails(self, delay_s: float | None) -> None:
        self.world.tell(e.MateFailed("mate", "exited with status 1", delay_s))

    @rule(number=st.sampled_from([1, 15, 9]))
    def somebody_sends_a_signal(self, number: int) -> None:
        self.world.tell(e.SignalRequested("test", number))

    # --- the server ---

    @rule(text=st.sampled_from(LINES))
    def it_writes(self, text: str) -> None:
        self.world.log(text)

    @rule(code=st.sampled_from([0, 1, -9, -11, -15, None]))
    def its_leader_ends(self, code: int | None) -> None:
        if self.number in self.world.leaders:
            self.world.tell(e.Exited(self.number, code))

    @rule(outcome=st.sampled_from(list(e.ProbeOutcome)), listener=st.sampled_from(list(e.Listener)))
    def its_port_answers(self, outcome: e.ProbeOutcome, listener: e.Listener) -> None:
        self.world.health, self.world.listener = outcome, listener

    @rule()
    def a_rank_dies(self) -> None:
        if self.number in self.world.trees:
            self.world.tell(e.RoleDied(self.number, 99, "scheduler", "TP1"))

    @rule(requests=st.sampled_from([None, 0, 3]))
    def its_counters_say(self, requests: int | None) -> None:
        self.world.requests = requests

    @rule(pid=st.sampled_from([0, 99]))
    def the_kernel_kills_for_memory(self, pid: int) -> None:
        self.world.tell(e.HostOomKilled(self.number, pid, "python", "kernel log"))

    @rule(ignores=st.booleans())
    def it_minds_term_or_not(self, ignores: bool) -> None:
        self.world.ignores_term = ignores

    @rule(stuck=st.booleans())
    def it_sticks_in_the_kernel_or_not(self, stuck: bool) -> None:
        self.world.unkillable = stuck

    @rule(error=st.sampled_from([None, e.SpawnFailed(0, "no", True), e.SpawnFailed(0, "later", False)]))
    def it_can_be_spawned_or_not(self, error: e.SpawnFailed | None) -> None:
        self.world.spawn_error = error

    # --- the host ---

    @rule(found=st.sampled_from([*ENDS_STOPPED, LEFTOVER, QUARANTINED, NOT_SEEN]))
    def the_devices_are(self, found: e.DevicesChecked | None) -> None:
        self.world.dirty = found

    @rule(kind=st.sampled_from([a.Probe, a.KeepEvidence, a.CheckDevices, a.LeaveRouters, a.CountRequests]))
    def an_edge_goes_silent(self, kind: type) -> None:
        self.world.silent ^= {kind}
        self.looks_lost = self.looks_lost or kind is a.CheckDevices

    @rule(seconds=st.sampled_from([0.001, 0.5, 7.0, 65.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.until(self.world.now + seconds)

    @rule(seconds=st.sampled_from([3.0, 100.0]))
    def we_do_not_run_for_a_while(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def an_event_of_an_old_attempt_comes(self) -> None:
        for late in (e.Exited(self.number - 1, 0), e.TreeEmptied(self.number - 1), e.Spawned(self.number - 1, 1)):
            assert self.world.server.handle(late, self.world.now) == []

    @rule(away_s=st.sampled_from([0.0, 1.0, 40.0]), leader_dies=st.booleans())
    def the_daemon_is_killed_and_comes_back(self, away_s: float, leader_dies: bool) -> None:
        self.deaths += 1
        self.world.daemon_dies(away_s, leader_dies=leader_dies)

    # --- what holds ---

    @property
    def number(self) -> int:
        return self.world.facts_now.attempt

    @invariant()
    def facts_can_be_told_at_any_time(self) -> None:
        if hasattr(self, "world"):
            facts = self.world.facts_now
            assert facts.goal in ("up", "down")
            assert facts.budget_remaining >= 0
            assert (facts.lifecycle.value == "running") <= (facts.ready_since is not None or facts.pid is None)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.silent.clear()
        world.unkillable = False
        world.until(world.now + 0.1)  # answers that are on their way tell of what was
        world.stop()
        world.settle()
        # A look that was never answered leaves what was dirty before it quarantined; the next stop looks again.
        if world.dirty not in ENDS_STOPPED or (self.looks_lost and world.state is State.QUARANTINED):
            assert world.state in (State.STOPPED, State.QUARANTINED, State.RECLAIMING)
            world.dirty = None
            world.until(world.now + 0.1)
            world.stop()
            world.settle()
        assert world.state is State.STOPPED
        assert not world.trees
        assert world.server.deadline() is None
        self.replay()

    def replay(self) -> None:
        """The same events at the same times give the same actions (a second daemon has a memory of its own)."""
        if self.deaths:
            return
        again = World(self.world.server.settings, last_attempt=self.world.first_attempt).server
        for at, event, out in self.world.history:
            assert again.handle(e.decode(e.encode(event)), at) == out


TestAnyHistory = AnyHistory.TestCase
# Shrinking a history takes minutes and the test's time limit would cut it: a failure prints its seed instead.
TestAnyHistory.settings = hypothesis_settings(
    max_examples=100, stateful_step_count=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
