"""Routers are kept as they are to be: after their restart, over their failures, and before a server ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from msgspec.structs import replace

from supervisor.config import Config, RouterConfig, RouterKind, ServerConfig
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
        servers = {name: ServerConfig(name) for name in ("a", "b")}
        self.routing = Routing(Config(servers=servers, routers=routers))

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
    class Stubborn(FakeGateway):
        def handle(self, request: bytes) -> bytes:
            return response("202 Accepted") if request.startswith(b"DELETE") else super().handle(request)

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
