"""Log files over the socket: ranges, last lines, following, and files that are no log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from supervisor.edge.archive import LogArchive, live_path
from tests.api.fake import FakeControl, snapshot


@pytest.fixture
async def log(control: FakeControl, tmp_path: Path) -> Path:
    """The log of kimi with ten numbered lines."""
    path = tmp_path / "kimi.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(10)))
    await control.put(snapshot("kimi", "running", log_path=str(path)))
    return path


async def read(client: httpx.AsyncClient, query: str) -> bytes:
    answer = await client.get(f"/v1/servers/kimi/log?{query}")
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize(
    ("query", "content"),
    [
        ("offset=0&length=7", b"line 0\n"),
        ("offset=7&length=6", b"line 1"),
        ("offset=-7", b"line 9\n"),
        ("offset=-1000000", b"".join(b"line %d\n" % number for number in range(10))),
        ("offset=1000000", b""),
        ("offset=0&length=0", b""),
        ("lines=2", b"line 8\nline 9\n"),
        ("lines=0", b""),
        ("lines=1000", b"".join(b"line %d\n" % number for number in range(10))),
        ("", b"".join(b"line %d\n" % number for number in range(10))),
    ],
)
async def test_a_range_is_read(client: httpx.AsyncClient, log: Path, query: str, content: bytes) -> None:
    assert await read(client, query) == content


async def test_the_answer_says_where_it_begins(client: httpx.AsyncClient, log: Path) -> None:
    answer = await client.get("/v1/servers/kimi/log?offset=-7")
    assert (answer.headers["x-log-offset"], answer.headers["x-log-size"]) == ("63", "70")


async def test_without_a_query_the_last_1600_bytes_are_read(client: httpx.AsyncClient, log: Path) -> None:
    log.write_bytes(b"x" * 5000)
    assert len(await read(client, "")) == 1600


async def test_an_unfinished_last_line_counts_as_a_line(client: httpx.AsyncClient, log: Path) -> None:
    log.write_bytes(b"one\ntwo\nthr")
    assert await read(client, "lines=2") == b"two\nthr"


async def test_last_lines_are_found_across_blocks(client: httpx.AsyncClient, log: Path) -> None:
    log.write_bytes(b"".join(b"%d %b\n" % (number, b"x" * 30_000) for number in range(20)))
    content = await read(client, "lines=5")
    assert [line.split()[0] for line in content.splitlines()] == [b"15", b"16", b"17", b"18", b"19"]


async def test_the_search_for_lines_is_bounded(client: httpx.AsyncClient, log: Path) -> None:
    os.truncate(log, 50 * 2**20)
    async with client.stream("GET", "/v1/servers/kimi/log?lines=5") as answer:
        assert answer.headers["x-log-offset"] == str(46 * 2**20)


async def test_a_large_log_is_not_held_in_memory(client: httpx.AsyncClient, log: Path) -> None:
    os.truncate(log, 2**40)
    async with client.stream("GET", "/v1/servers/kimi/log?offset=0") as answer:
        pieces = answer.aiter_raw()
        assert len(await anext(pieces)) <= 2**17


async def test_bytes_are_passed_as_they_are(client: httpx.AsyncClient, log: Path) -> None:
    log.write_bytes(bytes(range(256)))
    assert await read(client, "offset=0") == bytes(range(256))


async def test_a_server_without_a_log_says_so(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/servers/draft/log")
    assert (answer.status_code, answer.json()) == (404, {"error": "draft has no log file yet"})


async def test_a_log_that_is_away_says_so(client: httpx.AsyncClient, log: Path) -> None:
    log.unlink()
    answer = await client.get("/v1/servers/kimi/log")
    assert (answer.status_code, answer.json()) == (404, {"error": f"cannot read {log}: No such file or directory"})


async def test_a_link_in_place_of_the_log_is_not_followed(client: httpx.AsyncClient, log: Path) -> None:
    log.unlink()
    log.symlink_to("/etc/passwd")
    answer = await client.get("/v1/servers/kimi/log")
    assert answer.status_code == 500
    assert answer.json() == {"error": f"cannot read {log}: Too many levels of symbolic links"}


async def test_a_pipe_in_place_of_the_log_hangs_nobody(client: httpx.AsyncClient, log: Path) -> None:
    log.unlink()
    os.mkfifo(log)
    answer = await client.get("/v1/servers/kimi/log")
    assert (answer.status_code, answer.json()) == (500, {"error": f"cannot read {log}: is not a regular file"})


async def test_the_daemons_own_log(client: httpx.AsyncClient, control: FakeControl, tmp_path: Path) -> None:
    assert (await client.get("/v1/log")).status_code == 404
    control.log_path = str(tmp_path / "daemon.log")
    (tmp_path / "daemon.log").write_text("hello\n")
    assert (await client.get("/v1/log")).content == b"hello\n"


async def test_a_log_is_cleared_under_its_writer(client: httpx.AsyncClient, log: Path) -> None:
    with log.open("ab", buffering=0) as writer:
        assert (await client.post("/v1/servers/kimi/log/clear")).json() == {"ok": True}
        writer.write(b"fresh\n")
    assert log.read_bytes() == b"fresh\n"


async def test_only_a_log_is_cleared(client: httpx.AsyncClient, log: Path) -> None:
    (log.parent / "precious").write_text("x")
    log.unlink()
    log.symlink_to(log.parent / "precious")
    assert (await client.post("/v1/servers/kimi/log/clear")).status_code == 500
    assert (log.parent / "precious").read_text() == "x"
    assert (await client.post("/v1/servers/draft/log/clear")).status_code == 200


@pytest.fixture
async def followed(client: httpx.AsyncClient, log: Path) -> AsyncIterator[AsyncIterator[str]]:
    async with (
        asyncio.timeout(20),
        client.stream("GET", "/v1/servers/kimi/log?lines=1&follow=true") as response,
    ):
        yield response.aiter_lines()


async def test_a_log_is_followed(followed: AsyncIterator[str], log: Path) -> None:
    assert await anext(followed) == "line 9"
    with log.open("a") as writer:
        writer.write("more\n")
    assert await anext(followed) == "more"


async def test_following_goes_on_in_the_next_attempts_file(
    followed: AsyncIterator[str], log: Path, control: FakeControl
) -> None:
    await anext(followed)
    (log.parent / "next.log").write_text("second attempt\n")
    await control.put(snapshot("kimi", "starting", log_path=str(log.parent / "next.log")))
    assert await anext(followed) == "second attempt"


async def test_following_survives_truncation_and_replacement(followed: AsyncIterator[str], log: Path) -> None:
    await anext(followed)
    log.write_text("cut\n")
    assert await anext(followed) == "cut"
    log.unlink()
    (log.parent / "new").write_text("replaced\n")
    (log.parent / "new").rename(log)
    assert await anext(followed) == "replaced"


async def test_what_is_archived_reads_as_if_it_were_not(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path
) -> None:
    """The beginning of the file is a hole; nobody is shown its zeros."""
    text = b"".join(b"line %06d\n" % number for number in range(50_000))
    path = live_path(tmp_path, 3)
    path.write_bytes(text)
    await control.put(snapshot("kimi", "running", log_path=str(path)))
    archived = LogArchive(tmp_path, 3).archive(len(text) - 1000)

    assert archived is not None
    assert path.read_bytes()[:4096] == bytes(4096)
    assert await read(client, f"offset=0&length={len(text)}") == text
    assert await read(client, f"offset={archived.end - 12}&length=24") == text[archived.end - 12 : archived.end + 12]
    async with client.stream("GET", "/v1/servers/kimi/log?offset=0&follow=true") as answer:
        seen = b""
        async for piece in answer.aiter_bytes():
            seen += piece
            if len(seen) >= len(text):
                break
    assert seen == text
