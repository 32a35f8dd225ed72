"""Operations of the status page: the document, its updates as server-sent events, its three assets."""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import math
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from hashlib import sha256
from typing import TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
import msgspec
from starlette.responses import Response, StreamingResponse

from supervisor.api.control import Control
from supervisor.api.operation import Call, Operation
from supervisor.web.page import NO_TAILS, content, document
from supervisor.web.still import Still
from supervisor.web.tails import tails

T = TypeVar("T")

AT_MOST_EVERY_S = 1.0  # however much changes
STARTING_EVERY_S = 2.0  # bars and lanes move without anything being announced
QUIET_EVERY_S = 15.0  # also tells a proxy that the connection lives
EVENT_STREAM = "text/event-stream"

# Nothing from elsewhere, nothing inline: what a log line smuggles in is neither style nor script.
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
PACKED = {"content-encoding": "gzip", "vary": "accept-encoding"}
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_LEVEL = 4  # of 9: half a millisecond for the page of a busy host
_ASSETS = {"/style.css": "text/css", "/app.js": "text/javascript", "/icon.svg": "image/svg+xml"}


class _Rendered(msgspec.Struct, frozen=True):
    at: float
    change: int
    event: _Piece


class _Piece(msgspec.Struct, frozen=True):
    """A piece of the stream as it is, and as one block of a compressed stream."""

    plain: bytes
    packed: bytes


_rendered: WeakKeyDictionary[Control, dict[bool, _Rendered]] = WeakKeyDictionary()
_turns: WeakKeyDictionary[Control, anyio.Lock] = WeakKeyDictionary()
_artists: WeakKeyDictionary[Control, anyio.CapacityLimiter] = WeakKeyDictionary()


async def show_page(call: Call) -> Response:
    read = await tails(call.control) if call.local else NO_TAILS
    packed = _accepts_gzip(call)
    headers = HEADERS | {"cache-control": "no-store"} | (PACKED if packed else {})
    body = await _drawn(call.control, functools.partial(_document, full=call.local, tails=read, packed=packed))
    return Response(body, media_type="text/html", headers=headers)


def _document(still: Still, *, full: bool, tails: Mapping[str, str], packed: bool) -> bytes:
    html = document(still, full=full, tails=tails).encode()
    return gzip.compress(html, _LEVEL) if packed else html


async def _drawn(control: Control, draw: Callable[[Still], T]) -> T:
    """Drawn beside the decisions: sixty-four starts of eight ranks take a tenth of a second. One picture at a time."""
    still, artist = Still(control), _artists.setdefault(control, anyio.CapacityLimiter(1))
    return await anyio.to_thread.run_sync(draw, still, limiter=artist)


async def follow(call: Call) -> Response:
    packed = _accepts_gzip(call)
    headers = HEADERS | {"cache-control": "no-store", "x-accel-buffering": "no"} | (PACKED if packed else {})
    stream = _packed(call) if packed else _plain(call)
    return StreamingResponse(stream, media_type=EVENT_STREAM, headers=headers)


async def _plain(call: Call) -> AsyncIterator[bytes]:
    async for piece in _updates(call.control, full=call.local):
        yield piece.plain


async def _packed(call: Call) -> AsyncIterator[bytes]:
    """Blocks that depend on nothing before them: compressed once for all who look. The stream never ends by itself."""
    yield _GZIP_HEAD
    async for piece in _updates(call.control, full=call.local):
        yield piece.packed


def _piece(data: bytes) -> _Piece:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return _Piece(data, packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH))


async def _updates(control: Control, *, full: bool) -> AsyncIterator[_Piece]:
    """The changing part, now and whenever it is another one."""
    told = b""
    while True:
        change = control.change()
        event = await _current(control, full=full)
        yield event if event.plain != told else _NOTHING_NEW
        told = event.plain
        await anyio.sleep(AT_MOST_EVERY_S)
        starting = any(snapshot.lifecycle.value == "starting" for snapshot in control.snapshots())
        pause_s = STARTING_EVERY_S - AT_MOST_EVERY_S if starting else QUIET_EVERY_S
        with anyio.move_on_after(pause_s):
            await control.changed(change)


async def _current(control: Control, *, full: bool) -> _Piece:
    """Rendered once for all who look: many open tabs cost what one costs."""
    async with _turns.setdefault(control, anyio.Lock()):  # who waits finds what the first one has had drawn
        return await _newest(control, full=full)


async def _newest(control: Control, *, full: bool) -> _Piece:
    known = _rendered.setdefault(control, {})
    now, before = control.clock().monotonic, known.get(full)
    if before is None or not math.isclose(before.at, now, abs_tol=AT_MOST_EVERY_S) or before.change != control.change():
        change, read = control.change(), await tails(control) if full else NO_TAILS
        event = await _drawn(control, functools.partial(_event, full=full, tails=read))
        before = known[full] = _Rendered(now, change, event)
    return before.event


def _event(still: Still, *, full: bool, tails: Mapping[str, str]) -> _Piece:
    return _piece(_framed(content(still, full=full, tails=tails)))


def _framed(html: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.split("\n"))
    return f"event: content\n{lines}\n".encode()


_NOTHING_NEW = _piece(b": nothing new\n\n")


async def show_asset(call: Call) -> Response:
    path = call.request.url.path
    packed = _accepts_gzip(call)
    body, tag = _asset(path, packed=packed)
    headers = HEADERS | {"etag": tag, "cache-control": "no-cache"} | (PACKED if packed else {})
    if call.request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=_ASSETS[path], headers=headers)


@functools.lru_cache(maxsize=2 * len(_ASSETS))
def _asset(path: str, *, packed: bool) -> tuple[bytes, str]:
    body = (importlib.resources.files("supervisor.web") / "static" / path.removeprefix("/")).read_bytes()
    tag = f'"{sha256(body).hexdigest()[:16]}{"-gzip" if packed else ""}"'
    return (gzip.compress(body) if packed else body), tag


def _accepts_gzip(call: Call) -> bool:
    """Through a tunnel the page arrives in a third of the time."""
    return "gzip" in call.request.headers.get("accept-encoding", "")


def _asset_operation(path: str, name: str, summary: str) -> Operation:
    return Operation("GET", path, name, summary, show_asset, media_types=(_ASSETS[path],), on_tcp=True)


OPERATIONS = (
    Operation("GET", "/", "showPage", "The status page", show_page, media_types=("text/html",), on_tcp=True),
    Operation("GET", "/live", "followPage", "Updates of the page", follow, media_types=(EVENT_STREAM,), on_tcp=True),
    _asset_operation("/style.css", "showStyle", "The page's style"),
    _asset_operation("/app.js", "showScript", "The page's script"),
    _asset_operation("/icon.svg", "showIcon", "The page's icon"),
)
