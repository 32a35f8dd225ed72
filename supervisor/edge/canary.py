"""Sends a server one small real request and looks whether the answer makes sense; every error is an answer, too."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import anyio
import httpx
import msgspec

from supervisor.actions import AskCanary
from supervisor.config.secrets import HIDDEN
from supervisor.events import CanaryAnswered
from supervisor.lines import printable
from supervisor.profile import CanaryRule

BODY_LIMIT_BYTES = 64 * 1024
_EXCERPT = 120
# The engine refuses this kind of request (an embedding model cannot generate; a key that we do not have): that it
# answers at all is all that can be learned, and no sign of illness.
_REFUSALS = range(400, 500)
_NOT_NOW = frozenset({408, 429, 503})


async def ask(
    client: httpx.AsyncClient, action: AskCanary, base: str, rule: CanaryRule, key: str = ""
) -> CanaryAnswered:
    """Ask once. `base` is "http://HOST:PORT"; `key` is presented as a bearer token and appears nowhere else."""
    if not rule.path:
        return CanaryAnswered(action.attempt, True, detail="the profile has no canary request")
    began = time.monotonic()
    sane, detail = await _ask(client, action, base + rule.path, rule, key)
    shown = detail.replace(key, HIDDEN) if key else detail
    return CanaryAnswered(action.attempt, sane, time.monotonic() - began, shown)


async def _ask(
    client: httpx.AsyncClient, action: AskCanary, url: str, rule: CanaryRule, key: str
) -> tuple[bool | None, str]:
    try:
        with anyio.move_on_after(action.timeout_s):
            status, body = await _post(client, url, rule.body.encode(), key)
            return judge(status, body, rule.fields)
    except httpx.LocalProtocolError:  # its text would quote the key
        return True, "cannot make the request: the key has letters that no header may have"
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as problem:
        return None, f"no answer: {type(problem).__name__}: {_excerpt(str(problem))}"
    return None, f"no complete answer within {action.timeout_s:g} s"


async def _post(client: httpx.AsyncClient, url: str, body: bytes, key: str) -> tuple[int, bytes]:
    headers = {b"content-type": b"application/json"}
    if key:
        headers[b"authorization"] = b"Bearer " + key.encode()
    async with client.stream("POST", url, content=body, headers=headers) as response:
        answer = bytearray()
        async for piece in response.aiter_raw():
            answer += piece[: BODY_LIMIT_BYTES - len(answer)]
            if len(answer) >= BODY_LIMIT_BYTES:
                break  # four tokens fit; whoever sends more is not asked to finish
        return response.status_code, bytes(answer)


def judge(status: int, body: bytes, fields: Iterable[str]) -> tuple[bool | None, str]:
    """Whether the answer makes sense, and in a few words why not. None: there is no telling."""
    if status in _NOT_NOW:
        return None, f"status {status}: not now"
    if status in _REFUSALS:
        return True, f"status {status}: it answers, and refuses this kind of request"
    if status != httpx.codes.OK:
        return False, f"status {status}: {_excerpt(body.decode('utf-8', 'replace'))}"
    try:
        answer: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as problem:  # NaN is no JSON either
        return False, f"the answer is no JSON: {_excerpt(str(problem))}"
    if not isinstance(answer, dict):
        return False, f"the answer is no object: {_excerpt(repr(answer))}"
    value = next((answer[name] for name in fields if answer.get(name) is not None), None)
    problem_found = _nonsense(value)
    return not problem_found, problem_found


def _nonsense(value: Any) -> str:
    """Why this is no generated text or list of tokens; "" when it may be one.

    Logits that are not numbers make engines sample token 0 for ever, which most vocabularies spell "!".
    """
    match value:
        case str() if not value:
            return "the generated text is empty"
        case str() if set(value.strip()) == {"!"} or value.strip().casefold() == "nan":
            return f"the generated text is {_excerpt(repr(value))}, as of logits that are not numbers"
        case str():
            return ""
        case list() if not value:
            return "no token was generated"
        case list() if all(one == 0 or (isinstance(one, float) and math.isnan(one)) for one in value):
            return "every generated token is number 0, as of logits that are not numbers"
        case list():
            return ""
        case _:
            return "the answer has no generated text"


def _excerpt(text: str) -> str:
    return printable(text, " ")[:_EXCERPT]
