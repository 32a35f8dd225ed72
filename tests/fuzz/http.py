"""The API on its real socket, for whoever wants to send it bytes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from tests.api.fake import FakeControl, dialled, served, snapshot

_PATIENCE_S = 0.05  # streams go on without end, and half a request is waited for
_ANSWER = b"HTTP/1.1 "


class Door:
    """Serves a control with two servers from the first use on, in a loop that turns while somebody knocks."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._control = FakeControl(snapshot("kimi", "running"), snapshot("draft"))
        self._serving = served(self._control, directory)
        self._path = self._loop.run_until_complete(self._serving.__aenter__())

    def knock(self, data: bytes, *, stays: bool = False) -> None:
        """Send it, as one request or as many as it holds, and look at the answers' statuses.

        Who says that nothing more comes is taken for gone, and hears nothing of a call that waits:
        `stays` for a whole request.
        """
        answer = self._loop.run_until_complete(self._exchange(data, stays=stays))
        for kept in (self._control.requests, self._control.audited, self._control.answers, self._control.updates):
            kept.clear()  # type: ignore[attr-defined]
        for head in answer.split(_ANSWER)[1:]:
            assert head[:1] in b"1234", f"the API answered {head[:60]!r}"

    def close(self) -> None:
        """Serve nobody any more."""
        self._loop.run_until_complete(self._serving.__aexit__(None, None, None))
        self._loop.close()

    async def _exchange(self, data: bytes, *, stays: bool) -> bytes:
        answer = b""
        async with dialled(self._path) as (reader, writer):
            with contextlib.suppress(ConnectionError, TimeoutError):
                writer.write(data)
                if not stays:
                    writer.write_eof()
                async with asyncio.timeout(_PATIENCE_S):
                    while part := await reader.read(1 << 16):
                        answer += part
        return answer
