"""A small real request tells a thinking server from one that only answers; a key appears in no answer."""

import json

import anyio
import pytest

from supervisor.actions import AskCanary
from supervisor.edge.canary import ask, judge
from supervisor.events import CanaryAnswered
from supervisor.profile import CanaryRule, load_profile
from tests.edge.web import client, never, response, says, serving

RULE = load_profile("sglang").canary
ASK = AskCanary(3, 10.0)


def generated(text: object) -> bytes:
    return json.dumps({"text": text, "meta_info": {"completion_tokens": 4}}).encode()


@pytest.mark.parametrize("body", [generated(" Paris. It"), generated("\n\n"), b'{"output_ids": [5, 0, 7]}'])
def test_text_or_tokens_make_sense(body: bytes) -> None:
    assert judge(200, body, RULE.fields) == (True, "")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, generated("!!!!"), "logits"),
        (200, generated(" nan "), "logits"),
        (200, generated(""), "empty"),
        (200, generated(None), "no generated text"),
        (200, generated(12), "no generated text"),
        (200, b'{"output_ids": [0, 0, 0, 0]}', "logits"),
        (200, b'{"output_ids": []}', "no token"),
        (200, b'{"text": NaN}', "no JSON"),
        (200, b"<html>welcome", "no JSON"),
        (200, b"[1, 2]", "no object"),
        (200, b"", "no JSON"),
        (500, b"CUDA error: an illegal\x1b[31m memory access", "CUDA error: an illegal [31m memory"),
        (204, b"", "status 204"),
    ],
)
def test_nonsense_is_told_with_its_reason(status: int, body: bytes, why: str) -> None:
    sane, detail = judge(status, body, RULE.fields)
    assert sane is False
    assert why in detail


@pytest.mark.parametrize("status", [503, 429])
def test_not_now_is_no_judgement(status: int) -> None:
    assert judge(status, b"", RULE.fields)[0] is None


def test_a_refusal_is_the_answer_of_a_healthy_server() -> None:
    """An embedding model cannot generate, and says so; that must not make it a sick one."""
    sane, detail = judge(400, b'{"error": "this model does not generate"}', RULE.fields)
    assert sane is True
    assert "400" in detail


async def test_the_request_is_the_profiles_with_the_key_as_a_bearer() -> None:
    async with serving(says(response("200 OK", generated(" Paris")))) as (base, asked), client() as web:
        answered = await ask(web, ASK, base, RULE, key="sesame")
    assert answered.attempt == 3
    assert answered.sane is True
    assert answered.detail == ""
    assert 0 < answered.latency_s < 5
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /generate HTTP/1.1")
    assert b"Bearer sesame" in head
    assert json.loads(body)["sampling_params"]["max_new_tokens"] == 4


async def test_a_key_is_in_no_detail() -> None:
    body = b"internal error for request with authorization: Bearer sesame"
    async with serving(says(response("500 Internal Server Error", body))) as (base, _), client() as web:
        answered = await ask(web, ASK, base, RULE, key="sesame")
        unsendable = await ask(web, ASK, base, RULE, key="ses\name")
    assert answered.sane is False
    assert "sesame" not in answered.detail
    assert "Bearer ***" in answered.detail
    assert "name" not in unsendable.detail


async def test_no_answer_in_time_is_no_answer() -> None:
    async with serving(never) as (base, _), client() as web:
        with anyio.fail_after(3):
            answered = await ask(web, AskCanary(3, 0.1), base, RULE)
    assert answered.sane is None
    assert answered.detail == "no complete answer within 0.1 s"


@pytest.mark.parametrize("pieces", [(), (b"garbage\r\n\r\n",), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",)])
async def test_broken_answers_are_no_answers(pieces: tuple[bytes, ...]) -> None:
    async with serving(says(*pieces)) as (base, _), client() as web:
        answered = await ask(web, ASK, base, RULE)
    assert answered.sane is None
    assert answered.detail.startswith("no answer: ")


async def test_an_engine_without_a_canary_is_not_blamed() -> None:
    async with client() as web:
        assert await ask(web, ASK, "http://127.0.0.1:1", CanaryRule()) == CanaryAnswered(
            3, True, detail="the profile has no canary request"
        )
