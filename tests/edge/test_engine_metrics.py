"""The engine's counters, from pages as engines print them to pages that nobody should."""

import math
import socket
import time
from itertools import repeat

import anyio
import anyio.abc
import pytest

from supervisor.edge.engine_metrics import PAGE_LIMIT_BYTES, NoCounters, read, sample
from supervisor.events import EngineSampled
from supervisor.profile import EngineMetrics, load_profile
from tests.edge.web import client, never, response, says, serving

NAMES = load_profile("sglang").metrics

PAGE = b"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="kimi",tp_rank="0",dp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="kimi",tp_rank="0",dp_rank="1"} 4.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="ki\\"mi}"} 7
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="kimi"} 1.234e+06
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="kimi"} 1000.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{model_name="kimi"} 12.0
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="kimi"} 12.0
"""


def test_ranks_and_replicas_are_summed() -> None:
    assert sample(3, PAGE, NAMES) == EngineSampled(3, tokens=1_235_000.0, requests=12.0, running=7.0, queued=7.0)


def test_what_the_page_does_not_have_is_none_and_not_zero() -> None:
    assert sample(3, b"sglang:num_running_reqs 2\n", NAMES) == EngineSampled(3, running=2.0)


def test_a_name_that_only_begins_like_a_wanted_one_is_not_added() -> None:
    page = b"sglang:num_running_reqs_offline_batch 9\nsglang:num_running_reqs 2\n"
    assert sample(3, page, NAMES) == EngineSampled(3, running=2.0)


def test_a_value_that_is_no_number_is_left_out() -> None:
    page = b"sglang:num_running_reqs NaN\nsglang:num_queue_reqs +Inf\nsglang:num_requests_total 1\n"
    found = sample(3, page, NAMES)
    assert found == EngineSampled(3, requests=1.0)
    assert not math.isnan(found.requests or 0)


@pytest.mark.parametrize(
    "page",
    [b"", b"<html>welcome</html>", b"\xff\xfe\x00", b"python_info 1\n", b"sglang:num_running_reqs\n",
     b"sglang:num_running_reqs{a= 1\n", b'sglang:num_running_reqs{a="b"} many\n'],
)  # fmt: skip
def test_a_page_without_counters_says_why(page: bytes) -> None:
    found = sample(3, page, NAMES)
    assert isinstance(found, NoCounters)
    assert found.reason
    assert not found.absent, "they may come with the first request"


def test_a_page_full_of_histograms_costs_little() -> None:
    """What is not wanted is not parsed: the parser takes some 20 µs a line."""
    bucket = b'sglang:e2e_request_latency_seconds_bucket{le="0.1",model_name="kimi",tp_rank="0"} 12.0\n'
    page = PAGE + b"".join(repeat(bucket, 10_000))
    began_s = time.process_time()
    assert isinstance(sample(3, page, NAMES), EngineSampled)
    assert time.process_time() - began_s < 0.1


# --- over HTTP -----------------------------------------------------------------------------------------------------


async def test_the_page_is_read_with_the_key_and_without_keeping_the_connection() -> None:
    async with serving(says(response("200 OK", PAGE))) as (base, asked), client() as web:
        found = await read(web, 3, base, NAMES, key="sesame")
    assert isinstance(found, EngineSampled)
    assert found.running == 7.0
    assert asked[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"Bearer sesame" in asked[0]


@pytest.mark.parametrize("status", ["404 Not Found", "401 Unauthorized", "405 Method Not Allowed"])
async def test_an_engine_without_metrics_is_told_apart_from_a_sick_one(status: str) -> None:
    async with serving(says(response(status))) as (base, _), client() as web:
        assert await read(web, 3, base, NAMES) == NoCounters(f"status {status[:3]}", absent=True)
    async with serving(says(response("503 Service Unavailable"))) as (base, _), client() as web:
        assert await read(web, 3, base, NAMES) == NoCounters("status 503")


async def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        async with client() as web:
            found = await read(web, 3, f"http://127.0.0.1:{held.getsockname()[1]}", NAMES)
    assert isinstance(found, NoCounters)
    assert found.absent


async def test_a_profile_without_a_page_asks_nobody() -> None:
    async with client() as web:
        found = await read(web, 3, "http://127.0.0.1:1", EngineMetrics())
    assert isinstance(found, NoCounters)
    assert found.absent


async def test_a_large_page_is_read_and_one_without_end_is_not() -> None:
    filler = b"# nothing\n" * 20_000
    async with serving(says(response("200 OK", filler + PAGE))) as (base, _), client() as web:
        assert isinstance(await read(web, 3, base, NAMES), EngineSampled)

    async def endless(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await stream.send(filler)

    async with serving(endless) as (base, _), client() as web:
        assert await read(web, 3, base, NAMES) == NoCounters(f"the page is longer than {PAGE_LIMIT_BYTES} bytes")


async def test_broken_answers_are_reasons() -> None:
    for pieces in ((b"garbage\r\n\r\n",), (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nshort",), ()):
        async with serving(says(*pieces)) as (base, _), client() as web:
            assert isinstance(await read(web, 3, base, NAMES), NoCounters), pieces


async def test_a_key_that_fits_no_header_is_not_quoted() -> None:
    async with client() as web:
        found = await read(web, 3, "http://127.0.0.1:1", NAMES, key="se\ncret")
    assert isinstance(found, NoCounters)
    assert "cret" not in found.reason


async def test_an_engine_that_does_not_answer_costs_the_deadline() -> None:
    async with serving(never) as (base, _), client() as web:
        with anyio.fail_after(3):
            found = await read(web, 3, base, NAMES, limit_s=0.2)
    assert found == NoCounters("no complete page within 0.2 s")


async def test_a_client_that_was_closed_is_our_own_bug_and_is_raised() -> None:
    web = client()
    await web.aclose()
    with pytest.raises(RuntimeError):
        await read(web, 3, "http://127.0.0.1:1", NAMES)
