"""The model gateway: both dialects told apart by asking, ids of any kind, and every way of not answering."""

import pytest

from supervisor.edge.router import Listed, Trouble, Worker
from tests.edge.gateway import FakeGateway, gateway, gateway_at, listening
from tests.edge.web import Serve, never, response, says

A = Worker("a", "http://127.0.0.1:30001")
B = Worker("b", "http://127.0.0.1:30002")
FOREIGN = "http://10.0.0.9:30000"
DIALECTS = [FakeGateway(older=True), FakeGateway(uuids=False), FakeGateway(uuids=True)]


def listed(*urls: str) -> Listed:
    return Listed(frozenset(urls), frozenset(urls))


@pytest.mark.parametrize("fake", DIALECTS, ids=["0.1", "0.2", "0.3"])
async def test_servers_join_and_leave_in_every_dialect(fake: FakeGateway) -> None:
    fake.workers[FOREIGN] = "6f3f1c2e-0000-4000-8000-000000000001"
    if fake.older or not fake.uuids:
        fake.workers[FOREIGN] = FOREIGN
    async with listening(fake) as url, gateway(url) as router:
        assert await router.listed() == listed(FOREIGN)
        assert await router.change([A, B], []) is None
        assert await router.listed() == listed(FOREIGN, A.url, B.url)
        assert await router.change([], [A]) is None
        assert await router.listed() == listed(FOREIGN, B.url)


async def test_a_gateway_of_another_release_is_understood_at_the_next_look() -> None:
    fake = FakeGateway(older=True)
    async with listening(fake) as url, gateway(url) as router:
        await router.listed()
        fake.older = False
        assert await router.listed() == listed()
        assert await router.change([A], []) is None
    assert fake.bodies == [{"url": A.url}]


async def test_the_role_and_the_key_of_a_server_are_told_and_the_headers_sent() -> None:
    fake = FakeGateway()
    worker = Worker("p", A.url, role="prefill", key="K")
    async with listening(fake) as url, gateway(url, Authorization="Bearer T") as router:
        await router.listed()
        await router.change([worker], [])
    assert fake.bodies == [{"url": A.url, "worker_type": "prefill", "api_key": "K"}]
    assert all("authorization: bearer t" in head for head in fake.headers)


async def test_ranks_of_a_data_parallel_worker_are_one_server_and_leave_together() -> None:
    fake = FakeGateway()
    fake.workers = {f"{A.url}@0": "id-0", f"{A.url}@1": "id-1"}
    async with listening(fake) as url, gateway(url) as router:
        assert await router.listed() == listed(A.url)
        assert await router.change([], [A]) is None
        assert await router.listed() == listed()


async def test_who_is_listed_but_ill_is_not_ready() -> None:
    fake = FakeGateway()
    fake.workers, fake.ill = {A.url: "1", B.url: "2"}, {B.url}
    async with listening(fake) as url, gateway(url) as router:
        assert await router.listed() == Listed(frozenset({A.url, B.url}), frozenset({A.url}))


async def test_who_drains_there_gets_no_requests_any_more() -> None:
    fake = FakeGateway()
    fake.workers, fake.lingering = {A.url: "1", B.url: "2"}, True
    async with listening(fake) as url, gateway(url) as router:
        await router.listed()
        assert await router.change([], [A]) is None
        assert await router.listed() == listed(B.url)
        assert await router.change([], [A]) is None, "it is not asked again"
    assert fake.asked.count("DELETE /workers/1") == 1


async def test_whom_the_gateway_has_lost_already_has_left() -> None:
    fake = FakeGateway()
    fake.workers = {A.url: "1"}
    async with listening(fake) as url, gateway(url) as router:
        await router.listed()
        fake.workers.clear()
        assert await router.change([], [A, B]) is None


async def test_why_a_server_is_not_taken_is_told_when_it_is_offered_again() -> None:
    fake = FakeGateway()
    fake.refused[A.url] = "Step failed: detect_connection_mode"
    async with listening(fake) as url, gateway(url) as router:
        await router.listed()
        assert await router.change([A], []) is None
        assert await router.change([A], []) == Trouble("does not take it: Step failed: detect_connection_mode")


async def test_one_refused_change_does_not_keep_the_others_back() -> None:
    fake = FakeGateway()
    async with listening(fake) as url, gateway(url) as router:
        await router.listed()
        fake.answer = response("503 Later", b"not\x1b[31m now")
        assert await router.change([A, B], []) == Trouble("answered 503: not [31m now")
    assert fake.asked.count("POST /workers") == 2


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (says(response("500 Oops", b"panic")), "answered 500: panic"),
        (says(response("401 No")), "answered 401"),
        (says(response("302 Elsewhere")), "answered 302"),
        (says(response("200 OK", b"<html>")), "answered no workers: <html>"),
        (says(response("200 OK", b"[]")), "answered no workers: []"),
        (says(response("200 OK", b'{"workers": [{"id": 3}]}')), 'answered no workers: {"workers": [{"id": 3}]}'),
        (says(response("200 OK", b"")), "answered no workers: nothing"),
        (says(response("200 OK", b"[" * 100_000)), f"answered no workers: {'[' * 200}"),
        (says(response("404 Not Found")), "answered 404"),
        (says(b"no http\r\n\r\n"), "broke off: RemoteProtocolError"),
        (says(b""), "broke off: RemoteProtocolError"),
        (says(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n", b"x" * 5_000_000), "its answer is longer than 4194304 bytes"),
        (says(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{"), "broke off: RemoteProtocolError"),
    ],
)  # fmt: skip
async def test_whatever_it_answers_is_a_trouble_in_words(handler: Serve, said: str) -> None:
    async with gateway_at(handler) as router:
        assert await router.listed() == Trouble(said)


async def test_a_gateway_that_never_answers_is_left_in_time() -> None:
    async with gateway_at(never, limit_s=0.2) as router:
        assert await router.listed() == Trouble("no complete answer within 0.2 s")


async def test_nobody_there_is_a_trouble_that_tells_no_address() -> None:
    async with gateway("http://127.0.0.1:1/SECRET") as router:
        assert await router.listed() == Trouble("nobody listens")


async def test_a_header_that_cannot_be_sent_is_not_quoted() -> None:
    async with listening(FakeGateway()) as url, gateway(url, Authorization="a\nSECRET") as router:
        trouble = await router.listed()
    assert isinstance(trouble, Trouble)
    assert "SECRET" not in trouble.reason
