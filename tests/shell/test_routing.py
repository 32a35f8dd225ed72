"""Routers are kept as they are to be: after their restart, over their failures, and before a server ends."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from msgspec.structs import replace
from structlog.testing import capture_logs

from supervisor.api.control import Applied
from supervisor.config import Config, GroupConfig, RouterConfig, RouterKind, ServerConfig, differences
from supervisor.shell.hub import Hub
from supervisor.shell.router import Door
from supervisor.shell.routing import Routing
from supervisor.snapshot import FacetView, RouterView
from tests.edge.gateway import FakeGateway, listening
from tests.edge.web import response
from tests.shell.made import snapshot

LIMIT_S = 10.0


class Site:
    """Servers as a test says they are, with routers before them."""

    def __init__(self, directory: Path, **routers: RouterConfig) -> None:
        self.hub = Hub()
        self.doors: dict[str, Door] = {}
        self.told: list[tuple[str, str, str]] = []
        self.directory = directory
        self.file = Config(servers={name: ServerConfig(name) for name in ("a", "b")}, routers=routers)
        self.routing = Routing(self.file)

    def has(self, name: str, lifecycle: str = "running", readiness: str = "success") -> str:
        """Where the server is."""
        port = 30001 + ord(name) - ord("a")
        self.doors[name] = Door("", port, "", "", snapshot(name, lifecycle, readiness=FacetView(readiness, 0.0)))
        self.hub.publish()
        return f"http://127.0.0.1:{port}"

    def sight(self) -> Mapping[str, Door]:
        return self.doors

    def tell(self, server: str, before: RouterView, now: RouterView) -> None:
        self.told.append((server, before.state, now.state))
        self.hub.publish()

    async def update(self, **routers: RouterConfig) -> list[Applied]:
        """The file has these now."""
        before, self.file = self.file, replace(self.file, routers=routers)
        with anyio.fail_after(LIMIT_S):
            applied = await self.routing.change(self.file, differences(before, self.file).routers)
        self.hub.publish()
        return applied

    async def until(self, name: str, *states: str) -> None:
        """Until its routers see the server like this."""
        with anyio.fail_after(LIMIT_S):
            while tuple(view.state for view in self.routing.views(name)) != states:
                await anyio.sleep(0.01)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Routing]:
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            await self.routing.open(stack, self.sight, self.directory, {"PATH": "/usr/bin:/bin"}, self.tell)
            tasks.start_soon(self.routing.run, self.hub.changed)
            yield self.routing
            tasks.cancel_scope.cancel()


def gateway(url: str, **keys: object) -> RouterConfig:
    return replace(RouterConfig("front", url=url, period_s=0.2, timeout_s=2.0, leave_limit_s=5.0), **keys)


class Stubborn(FakeGateway):
    """Says that it will let go of a server, and goes on listing it."""

    def handle(self, request: bytes) -> bytes:
        return response("202 Accepted") if request.startswith(b"DELETE") else super().handle(request)


async def test_healthy_servers_join_and_those_that_end_leave(tmp_path: Path) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        a, b = site.has("a"), site.has("b", "starting", "unknown")
        async with site.running() as routing:
            await site.until("a", "joined")
            assert set(fake.workers) == {a}
            assert (routing.views("b"), routing.missing("b")) == ((RouterView("front", "out"),), "router front: out")
            site.has("b")
            await site.until("b", "joined")
            site.has("a", "draining")
            await site.until("a", "out")
            assert set(fake.workers) == {b}
    assert [one for one in site.told if one[0] == "a"][-1] == ("a", "joined", "out")


async def test_a_router_that_was_restarted_gets_its_servers_back_and_keeps_those_of_others(tmp_path: Path) -> None:
    fake = FakeGateway()
    foreign = "http://10.0.0.9:30000"
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        a = site.has("a")
        async with site.running():
            await site.until("a", "joined")
            fake.workers = {foreign: "6f3f1c2e-0000-4000-8000-000000000001"}
            with anyio.fail_after(LIMIT_S):
                while a not in fake.workers:
                    await anyio.sleep(0.01)
            site.has("a", "stopped", "unknown")
            await site.until("a", "out")
    assert set(fake.workers) == {foreign}


async def test_an_unreachable_router_is_told_of_and_tried_again(tmp_path: Path) -> None:
    fake = FakeGateway()
    fake.answer = response("500 Oops", b"panic")
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        site.has("a")
        async with site.running() as routing:
            await site.until("a", "unreachable")
            with anyio.fail_after(LIMIT_S):
                while "answered 500" not in routing.missing("a"):
                    await anyio.sleep(0.01)
            assert routing.missing("a") == "router front: unreachable, answered 500: panic"
            fake.answer = None
            await site.until("a", "joined")
            assert routing.missing("a") == ""


async def test_trouble_that_goes_on_is_logged_once_however_long_it_is_said_to_last(tmp_path: Path) -> None:
    class Slow(FakeGateway):
        def handle(self, request: bytes) -> bytes:
            self.asked.append("")
            return response("500 Oops", f"the disk has not answered for {len(self.asked)} s".encode())

    async with listening(fake := Slow()) as url:
        site = Site(tmp_path, front=gateway(url, period_s=0.05))
        site.has("a")
        with capture_logs() as lines:
            async with site.running():
                with anyio.fail_after(LIMIT_S):
                    while len(fake.asked) < 6:
                        await anyio.sleep(0.01)
    assert len([line for line in lines if line["event"] == "router" and line.get("problem")]) == 1


async def test_a_stop_waits_for_the_confirmation_of_every_router(tmp_path: Path) -> None:
    one, two = FakeGateway(), FakeGateway(older=True)
    async with listening(one) as first, listening(two) as second:
        site = Site(tmp_path, front=gateway(first), back=replace(gateway(second), name="back"))
        site.has("a")
        async with site.running() as routing:
            await site.until("a", "joined", "joined")
            site.has("a", "draining")
            with anyio.fail_after(LIMIT_S):
                assert await routing.leave("a", 5.0) == ""
            assert (one.workers, two.workers) == ({}, {})


async def test_a_router_that_does_not_answer_holds_a_stop_up_by_its_limit_only(tmp_path: Path) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url, leave_limit_s=0.3))
        site.has("a")
        async with site.running() as routing:
            await site.until("a", "joined")
            assert routing.limit_s("a") == 0.3
            fake.answer = response("503 Later")
            site.has("a", "draining")
            with anyio.fail_after(LIMIT_S):
                problem = await routing.leave("a", 60.0)
    assert problem == "router front did not let go within 0.3 s: answered 503"


async def test_a_router_that_keeps_a_server_is_not_believed(tmp_path: Path) -> None:
    async with listening(Stubborn()) as url:
        site = Site(tmp_path, front=gateway(url, leave_limit_s=0.3))
        site.has("a")
        async with site.running() as routing:
            await site.until("a", "joined")
            site.has("a", "draining")
            assert await routing.leave("a", 60.0) == "router front did not let go within 0.3 s: it still lists it"


async def test_a_server_is_only_in_the_routers_that_name_it(tmp_path: Path) -> None:
    one, two = FakeGateway(), FakeGateway()
    async with listening(one) as first, listening(two) as second:
        back = replace(gateway(second), name="back", servers=("b",))
        site = Site(tmp_path, front=gateway(first), back=back)
        a, b = site.has("a"), site.has("b")
        async with site.running() as routing:
            await site.until("a", "joined")
            await site.until("b", "joined", "joined")
            assert (set(one.workers), set(two.workers)) == ({a, b}, {b})
            assert (routing.limit_s("a"), Routing().limit_s("a")) == (5.0, 0.0)


async def test_what_an_earlier_daemon_had_registered_is_taken_out_when_nobody_has_it_any_more(tmp_path: Path) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        site.has("a")
        b = site.has("b")
        async with site.running():
            await site.until("a", "joined")
            await site.until("b", "joined")
        again = Site(tmp_path, front=gateway(url))
        a = again.has("a")
        async with again.running():
            with anyio.fail_after(LIMIT_S):
                while b in fake.workers:
                    await anyio.sleep(0.01)
    assert set(fake.workers) == {a}


async def test_a_server_that_nobody_has_probed_stays_where_it_is(tmp_path: Path) -> None:
    """A daemon that comes back knows nothing yet about servers that have served all the time."""
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        a = site.has("a", "running", "unknown")
        site.has("b", "running", "unknown")
        fake.workers = {a: "6f3f1c2e-0000-4000-8000-000000000001"}
        async with site.running():
            await site.until("a", "joined")
            await site.until("b", "out")
    assert set(fake.workers) == {a}


async def test_nginx_and_a_webhook_are_kept_by_the_same_rules(tmp_path: Path) -> None:
    inbox = FakeGateway()
    inbox.answer = response("204 No Content")
    async with listening(inbox) as url:
        file = tmp_path / "up.conf"
        site = Site(
            tmp_path,
            told=RouterConfig("told", RouterKind.WEBHOOK, url),
            file=RouterConfig("file", RouterKind.NGINX, file=str(file), reload=("touch", str(tmp_path / "reloaded"))),
        )
        a = site.has("a")
        async with site.running() as routing:
            await site.until("a", "joined", "joined")
            assert f"# {a}" in file.read_text()
            site.has("a", "draining")
            assert await routing.leave("a", 5.0) == ""
            assert f"# {a}" not in file.read_text()
    assert (tmp_path / "reloaded").exists()
    assert len(inbox.asked) == 2


async def test_a_reload_that_fails_is_told(tmp_path: Path) -> None:
    file = tmp_path / "up.conf"
    command = ("sh", "-c", "echo nginx: emerg; exit 1")
    site = Site(tmp_path, file=RouterConfig("file", RouterKind.NGINX, file=str(file), reload=command))
    site.has("a")
    async with site.running() as routing:
        with anyio.fail_after(LIMIT_S):
            while "emerg" not in routing.missing("a"):
                await anyio.sleep(0.01)
        assert routing.missing("a") == "router file: joining, nginx did not take the change: nginx: emerg"
    assert not file.exists()


async def test_a_stop_waits_until_nginx_has_read_what_a_daemon_before_us_wrote(tmp_path: Path) -> None:
    """It was killed within the reload: the file says that the server is out, and nginx may still send to it."""
    file, reloads, fails = tmp_path / "up.conf", tmp_path / "reloads", tmp_path / "fails"
    file.write_text("upstream up {\n    server 127.0.0.1:9 down;\n}\n")
    fails.touch()
    command = ("sh", "-c", f"echo again >> {reloads}; test ! -e {fails}")
    site = Site(tmp_path, file=RouterConfig("file", RouterKind.NGINX, file=str(file), upstream="up", reload=command))
    site.has("a", "draining")
    async with site.running() as routing:
        problem = await routing.leave("a", 0.5)
        assert problem.startswith("router file did not let go within 0.5 s: nginx did not take the change")
        await site.until("a", "leaving")
        fails.unlink()
        with anyio.fail_after(LIMIT_S):
            assert await routing.leave("a", LIMIT_S) == ""
        before = reloads.read_text()
        assert await routing.leave("a", LIMIT_S) == ""
    assert reloads.read_text() == before


async def test_a_broken_record_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "front.json").write_text("{")
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        site.has("a")
        async with site.running():
            await site.until("a", "joined")
    assert (tmp_path / "front.broken").exists()


# --- other tables while the daemon runs ------------------------------------------------------------------------------


async def test_a_router_that_comes_has_its_servers_at_once(tmp_path: Path) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path)
        a = site.has("a")
        async with site.running() as routing:
            assert (routing.views("a"), routing.limit_s("a"), routing.facts()) == ((), 0.0, ())
            assert await site.update(front=gateway(url, period_s=3600.0)) == [Applied("front", "added")]
            await site.until("a", "joined")
            assert routing.limit_s("a") == 5.0
            site.has("a", "draining")
            await site.until("a", "out")
    assert (a, fake.workers) == ("http://127.0.0.1:30001", {})


async def test_a_router_that_comes_and_does_not_answer_is_told_and_tried_again(tmp_path: Path) -> None:
    fake = FakeGateway()
    fake.answer = response("503 Later")
    async with listening(fake) as url:
        site = Site(tmp_path)
        site.has("a")
        async with site.running():
            assert await site.update(front=gateway(url)) == [Applied("front", "added", "answered 503")]
            fake.answer = None
            await site.until("a", "joined")


async def test_a_router_that_goes_lets_go_of_ours_alone(tmp_path: Path) -> None:
    fake = FakeGateway()
    foreign = "http://10.0.0.9:30000"
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        site.has("a")
        async with site.running() as routing:
            await site.until("a", "joined")
            fake.workers[foreign] = "6f3f1c2e-0000-4000-8000-000000000001"
            assert await site.update() == [Applied("front", "removed")]
            assert (set(fake.workers), routing.views("a"), routing.limit_s("a")) == ({foreign}, (), 0.0)
            assert not (tmp_path / "front.json").exists()
            asked = len(fake.asked)
            site.has("b")
            assert await routing.leave("a", 5.0) == ""
    assert len(fake.asked) == asked, "nobody speaks to it any more"
    assert site.told[-1] == ("a", "joined", "out")


async def test_a_router_that_goes_and_does_not_answer_is_given_its_time_and_remembered(tmp_path: Path) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url, leave_limit_s=0.3))
        a = site.has("a")
        async with site.running():
            await site.until("a", "joined")
            fake.answer = response("503 Later")
            said = "it did not let go within 0.3 s: answered 503"
            assert await site.update() == [Applied("front", "removed", said)]
            assert "30001" in (tmp_path / "front.json").read_text(), "who configures it again takes them out"
    assert set(fake.workers) == {a}


async def test_a_stop_does_not_wait_for_a_router_that_has_gone_meanwhile(tmp_path: Path) -> None:
    async with listening(Stubborn()) as url:
        site = Site(tmp_path, front=gateway(url, leave_limit_s=0.3))
        site.has("a")
        async with site.running() as routing, anyio.create_task_group() as tasks:
            await site.until("a", "joined")
            (keeper,) = routing.keepers.values()
            tasks.start_soon(keeper.let_go, "a")  # without a limit of its own
            (applied,) = await site.update()
    assert applied.problem == "it did not let go within 0.3 s: it still lists some"


async def test_a_router_that_moves_has_its_servers_there_before_they_leave_the_old_place(tmp_path: Path) -> None:
    old, new = FakeGateway(), FakeGateway()
    async with listening(old) as before, listening(new) as after:
        site = Site(tmp_path, front=gateway(before))
        a = site.has("a")
        async with site.running():
            await site.until("a", "joined")
            joined_before_it_left = False
            leave = old.handle

            def handle(request: bytes) -> bytes:
                nonlocal joined_before_it_left
                joined_before_it_left = joined_before_it_left or (request.startswith(b"DELETE") and a in new.workers)
                return leave(request)

            old.handle = handle  # type: ignore[method-assign]
            assert await site.update(front=gateway(after)) == [Applied("front", "changed")]
            await site.until("a", "joined")
    assert (old.workers, set(new.workers), joined_before_it_left) == ({}, {a}, True)


async def test_nobody_leaves_a_router_that_goes_while_the_one_that_comes_is_slow_to_answer(tmp_path: Path) -> None:
    old = FakeGateway()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        after = f"http://127.0.0.1:{mute.getsockname()[1]}"
        async with listening(old) as before:
            site = Site(tmp_path, front=gateway(before, period_s=0.05))
            site.has("a")
            async with site.running() as routing:
                await site.until("a", "joined")
                told_first: list[bool] = []
                leave = old.handle

                def handle(request: bytes) -> bytes:
                    if request.startswith(b"DELETE"):
                        told_first.append(routing.keepers["lb"].trouble != "")
                    return leave(request)

                old.handle = handle  # type: ignore[method-assign]
                await site.update(lb=replace(gateway(after, timeout_s=0.5), name="lb"))
    assert (old.workers, told_first) == ({}, [True])


async def test_a_router_of_another_name_keeps_its_servers_and_takes_out_who_was_registered_there(
    tmp_path: Path,
) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        a, b = site.has("a"), site.has("b")
        async with site.running() as routing:
            await site.until("a", "joined")
            await site.until("b", "joined")
            fake.asked.clear()
            assert routing.keeps("front", replace(site.file, routers={"lb": replace(gateway(url), name="lb")}))
            await site.update(lb=replace(gateway(url, servers=("a",)), name="lb"))
            with anyio.fail_after(LIMIT_S):
                while b in fake.workers:
                    await anyio.sleep(0.01)
            assert (set(fake.workers), list(routing.keepers)) == ({a}, ["lb"])
    assert sum(one.startswith("DELETE") for one in fake.asked) == 1


async def test_servers_headers_and_limits_of_a_table_change_in_place(tmp_path: Path) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path, front=gateway(url))
        a, b = site.has("a"), site.has("b")
        async with site.running() as routing:
            await site.until("b", "joined")
            changed = gateway(url, servers=("a",), headers={"X-Key": "new"}, leave_limit_s=7.0)
            assert await site.update(front=changed) == [Applied("front", "changed")]
            await site.until("b")
            assert (set(fake.workers), routing.limit_s("a"), routing.limit_s("b")) == ({a}, 7.0, 0.0)
            assert "x-key: new" in fake.headers[-1]
            assert b != a


async def test_other_groups_are_other_servers_of_a_router(tmp_path: Path) -> None:
    fake = FakeGateway()
    async with listening(fake) as url:
        site = Site(tmp_path)
        groups = {"pair": GroupConfig("pair", ("a",))}
        front = gateway(url, servers=("g:pair",))
        site.file = replace(site.file, groups=groups, routers={"front": front})
        site.routing = Routing(site.file)
        a, b = site.has("a"), site.has("b")
        async with site.running() as routing:
            await site.until("a", "joined")
            groups["pair"] = GroupConfig("pair", ("a", "b"))
            routing.regroup(site.file)
            site.hub.publish()
            await site.until("b", "joined")
            assert set(fake.workers) == {a, b}
            routing.regroup(replace(site.file, groups={}, routers={"front": gateway(url, servers=("a",))}))
            assert routing.limit_s("b") == 5.0, "the table that has other servers is not in force yet"


async def test_nginx_reads_another_upstream_and_a_receiver_hears_nothing_twice(tmp_path: Path) -> None:
    inbox = FakeGateway()
    inbox.answer = response("204 No Content")
    async with listening(inbox) as url:
        file, reloads = tmp_path / "up.conf", tmp_path / "reloads"
        lb = RouterConfig("lb", RouterKind.NGINX, file=str(file), reload=("sh", "-c", f"echo again >> {reloads}"))
        told = RouterConfig("told", RouterKind.WEBHOOK, url)
        site = Site(tmp_path, lb=lb, told=told)
        site.has("a")
        async with site.running():
            await site.until("a", "joined", "joined")
            before = reloads.read_text()
            await site.update(lb=replace(lb, leave_limit_s=3.0), told=replace(told, leave_limit_s=3.0))
            assert (reloads.read_text(), len(inbox.asked)) == (before, 1)
            await site.update(lb=replace(lb, upstream="other"), told=told)
            assert "upstream other {" in file.read_text()
            assert reloads.read_text() != before
            applied = await site.update()
            assert applied == [Applied("lb", "removed"), Applied("told", "removed")]
            assert "127.0.0.1:9 down" in file.read_text()
    assert len(inbox.asked) == 2, "one message more: it leaves"
