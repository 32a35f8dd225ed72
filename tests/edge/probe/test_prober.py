"""Every answer, and every way of not answering, is an outcome within the time allowed; nothing is ever raised."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

import anyio
import anyio.abc
import pytest

from supervisor.actions import Probe
from supervisor.edge.probe import BODY_LIMIT_BYTES, Prober, identity
from supervisor.events import Listener, Probed, ProbeOutcome
from tests.edge import web
from tests.edge.web import Serve, says

FIELDS = ("model_path", "served_model_name")


def answer(status: str, body: bytes = b"", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


@asynccontextmanager
async def serving(handler: Serve) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Yields the port instead of the address."""
    async with web.serving(handler) as (where, asked):
        yield int(where.rpartition(":")[2]), asked


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    async with Prober() as made:
        yield made


async def ask(prober: Prober, port: int, timeout_s: float = 10.0, **more: object) -> Probed:
    identify = bool(more.get("identity_path"))
    return await prober.probe(Probe(3, timeout_s, identify), "127.0.0.1", port, "/health", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("response", "outcome", "status"),
    [
        (answer("200 OK"), ProbeOutcome.OK, 200),
        (answer("200 OK", b"x" * 100), ProbeOutcome.OK, 200),
        (answer("503 Service Unavailable"), ProbeOutcome.UNAVAILABLE, 503),
        (answer("500 Internal Server Error", b"oops"), ProbeOutcome.ERROR, 500),
        (answer("404 Not Found"), ProbeOutcome.ERROR, 404),
        (answer("204 No Content"), ProbeOutcome.ERROR, 204),
        (answer("302 Found", headers="location: http://127.0.0.1:1/\r\n"), ProbeOutcome.ERROR, 302),
        (answer("401 Unauthorized", headers="www-authenticate: Bearer\r\n"), ProbeOutcome.ERROR, 401),
        (b"HTTP/1.0 200 OK\r\n\r\nold but whole", ProbeOutcome.OK, 200),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ProbeOutcome.ERROR, 0),
        (b"", ProbeOutcome.ERROR, 0),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", ProbeOutcome.ERROR, 0),
        (b"\x16\x03\x01\x02\x00\x01\x00", ProbeOutcome.ERROR, 0),
        (b"HTTP/1.1 200 OK\r\nbroken header\r\n\r\n", ProbeOutcome.ERROR, 0),
    ],
)
async def test_what_an_answer_means(prober: Prober, response: bytes, outcome: ProbeOutcome, status: int) -> None:
    async with serving(says(response)) as (port, _):
        probed = await ask(prober, port)
    assert (probed.outcome, probed.status, probed.attempt) == (outcome, status, 3)


async def test_the_request_is_plain_and_asks_to_close(prober: Prober) -> None:
    async with serving(says(answer("200 OK"))) as (port, asked):
        await ask(prober, port)
    head = asked[0].decode().lower()
    assert head.startswith("get /health http/1.1\r\n")
    assert f"host: 127.0.0.1:{port}\r\n" in head
    assert "connection: close\r\n" in head
    assert "authorization" not in head


async def test_every_probe_has_its_own_connection(prober: Prober) -> None:
    """A kept connection would reach the server it was made to, not the one that listens now."""
    async with serving(says(answer("200 OK"))) as (port, asked):
        for _ in range(3):
            assert (await ask(prober, port)).outcome is ProbeOutcome.OK
    assert len(asked) == 3


async def test_nobody_listening_is_refused(prober: Prober) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port meanwhile
        probed = await ask(prober, free.getsockname()[1])
    assert probed.outcome is ProbeOutcome.REFUSED


async def test_accepted_and_silent_is_a_timeout(prober: Prober) -> None:
    """A stopped engine: the kernel accepts for it, and nobody answers."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        probed = await ask(prober, deaf.getsockname()[1], timeout_s=0.1)
    assert probed.outcome is ProbeOutcome.TIMEOUT
    assert probed.detail == "no complete answer within 0.1 s"
    assert probed.latency_s >= 0.1


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n"], ids=["head", "body"])
async def test_a_byte_at_a_time_ends_at_the_deadline(prober: Prober, start: bytes) -> None:
    async def dribble(stream: anyio.abc.SocketStream) -> None:
        await stream.send(start or b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            await stream.send(b"y")
            await anyio.sleep(0.01)

    async with serving(dribble) as (port, _):
        began = time.monotonic()
        probed = await ask(prober, port, timeout_s=0.3)
    assert probed.outcome is ProbeOutcome.TIMEOUT
    assert time.monotonic() - began < 5


async def test_an_endless_body_is_not_read_to_its_end(prober: Prober) -> None:
    sent = 0

    async def flood(stream: anyio.abc.SocketStream) -> None:
        nonlocal sent
        await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await stream.send(b"z" * 65536)
            sent += 65536

    async with serving(flood) as (port, _):
        probed = await ask(prober, port)
    assert probed.outcome is ProbeOutcome.OK
    assert sent < 200 * BODY_LIMIT_BYTES


async def test_an_endless_header_is_refused(prober: Prober) -> None:
    async def flood(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await stream.send(b"h: " + b"z" * 1000 + b"\r\n")

    async with serving(flood) as (port, _):
        probed = await ask(prober, port)
    assert probed.outcome is ProbeOutcome.ERROR


async def test_the_excerpt_is_short_and_printable(prober: Prober) -> None:
    async with serving(says(answer("500 X", b"\x1b[31mred\x00\n" + b"w" * 5000))) as (port, _):
        probed = await ask(prober, port)
    assert len(probed.detail) <= 200
    assert probed.detail.isprintable()
    assert "red" in probed.detail


async def test_a_proxy_from_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Prober() as prober, serving(says(answer("200 OK"))) as (port, _):
        assert (await ask(prober, port)).outcome is ProbeOutcome.OK


async def test_a_server_that_listens_on_all_addresses_is_asked_on_loopback(prober: Prober) -> None:
    async with serving(says(answer("200 OK"))) as (port, asked):
        probed = await prober.probe(Probe(1, 10.0), "0.0.0.0", port, "/health")
    assert probed.outcome is ProbeOutcome.OK
    assert f"127.0.0.1:{port}".encode() in asked[0]


async def test_ipv6(prober: Prober) -> None:
    with socket.socket(socket.AF_INET6) as closed:
        try:
            closed.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 on loopback here")
        probed = await prober.probe(Probe(1, 10.0), "::", closed.getsockname()[1], "/health")
    assert probed.outcome is ProbeOutcome.REFUSED


@pytest.mark.parametrize("host", ["no such host", "a" * 300, "127.0.0.1 x", "\x00"])
async def test_an_impossible_host_is_an_error(prober: Prober, host: str) -> None:
    probed = await prober.probe(Probe(1, 10.0), host, 80, "/health")
    assert probed.outcome in (ProbeOutcome.ERROR, ProbeOutcome.TIMEOUT)


async def test_without_descriptors_the_probe_is_unknown_not_failed(prober: Prober) -> None:
    await ask(prober, 1)  # whatever is loaded lazily is loaded now
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        blockers: list[int] = []
        try:
            with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012 - whoever comes first
                while True:
                    blockers.append(os.open(os.devnull, os.O_RDONLY))
            probed = await ask(prober, deaf.getsockname()[1], timeout_s=1.0)
        finally:
            for fd in blockers:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert probed.outcome is ProbeOutcome.UNKNOWN


async def test_no_free_local_port_is_our_own_fault(prober: Prober) -> None:
    taken = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    with mock.patch.object(socket.socket, "connect", side_effect=taken):
        probed = await ask(prober, 1)
    assert probed.outcome is ProbeOutcome.UNKNOWN


async def test_the_listener_is_passed_through(prober: Prober) -> None:
    async with serving(says(answer("200 OK"))) as (port, _):
        probed = await ask(prober, port, listener=Listener.OURS)
    assert probed.listener is Listener.OURS


async def test_cancellation_is_not_swallowed(prober: Prober) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with anyio.move_on_after(0.05) as scope:
            await ask(prober, deaf.getsockname()[1], timeout_s=60)
    assert scope.cancelled_caught


async def test_probing_leaks_no_descriptor(prober: Prober) -> None:
    async with serving(says(answer("200 OK"))) as (port, _):
        await ask(prober, port)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await ask(prober, port)
            await ask(prober, 1)
        await anyio.wait_all_tasks_blocked()
        assert len(os.listdir("/proc/self/fd")) <= before


# --- who answers ---------------------------------------------------------------------------------------------------


async def identified(prober: Prober, second: bytes) -> Probed:
    async def handler(stream: anyio.abc.SocketStream) -> None:
        await stream.send(second if b"/model_info" in asked[-1] else answer("200 OK"))

    async with serving(handler) as (port, asked):
        return await ask(prober, port, identity_path="/model_info", identity_fields=FIELDS)


@pytest.mark.parametrize(
    ("second", "model"),
    [
        (answer("200 OK", b'{"model_path": "/models/kimi", "is_generation": true}'), "/models/kimi"),
        (answer("200 OK", b'{"served_model_name": "kimi"}'), "kimi"),
        (answer("200 OK", b'{"model_path": ""}'), ""),
        (answer("200 OK", b'{"model_path": 7}'), ""),
        (answer("200 OK", b"[]"), ""),
        (answer("200 OK", b"not json"), ""),
        (answer("200 OK", b"[" * 60000), ""),
        (answer("404 Not Found", b'{"model_path": "/models/kimi"}'), ""),
        (b"", ""),
    ],
)
async def test_the_identity_of_an_answer(prober: Prober, second: bytes, model: str) -> None:
    """No identity contradicts nothing: the outcome stays what the readiness path said."""
    probed = await identified(prober, second)
    assert (probed.outcome, probed.model) == (ProbeOutcome.OK, model)


async def test_nobody_is_asked_who_he_is_when_he_is_not_ready(prober: Prober) -> None:
    async with serving(says(answer("503 Service Unavailable"))) as (port, asked):
        assert (await ask(prober, port, identity_path="/model_info", identity_fields=FIELDS)).model == ""
    assert len(asked) == 1


@pytest.mark.parametrize("body", [b"\xff\xfe", b"null", b"1e999", b'{"model_path": null}'])
def test_bodies_without_an_identity(body: bytes) -> None:
    assert identity(body, FIELDS) == ""


def test_the_first_field_that_names_a_model_counts() -> None:
    body = b'{"a": "one", "b": "two", "c": 3}'
    assert identity(body, ("c", "b", "a")) == "two"
    assert identity(body, ()) == ""
