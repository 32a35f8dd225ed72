"""A rolling restart or update over servers in memory: order, failures, routers, mates, and the daemon's own death."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from supervisor.api.control import Applied, ChangeRefusedError
from supervisor.config import ServerChange, ServerConfig
from supervisor.core.rolling import Roll, RollKind, RollState, summary
from supervisor.shell.hub import Hub
from supervisor.shell.rolling import Rolling, Site
from supervisor.shell.writer import Change, StateWriter
from supervisor.snapshot import IncidentView
from tests.shell.made import snapshot

LIMIT_S = 20.0


class Servers:
    """Servers that do at once what they are asked, unless a test says otherwise."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.hub = Hub()
        self.directory = directory
        self.now = {name: snapshot(name, "running") for name in names}
        self.old = {name: ServerConfig(name, ("old",)) for name in names}
        self.asked: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.absent: dict[str, str] = {}
        self.mates: dict[str, tuple[str, ...]] = {}
        self.ends_in: dict[str, str] = {}  # what a server's next start comes to, instead of running
        self.changed_along: tuple[str, ...] = ()  # mates whose change comes in by the same restart
        self.holds: set[str] = set()  # who does not get ahead
        self.returning: tuple[str, ...] = ()  # whom an update has end, only to start it again

    # --- what a rolling needs

    def configs(self) -> dict[str, ServerConfig]:
        return dict(self.old)

    async def request(self, name: str, event: Any) -> None:
        self.asked.append(f"{name}: {type(event).__name__} {event.grace_s:g}")
        self.restart(name)

    def ending(self, name: str) -> ServerChange | None:
        return ServerChange(name, "changed")

    async def roll(self, name: str, by: str, grace_s: float) -> Applied:
        self.asked.append(f"{name}: new configuration")
        for one in (name, *self.changed_along):
            self.old[one] = ServerConfig(one, ("new",))
        self.restart(name)
        return Applied(name, "restarted")

    async def put_back(self, configs: Sequence[ServerConfig], by: str) -> Applied:
        self.asked.extend(f"{config.name}: {config.command[0]} configuration" for config in configs)
        self.restart(configs[0].name)
        return Applied(configs[0].name, "restarted")

    def restart(self, name: str) -> None:
        for one in (name, *self.mates.get(name, ())):
            self.becomes(one, "starting", self.now[one].attempt + 1)
            if one not in self.holds:
                self.becomes(one, self.ends_in.pop(one, "running"))

    def becomes(self, name: str, lifecycle: str, attempt: int | None = None, goal: str = "up") -> None:
        attempt = self.now[name].attempt if attempt is None else attempt
        self.now[name] = snapshot(name, lifecycle, "as told", attempt=attempt, goal=goal)
        self.hub.publish()

    def tell(self, server: str, before: str, after: str, reason: str) -> None:
        self.told.append((server, after))
        self.hub.publish()

    # --- the test's side

    @asynccontextmanager
    async def rolling(
        self, boot_id: str = "boot", join_limit_s: float = 0.2, writer: StateWriter | None = None
    ) -> AsyncIterator[Rolling]:
        site = Site(
            self.now.get, lambda name: self.absent.get(name, ""), lambda name: self.mates.get(name, ()), self.request
        )
        made = Rolling(
            *(self, self, site, self.hub, self.directory / "rolling.json", boot_id, self.tell, join_limit_s),  # type: ignore[arg-type]
            writer=writer,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.run)
            yield made
            tasks.cancel_scope.cancel()

    async def until(self, reached: Callable[[], bool]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not reached():
                await anyio.sleep(0.005)

    async def over(self, rolling: Rolling) -> Roll:
        await self.until(lambda: rolling.last is not None and rolling.last.state is not RollState.RUNNING)
        assert rolling.last is not None
        return rolling.last

    async def first_under_way(self, rolling: Rolling, kind: RollKind = RollKind.RESTART) -> None:
        """anna has asked for a and b; a is ended and does not get ahead."""
        self.holds = {"a"}
        await rolling.begin(kind, ["a", "b"], "anna", 30.0)
        await self.until(lambda: self.now["a"].attempt == 2)

    async def rolled(self, kind: RollKind, *names: str) -> Roll:
        """A rolling that anna has asked for, from its begin to its end."""
        async with self.rolling() as rolling:
            await rolling.begin(kind, names, "anna", 30.0)
            return await self.over(rolling)


def states(roll: Roll) -> list[str]:
    return [f"{one.name} {one.state}{one.reason and f': {one.reason}'}" for one in roll.members]


async def test_one_after_another_each_with_its_grace(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b", "c")
    servers.becomes("b", "stopped", goal="down")
    roll = await servers.rolled(RollKind.RESTART, "c", "b", "a")
    assert servers.asked == ["c: RestartRequested 30", "a: RestartRequested 30"]
    assert states(roll) == ["c done", "b skipped: it is not wanted up", "a done"]
    assert (roll.state, summary(roll)) == (RollState.DONE, "rolling restart done: 2 of 3 done, skipped b")
    assert servers.told == [
        *(("", "running"), ("c", "under-way"), ("c", "done"), ("b", "skipped"), ("a", "under-way"), ("a", "done")),
        ("", "done"),
    ]


async def test_the_next_one_waits_until_the_routers_have_it_again(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    async with servers.rolling(join_limit_s=LIMIT_S) as rolling:
        await servers.first_under_way(rolling)
        servers.absent["a"] = "router front: joining"
        servers.becomes("a", "running")
        await anyio.sleep(0.05)  # for what must not happen there is no event to wait for
        assert len(servers.asked) == 1
        servers.absent.clear()
        servers.hub.publish()
        assert (await servers.over(rolling)).state is RollState.DONE


async def test_a_healthy_server_that_no_router_takes_is_a_failure(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    async with servers.rolling() as rolling:
        await servers.first_under_way(rolling)
        servers.absent["a"] = "router front: joining"
        servers.becomes("a", "running")
        roll = await servers.over(rolling)
    reason = "it is healthy, but not every router has taken it within 0.2 s: router front: joining"
    assert states(roll) == [f"a failed: {reason}", "b untouched"]
    assert (roll.state, roll.note) == (RollState.FAILED, f"a: {reason}")


async def test_a_serving_server_is_left_alone_when_its_router_cannot_be_told(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    servers.absent["a"] = "router front: unreachable, nobody listens"
    roll = await servers.rolled(RollKind.RESTART, "a", "b")
    assert servers.asked == []
    assert states(roll)[0] == "a failed: router front: unreachable, nobody listens; it was left as it is"


async def test_it_stops_at_the_first_failure(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    servers.ends_in["a"] = "backoff"
    roll = await servers.rolled(RollKind.RESTART, "a", "b")
    assert states(roll) == ["a failed: its start failed: as told", "b untouched"]
    assert servers.asked == ["a: RestartRequested 30"]


async def test_somebody_who_stops_it_ends_it(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    async with servers.rolling() as rolling:
        await servers.first_under_way(rolling)
        servers.becomes("a", "stopping", goal="down")
        assert states(await servers.over(rolling)) == ["a failed: somebody wants it down", "b untouched"]


async def test_an_update_that_restarts_the_one_under_way_wants_it_up(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    async with servers.rolling() as rolling:
        await servers.first_under_way(rolling)
        servers.returning = ("a",)
        servers.becomes("a", "stopping", goal="down")
        await anyio.sleep(0.05)  # for what must not happen there is no event to wait for
        assert rolling.last is not None
        assert states(rolling.last) == ["a under-way", "b waiting"]
        servers.becomes("a", "running", 3)
        servers.returning = ()
        servers.hub.publish()
        assert states(await servers.over(rolling)) == ["a done", "b done"]


async def test_whom_an_update_restarts_when_its_turn_comes_is_neither_skipped_nor_disturbed(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a")
    servers.returning = ("a",)
    servers.becomes("a", "stopping", goal="down")
    async with servers.rolling() as rolling:
        await rolling.begin(RollKind.RESTART, ["a"], "anna", 30.0)
        await anyio.sleep(0.05)  # as above
        assert servers.asked == []
        servers.becomes("a", "running", 2)
        servers.returning = ()
        servers.hub.publish()
        assert states(await servers.over(rolling)) == ["a done"]
    assert servers.asked == ["a: RestartRequested 30"]


async def test_a_group_that_lives_together_restarts_once(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b", "c")
    servers.mates = {"a": ("b",), "b": ("a",)}
    roll = await servers.rolled(RollKind.RESTART, "a", "b", "c")
    assert states(roll) == ["a done", "b done: it has restarted together with a", "c done"]
    assert servers.asked == ["a: RestartRequested 30", "c: RestartRequested 30"]


async def test_one_at_a_time_and_cancelled_after_the_one_under_way(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    async with servers.rolling() as rolling:
        assert await rolling.cancel("anna") is None
        await servers.first_under_way(rolling)
        with pytest.raises(
            ChangeRefusedError, match="cannot begin: a rolling restart running: 0 of 2 done, a under way"
        ):
            await rolling.begin(RollKind.RESTART, ["b"], "ben", 30.0)
        assert await rolling.cancel("ben") == ""
        servers.becomes("a", "running")
        roll = await servers.over(rolling)
        assert (roll.state, roll.note, states(roll)) == (
            RollState.CANCELLED,
            "cancelled by ben",
            ["a done", "b untouched"],
        )
        await rolling.begin(RollKind.RESTART, ["b"], "ben", 30.0)
        assert (await servers.over(rolling)).state is RollState.DONE


class Blocked(Servers):
    """Somebody else has the devices of whoever has ended."""

    def restart(self, name: str) -> None:
        self.becomes(name, "reclaiming")


async def test_a_start_that_waits_is_told_until_it_waits_no_more(tmp_path: Path) -> None:
    servers = Blocked(tmp_path, "a")
    async with servers.rolling() as rolling:
        await rolling.begin(RollKind.RESTART, ["a"], "anna", 30.0)
        await servers.until(lambda: rolling.last is not None and rolling.last.members[0].waits == "waits: as told")
        assert rolling.last is not None
        assert summary(rolling.last).endswith("a under way, its start waits: as told")
        servers.becomes("a", "starting", attempt=2)
        await servers.until(lambda: rolling.last is not None and not rolling.last.members[0].waits)
        servers.becomes("a", "running")
        assert states(await servers.over(rolling)) == ["a done"]
    assert servers.told == [("", "running"), *([("a", "under-way")] * 3), ("a", "done"), ("", "done")]


@pytest.mark.parametrize("kind", RollKind)
async def test_a_start_that_waits_is_left_to_itself_when_it_is_cancelled(tmp_path: Path, kind: RollKind) -> None:
    servers = Blocked(tmp_path, "a", "b")
    async with servers.rolling() as rolling:
        await rolling.begin(kind, ["a", "b"], "anna", 30.0)
        await servers.until(lambda: rolling.last is not None and bool(rolling.last.members[0].waits))
        with anyio.fail_after(LIMIT_S):
            assert await rolling.cancel("ben") == ""
        roll = await servers.over(rolling)
    assert (roll.state, roll.note) == (RollState.CANCELLED, "cancelled by ben")
    assert states(roll) == ["a left-waiting: its start waits: as told", "b untouched"]
    assert len(servers.asked) == 1, "neither its old configuration nor another server"


@pytest.mark.parametrize("kind", RollKind)
async def test_who_waits_for_a_router_is_left_alone_when_it_is_cancelled(tmp_path: Path, kind: RollKind) -> None:
    servers = Servers(tmp_path, "a", "b")
    servers.absent["a"] = "router front: unreachable, nobody listens"
    async with servers.rolling(join_limit_s=3600.0) as rolling:
        await rolling.begin(kind, ["a", "b"], "anna", 30.0)
        await rolling.cancel("ben")
        assert states(await servers.over(rolling)) == ["a untouched", "b untouched"]
    assert servers.asked == []


async def test_nobody_is_done_at_once(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    assert (await servers.rolled(RollKind.UPDATE)).state is RollState.DONE


# --- updates ---------------------------------------------------------------------------------------------------------


async def test_an_update_that_fails_gets_the_old_configuration_back(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    servers.ends_in["a"] = "fatal"
    roll = await servers.rolled(RollKind.UPDATE, "a", "b")
    assert servers.asked == ["a: new configuration", "a: old configuration"]
    assert states(roll) == ["a rolled-back: fatal: as told", "b untouched"]
    assert roll.note == "a: fatal: as told; it runs with its old configuration again"


async def test_mates_that_were_changed_by_the_same_restart_go_back_with_it(tmp_path: Path) -> None:
    """Else a pair would run with half of a configuration that nobody has ever written."""
    servers = Servers(tmp_path, "a", "b", "c")
    servers.mates = {"a": ("b", "c")}
    servers.changed_along = ("c",)
    servers.ends_in = {"a": "fatal"}
    await servers.rolled(RollKind.UPDATE, "a")
    assert servers.asked == ["a: new configuration", "a: old configuration", "c: old configuration"]


async def test_a_server_that_did_not_serve_before_is_not_put_back(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a")
    servers.becomes("a", "backoff")
    servers.ends_in["a"] = "fatal"
    assert states(await servers.rolled(RollKind.UPDATE, "a")) == ["a failed: fatal: as told"]
    assert servers.asked == ["a: new configuration"]


async def test_a_start_that_failed_before_its_update_is_none_of_the_new_configuration(tmp_path: Path) -> None:
    """It waited for its turn to be stopped, and was started by itself meanwhile."""

    class Late(Servers):
        def restart(self, name: str) -> None:
            failure = IncidentView(2, 0.0, 1.0, "cannot be spawned", "launch", "launch")
            self.now[name] = snapshot(name, "starting", attempt=3, incidents=(failure,))
            self.hub.publish()

    servers = Late(tmp_path, "a")
    servers.becomes("a", "reclaiming", attempt=1)
    async with servers.rolling() as rolling:
        await rolling.begin(RollKind.UPDATE, ["a"], "anna", 30.0)
        await servers.until(lambda: servers.now["a"].attempt == 3)
        servers.becomes("a", "running")
        assert states(await servers.over(rolling)) == ["a done"]


async def test_a_start_that_fails_before_it_is_taken_out_is_no_failure_of_its_restart(tmp_path: Path) -> None:
    """It is in backoff, and starts by itself while the disk is waited for."""

    class Slow(StateWriter):
        async def made(self, change: Change, limit_s: float = 1.0) -> None:
            if servers.now["a"].attempt == 1 and ("a", "under-way") in servers.told:
                failure = IncidentView(2, 0.0, 1.0, "cannot be spawned", "launch", "launch")
                servers.now["a"] = snapshot("a", "backoff", attempt=2, incidents=(failure,))

    class Remembering(Servers):
        def becomes(self, name: str, lifecycle: str, attempt: int | None = None, goal: str = "up") -> None:
            incidents = self.now[name].incidents
            super().becomes(name, lifecycle, attempt, goal)
            self.now[name] = replace(self.now[name], incidents=incidents)

    servers = Remembering(tmp_path, "a")
    servers.becomes("a", "backoff")
    async with servers.rolling(writer=Slow()) as rolling:
        await rolling.begin(RollKind.RESTART, ["a"], "anna", 30.0)
        assert states(await servers.over(rolling)) == ["a done"]
    assert servers.now["a"].attempt == 3


async def test_the_old_configuration_may_fail_as_well(tmp_path: Path) -> None:
    class Cursed(Servers):
        def restart(self, name: str) -> None:
            self.ends_in[name] = "fatal"
            super().restart(name)

    servers = Cursed(tmp_path, "a")
    roll = await servers.rolled(RollKind.UPDATE, "a")
    assert states(roll) == ["a failed: fatal: as told; and with its old configuration: fatal: as told"]


async def test_what_costs_no_restart_and_what_cannot_be_changed(tmp_path: Path) -> None:
    """Who serves on is never told as one that leaves and starts again, and needs no router that can be told."""

    class Changing(Servers):
        def ending(self, name: str) -> ServerChange | None:
            return {"b": ServerChange("b", "disappeared"), "c": ServerChange("c", "changed")}.get(name)

        async def roll(self, name: str, by: str, grace_s: float) -> Applied:
            return {"a": Applied("a", "changed"), "b": Applied("b", "removed")}.get(
                name, Applied(name, "failed", "it cannot be killed")
            )

    servers = Changing(tmp_path, "a", "b", "c", "d")
    servers.absent["a"] = "router front: unreachable, nobody listens"
    roll = await servers.rolled(RollKind.UPDATE, "a", "b", "c", "d")
    assert states(roll) == ["a done: changed", "b done: removed", "c failed: it cannot be killed", "d untouched"]
    assert servers.told[1:-1] == [
        *(("a", "done"), ("b", "under-way"), ("b", "done"), ("c", "under-way"), ("c", "failed")),
    ]


# --- across the daemon's death -----------------------------------------------------------------------------------------


async def begun(servers: Servers, kind: RollKind) -> None:
    """A rolling whose first server is under way when the daemon dies."""
    async with servers.rolling() as rolling:
        await servers.first_under_way(rolling, kind)
    servers.holds.clear()


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    await begun(servers, RollKind.RESTART)
    async with servers.rolling() as rolling:
        await servers.until(lambda: rolling.last is not None)
        servers.becomes("a", "running")
        assert states(await servers.over(rolling)) == ["a done", "b done"]
    assert servers.asked == ["a: RestartRequested 30", "b: RestartRequested 30"]


async def test_a_request_that_was_lost_with_the_daemon_is_made_again(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    await begun(servers, RollKind.RESTART)
    servers.becomes("a", "running", attempt=1)
    async with servers.rolling() as rolling:
        assert states(await servers.over(rolling)) == ["a done", "b done"]
    assert servers.asked == ["a: RestartRequested 30"] * 2 + ["b: RestartRequested 30"]


async def test_an_attempt_that_was_lost_before_its_spawn_is_no_failure(tmp_path: Path) -> None:
    """The daemon died between the decision and the spawn: the next one starts it, and goes on."""
    servers = Servers(tmp_path, "a", "b")
    await begun(servers, RollKind.RESTART)
    servers.becomes("a", "reclaiming", attempt=2)
    async with servers.rolling() as rolling:
        servers.becomes("a", "starting", attempt=3)
        servers.becomes("a", "running")
        assert states(await servers.over(rolling)) == ["a done", "b done"]
    assert servers.asked == ["a: RestartRequested 30", "b: RestartRequested 30"]


async def test_a_cancel_holds_for_the_next_daemon(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    async with servers.rolling() as rolling:
        await servers.first_under_way(rolling)
        await rolling.cancel("ben")
    async with servers.rolling() as rolling:
        servers.becomes("a", "running")
        roll = await servers.over(rolling)
    assert (roll.note, states(roll)) == ("cancelled by ben", ["a done", "b untouched"])


async def test_what_is_answered_the_next_daemon_knows(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    servers.holds = {"a"}
    writer = StateWriter(threads=1)
    async with servers.rolling(writer=writer) as rolling:
        roll, problem = await rolling.begin(RollKind.RESTART, ["a", "b"], "anna", 30.0)
        kept = msgspec.json.decode((tmp_path / "rolling.json").read_bytes(), type=Roll)
        assert (problem, kept.begun, [one.name for one in kept.members]) == ("", roll.begun, ["a", "b"])
        assert await rolling.cancel("ben") == ""
        assert msgspec.json.decode((tmp_path / "rolling.json").read_bytes(), type=Roll).cancelled_by == "ben"
    await writer.close()


async def test_a_disk_that_hangs_is_said_in_the_answer_and_costs_the_memory_alone(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    os.mkfifo(fifo := tmp_path / ".rolling.json.new")  # whoever writes it waits for a reader
    writer = StateWriter(threads=1)
    unwritten = f"cannot write {tmp_path}/rolling.json: the disk has not answered within 1 s; it ends with this daemon"
    try:
        async with servers.rolling(writer=writer) as rolling:
            _, problem = await rolling.begin(RollKind.RESTART, ["a", "b"], "anna", 30.0)
            assert problem == unwritten
            assert states(await servers.over(rolling)) == ["a done", "b done"]
            servers.holds = {"a"}
            await rolling.begin(RollKind.RESTART, ["a", "b"], "anna", 30.0)
            assert await rolling.cancel("ben") == unwritten
    finally:
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        await writer.close()
        os.close(reader)


@pytest.mark.parametrize(
    ("kind", "boot", "note"),
    [
        (RollKind.UPDATE, "boot", "the daemon ended meanwhile; the file as it is now is in force"),
        (RollKind.RESTART, "another", "the host was restarted meanwhile"),
    ],
)
async def test_what_cannot_go_on_is_told_as_abandoned(tmp_path: Path, kind: RollKind, boot: str, note: str) -> None:
    servers = Servers(tmp_path, "a", "b")
    await begun(servers, kind)
    async with servers.rolling(boot) as rolling:
        roll = await servers.over(rolling)
    assert (roll.state, roll.note) == (RollState.ABANDONED, note)
    assert states(roll) == ["a left-under-way", "b untouched"]


async def test_an_end_of_the_daemon_abandons_it(tmp_path: Path) -> None:
    servers = Servers(tmp_path, "a", "b")
    async with servers.rolling() as rolling:
        await servers.first_under_way(rolling)
        rolling.abandon("the daemon was asked to end")
        servers.becomes("a", "stopping", goal="down")
        await anyio.sleep(0.05)
    async with servers.rolling() as rolling:
        roll = await servers.over(rolling)
    assert (roll.state, roll.note) == (RollState.ABANDONED, "the daemon was asked to end")


async def test_a_broken_record_and_a_full_disk_cost_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "rolling.json").write_text("{")
    servers = Servers(tmp_path, "a")
    async with servers.rolling() as rolling:
        await servers.until((tmp_path / "rolling.broken").exists)
        assert rolling.last is None
    lost = Servers(tmp_path / "rolling.broken", "a")  # a file is no directory
    assert (await lost.rolled(RollKind.RESTART, "a")).state is RollState.DONE
