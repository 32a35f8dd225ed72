"""The nginx upstream: written whole, reloaded when it has changed and only then, put back when nginx refuses."""

import os
from pathlib import Path

import anyio
import pytest

from supervisor.edge.router import Listed, Reloaded, Trouble, UpstreamFile, Worker

A = Worker("a", "http://127.0.0.1:30001")
B = Worker("b", "http://[::1]:30002")


class Nginx:
    """Counts reloads; `problem` is what it says of the next ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self.certain = True
        self.has: list[str] = []  # the file at each reload

    async def reload(self) -> Reloaded:
        self.has.append(self.path.read_text())
        return Reloaded(self.problem, self.certain)


@pytest.fixture
def nginx(tmp_path: Path) -> Nginx:
    return Nginx(tmp_path / "kimi.conf")


def upstream(nginx: Nginx) -> UpstreamFile:
    return UpstreamFile(str(nginx.path), "kimi", nginx.reload)


def listed(*urls: str) -> Listed:
    return Listed(frozenset(urls), frozenset(urls))


def owed(*urls: str) -> Listed:
    """The file has them; what nginx has, nobody knows."""
    return Listed(frozenset(urls), frozenset(), owed=True)


async def test_the_file_names_those_who_joined(nginx: Nginx) -> None:
    router = upstream(nginx)
    assert await router.listed() == listed()
    assert await router.change([A, B], []) is None
    assert await router.listed() == listed(A.url, B.url)
    text = (
        "# Written by sglang-supervisor: changes are lost.\n"
        "upstream kimi {\n"
        "    server 127.0.0.1:30001;  # http://127.0.0.1:30001\n"
        "    server [::1]:30002;  # http://[::1]:30002\n"
        "}\n"
    )
    assert nginx.has == [text]
    assert [path.name for path in nginx.path.parent.iterdir()] == ["kimi.conf"]


async def test_nothing_changed_is_no_reload(nginx: Nginx) -> None:
    router = upstream(nginx)
    await router.change([A], [])
    stamp = nginx.path.stat().st_mtime_ns
    assert await router.change([A], [B]) is None
    assert (len(nginx.has), nginx.path.stat().st_mtime_ns) == (1, stamp)


async def test_former_workers_get_time_to_hear_of_who_leaves(nginx: Nginx) -> None:
    """A reload has ended before they have: who was asked to stop at once would still be sent requests."""
    router = UpstreamFile(str(nginx.path), "kimi", nginx.reload, settle_s=3600)
    with anyio.fail_after(20):
        assert await router.change([A, B], []) is None
    with anyio.move_on_after(0.05) as scope:
        await router.change([], [B])
    assert scope.cancelled_caught
    assert await router.listed() == listed(A.url), "no reload is owed"


async def test_without_anybody_there_is_one_who_is_down(nginx: Nginx) -> None:
    """nginx refuses an upstream without servers, and with it everything else that it serves."""
    router = upstream(nginx)
    await router.change([A], [])
    assert await router.change([], [A]) is None
    assert "    server 127.0.0.1:9 down;" in nginx.path.read_text()
    assert await router.listed() == listed()


async def test_what_nginx_refuses_is_put_back_and_tried_again(nginx: Nginx) -> None:
    router = upstream(nginx)
    await router.change([A], [])
    nginx.problem = "nginx: [emerg] host not found"
    trouble = await router.change([B], [A])
    assert trouble == Trouble("nginx did not take the change: nginx: [emerg] host not found")
    assert await router.listed() == listed(A.url)
    nginx.problem = ""
    assert await router.change([B], [A]) is None
    assert await router.listed() == listed(B.url)


async def test_a_first_file_that_is_refused_goes_away_again(nginx: Nginx) -> None:
    nginx.problem = "no"
    assert await upstream(nginx).change([A], []) is not None
    assert not nginx.path.exists()


async def test_a_broken_off_reload_leaves_what_nginx_has(nginx: Nginx) -> None:
    async def hangs() -> Reloaded:
        await anyio.sleep_forever()
        return Reloaded()

    router = UpstreamFile(str(nginx.path), "kimi", hangs)
    with anyio.move_on_after(0.05):
        await router.change([A], [])
    assert not nginx.path.exists()


async def test_a_folder_that_is_not_there_and_a_file_that_is_no_text(tmp_path: Path) -> None:
    async def fine() -> Reloaded:
        return Reloaded()

    nowhere = UpstreamFile(str(tmp_path / "none" / "x.conf"), "kimi", fine)
    trouble = await nowhere.change([A], [])
    assert trouble == Trouble(f"cannot write {tmp_path}/none/x.conf: No such file or directory")
    assert await nowhere.listed() == listed()  # nothing was written: nothing is owed
    (tmp_path / "y.conf").write_bytes(b"\xff\xfe")
    assert isinstance(await UpstreamFile(str(tmp_path / "y.conf"), "kimi", fine).listed(), Trouble)


async def test_a_disk_that_hangs_is_trouble_and_a_reload_is_owed_when_it_is_back(nginx: Nginx) -> None:
    await upstream(nginx).change([A], [])
    os.mkfifo(new := nginx.path.parent / f".{nginx.path.name}.new")  # whoever writes it waits for a reader
    router = UpstreamFile(str(nginx.path), "kimi", nginx.reload, limit_s=2.0)
    with anyio.fail_after(20):
        assert await router.change([B], []) == Trouble(
            f"cannot write {nginx.path}: its disk has not answered within 2 s"
        )
        for _ in range(3):  # at once, and no thread more
            trouble = await router.listed()
            assert isinstance(trouble, Trouble)
            assert trouble.reason.startswith(f"cannot read {nginx.path}: its disk has not answered for ")
        reader = os.open(new, os.O_RDONLY | os.O_NONBLOCK)
        while isinstance(await router.listed(), Trouble):
            await anyio.sleep(0.01)
        os.close(reader)
        new.unlink()
        assert await router.listed() == owed(A.url)
        assert await router.change([B], []) is None
        assert await router.listed() == listed(A.url, B.url)
    assert len(nginx.has) == 2


async def test_a_file_that_is_there_at_the_start_is_read_by_nginx_once(nginx: Nginx) -> None:
    """Whoever wrote it may have died before nginx had read it."""
    await upstream(nginx).change([A], [])
    router = upstream(nginx)
    assert await router.listed() == owed(A.url)
    for _ in range(2):
        assert await router.change([], []) is None
        assert await router.listed() == listed(A.url)
    assert len(nginx.has) == 2


async def test_without_a_file_and_without_servers_nothing_is_owed(nginx: Nginx) -> None:
    assert await upstream(nginx).listed() == listed()


async def test_what_is_owed_stays_so_until_nginx_takes_it(nginx: Nginx) -> None:
    await upstream(nginx).change([A], [])
    router, nginx.problem = upstream(nginx), "no"
    for _ in range(2):
        assert await router.change([], []) == Trouble("nginx did not take the change: no")
        assert await router.listed() == owed(A.url)
    nginx.problem = ""
    assert await router.change([], [A]) is None
    assert await router.listed() == listed()


async def test_after_a_reload_that_was_ended_nobody_knows_whom_nginx_has(nginx: Nginx) -> None:
    router = upstream(nginx)
    await router.change([A], [])
    nginx.problem, nginx.certain = "it took longer than 30 s", False
    assert await router.change([B], [A]) is not None
    assert await router.listed() == owed(A.url)
    nginx.problem = ""
    assert await router.change([], []) is None
    assert await router.listed() == listed(A.url)
    assert len(nginx.has) == 3


async def test_a_file_that_cannot_be_put_back_is_owed(nginx: Nginx) -> None:
    router = upstream(nginx)
    await router.change([A], [])

    async def refuses_and_nothing_can_be_written() -> Reloaded:
        (nginx.path.parent / f".{nginx.path.name}.new").mkdir()
        return Reloaded("no")

    stuck = UpstreamFile(str(nginx.path), "kimi", refuses_and_nothing_can_be_written)
    stuck_first = await stuck.listed()
    assert stuck_first.owed  # type: ignore[union-attr]
    assert await stuck.change([], [A]) == Trouble("nginx did not take the change: no")
    assert await stuck.listed() == owed()
