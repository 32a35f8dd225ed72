"""Keeps the file of an nginx upstream, and has nginx read it again when it has changed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from supervisor.edge.router.parts import Listed, Trouble, Worker
from supervisor.smallfile import replace_bytes

Reload: TypeAlias = Callable[[], Awaitable[str]]  # "" when it went well, else what was wrong
_SERVER = re.compile(r"^\s*server\s+(\S+?)\s*;\s*#", re.MULTILINE)
_FOR_ALL = 0o644  # nginx may run as anybody
_NOBODY = "    server 127.0.0.1:9 down;  # no server may have requests now\n"  # nginx refuses an empty upstream


class UpstreamFile:
    """One file, written whole and at once. What nginx did not take is put back: the file says what nginx has."""

    def __init__(self, path: str, upstream: str, reload: Reload) -> None:
        self._path = Path(path)
        self._upstream = upstream
        self._reload = reload

    async def listed(self) -> Listed | Trouble:
        """Those in the file; nobody while there is none."""
        try:
            text = await anyio.to_thread.run_sync(_read, self._path, abandon_on_cancel=True)
        except (OSError, UnicodeError) as problem:
            return Trouble(f"cannot read {self._path}: {_why(problem)}")
        urls = frozenset(f"http://{address}" for address in _SERVER.findall(text or ""))
        return Listed(urls, urls)

    async def change(self, joining: Sequence[Worker], leaving: Sequence[Worker]) -> Trouble | None:
        """One file and one reload for all of them; neither when nothing changes."""
        listed = await self.listed()
        if isinstance(listed, Trouble):
            return listed
        urls = (listed.urls - {worker.url for worker in leaving}) | {worker.url for worker in joining}
        try:
            before = await anyio.to_thread.run_sync(_read, self._path, abandon_on_cancel=True)
            text = rendered(self._upstream, urls)
            if text == before:
                return None
            await anyio.to_thread.run_sync(_write, self._path, text)
        except (OSError, UnicodeError) as problem:
            return Trouble(f"cannot write {self._path}: {_why(problem)}")
        return await self._reloaded(before)

    async def _reloaded(self, before: str | None) -> Trouble | None:
        problem = "the reload was broken off"
        try:
            problem = await self._reload()
        finally:
            if problem:
                # Bounded by the disk. When it fails, too, the trouble is told, and the next change writes it anew.
                with anyio.CancelScope(shield=True), contextlib.suppress(OSError):
                    await anyio.to_thread.run_sync(_put_back, self._path, before)
        return Trouble(f"nginx did not take the change: {problem}") if problem else None


def rendered(upstream: str, urls: Sequence[str] | frozenset[str]) -> str:
    """The file's text."""
    servers = "".join(f"    server {urlsplit(url).netloc};  # {url}\n" for url in sorted(urls))
    return f"# Written by sglang-supervisor: changes are lost.\nupstream {upstream} {{\n{servers or _NOBODY}}}\n"


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    replace_bytes(path, text.encode(), durable=True, mode=_FOR_ALL)


def _put_back(path: Path, before: str | None) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    else:
        _write(path, before)


def _why(problem: OSError | UnicodeError) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or type(problem).__name__
