"""One message to a webhook: taken, to be tried again, or never to be taken; and no secret in what is told."""

import pytest

from supervisor.edge.webhook import Messenger, Sent
from tests.edge.web import Serve, never, response, says, serving


async def send(url: str, *, limit_s: float = 10.0, **headers: str) -> Sent:
    async with Messenger(limit_s) as messenger:
        return await messenger.send(url, headers, b'{"event":"fatal"}')


async def test_the_message_is_posted_as_json_with_the_operators_headers() -> None:
    async with serving(says(response("204 No Content"))) as (url, asked):
        assert await send(f"{url}/services/T0", Authorization="Bearer abc") == Sent()

    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /services/T0 HTTP/1.1")
    assert b"content-type: application/json" in head.lower()
    assert b"authorization: bearer abc" in head.lower()
    assert body == b'{"event":"fatal"}'


@pytest.mark.parametrize("status", ["500 Oops", "503 Later", "429 Too Many", "408 Timeout"])
async def test_a_sick_receiver_is_tried_again(status: str) -> None:
    async with serving(says(response(status))) as (url, _):
        assert await send(url) == Sent(f"answered {status[:3]}", again=True)


@pytest.mark.parametrize("status", ["400 Bad", "401 No", "404 Gone", "302 Elsewhere"])
async def test_a_receiver_that_refuses_is_not(status: str) -> None:
    async with serving(says(response(status))) as (url, _):
        assert await send(url) == Sent(f"answered {status[:3]}", again=False)


async def test_a_receiver_that_never_answers_is_left() -> None:
    async with serving(never) as (url, _):
        assert await send(url, limit_s=0.2) == Sent("no answer within 0.2 s", again=True)


async def test_nobody_there_is_tried_again() -> None:
    sent = await send("http://127.0.0.1:1/")

    assert sent.again
    assert sent.problem.startswith("cannot be reached: ")


@pytest.mark.parametrize("handler", [says(b"no http at all\r\n\r\n"), says(b"")])
async def test_nonsense_is_an_outcome(handler: Serve) -> None:
    async with serving(handler) as (url, _):
        assert (await send(url)).again


@pytest.mark.parametrize("url", ["http://", "ftp://host/", "nonsense"])
async def test_an_address_that_is_none_is_given_up(url: str) -> None:
    sent = await send(url)

    assert sent.problem.startswith("cannot be sent: ")
    assert not sent.again


async def test_the_address_is_not_told() -> None:
    """Whoever knows the address of such a hook may write to it."""
    sent = await send("http://127.0.0.1:1/SECRET")

    assert "SECRET" not in sent.problem
