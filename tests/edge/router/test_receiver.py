"""A webhook's receiver: told once of everybody, of changes only afterwards, and again until it confirms."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from supervisor.edge.router import Listed, Receiver, Trouble, Worker, gateway_client
from tests.edge.gateway import FakeGateway, listening
from tests.edge.web import response

A = Worker("a", "http://127.0.0.1:30001", role="decode")
B = Worker("b", "http://127.0.0.1:30002")
YES, NO = response("204 No Content"), response("500 Oops", b"SECRET")


class Inbox(FakeGateway):
    """Keeps what is posted."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = YES
        self.posted: list[tuple[str, str]] = []
        self.last: dict[str, str] = {}

    def handle(self, request: bytes) -> bytes:
        self.last = json.loads(request.partition(b"\r\n\r\n")[2])
        self.posted.append((self.last["event"], self.last["server"]))
        return super().handle(request)


@asynccontextmanager
async def receiver(inbox: Inbox) -> AsyncIterator[Receiver]:
    async with listening(inbox) as url, gateway_client(url) as client:
        yield Receiver(client, "front", url, {"X-Token": "T"}, 5.0)


def listed(*urls: str) -> Listed:
    return Listed(frozenset(urls), frozenset(urls), complete=False)


async def test_a_new_receiver_is_told_of_everybody_once() -> None:
    inbox = Inbox()
    async with receiver(inbox) as router:
        assert await router.listed() == listed()
        for _ in range(2):
            assert await router.change([A], [B]) is None
        assert await router.listed() == listed(A.url)
    assert inbox.posted == [("leave", "b"), ("join", "a")]
    assert inbox.last == {"router": "front", "event": "join", "server": "a", "url": A.url, "role": "decode"}
    assert "x-token: t" in inbox.headers[-1]


async def test_what_was_not_confirmed_is_told_again_and_others_all_the_same() -> None:
    inbox = Inbox()
    inbox.answer = NO
    async with receiver(inbox) as router:
        assert await router.change([A, B], []) == Trouble("answered 500")
        assert await router.listed() == listed()
        inbox.answer = YES
        assert await router.change([A, B], []) is None
        assert await router.listed() == listed(A.url, B.url)
    assert inbox.posted == [("join", "a"), ("join", "b")] * 2


async def test_a_server_that_comes_back_is_told_anew() -> None:
    inbox = Inbox()
    async with receiver(inbox) as router:
        await router.change([A], [])
        await router.change([], [A])
        await router.change([A], [])
    assert inbox.posted == [("join", "a"), ("leave", "a"), ("join", "a")]


@pytest.mark.parametrize("answer", [NO, b""], ids=["refused", "lost"])
async def test_what_it_may_have_taken_without_saying_so_is_taken_back(answer: bytes) -> None:
    """It has got the message in both cases: only the answer is missing."""
    inbox = Inbox()
    async with receiver(inbox) as router:
        await router.change([], [A])
        inbox.answer = answer
        assert await router.change([A], []) is not None
        inbox.answer = YES
        assert await router.change([], [A]) is None
        assert inbox.posted == [("leave", "a"), ("join", "a"), ("leave", "a")]


@pytest.mark.parametrize("answer", [NO, b""], ids=["refused", "lost"])
async def test_a_server_that_may_have_left_without_an_answer_joins_anew(answer: bytes) -> None:
    inbox = Inbox()
    async with receiver(inbox) as router:
        await router.change([A], [])
        inbox.answer = answer
        assert await router.change([], [A]) is not None
        assert await router.listed() == listed()
        inbox.answer = YES
        assert await router.change([A], []) is None
        assert inbox.posted == [("join", "a"), ("leave", "a"), ("join", "a")]


async def test_a_call_that_is_broken_off_counts_as_told_and_not_confirmed() -> None:
    inbox = Inbox()
    async with receiver(inbox) as router:
        await router.change([A], [])
        with anyio.CancelScope() as scope:
            scope.cancel()
            await router.change([], [A])
        assert await router.change([A], []) is None
        assert await router.listed() == listed(A.url)
    assert inbox.posted[-1] == ("join", "a")
