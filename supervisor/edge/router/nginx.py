"""Keeps the file of an nginx upstream, and has nginx read it again when it has changed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar, TypeVarTuple
from urllib.parse import urlsplit

import anyio
import msgspec

from supervisor.edge.router.parts import Listed, Trouble, Worker
from supervisor.smallfile import replace_bytes
from supervisor.threads import Threads

Arguments = TypeVarTuple("Arguments")
Found = TypeVar("Found")

_SERVER = re.compile(r"^\s*server\s+(\S+?)\s*;\s*#", re.MULTILINE)
DISK_LIMIT_S = 5.0
_FOR_ALL = 0o644  # nginx may run as anybody
_NOBODY = "    server 127.0.0.1:9 down;  # no server may have requests now\n"  # nginx refuses an empty upstream


class Reloaded(msgspec.Struct, frozen=True):
    """How a reload ended: `problem` is "" when it went well. `certain`: nginx has what it had before."""

    problem: str = ""
    certain: bool = True


Reload: TypeAlias = Callable[[], Awaitable[Reloaded]]


class UpstreamFile:
    """One file, written whole and at once. What nginx did not take is put back: the file says what nginx has.

    Only a reload that came to its end proves that: after our start, and after one that was broken off, one is owed.
    `nginx -s reload` ends once the master has its signal. Its former workers send requests on as before until they have
    heard of it, too: `settle_s` is how long that is given before a server counts as out.

    A disk that does not answer within `limit_s` is left to itself: what it makes of the file, and when, nobody knows:
    when it is back a reload is owed.
    """

    def __init__(
        self, path: str, upstream: str, reload: Reload, settle_s: float = 0.0, limit_s: float = DISK_LIMIT_S
    ) -> None:
        self._path = Path(path)
        self._upstream = upstream
        self._reload = reload
        self._settle_s = settle_s
        self._limit_s = limit_s
        self._owed: bool | None = None  # None: not looked yet
        self._threads = Threads("its disk")  # one: a write that was left must not undo what was written after it

    async def listed(self) -> Listed | Trouble:
        """Those in the file; nobody while there is none."""
        try:
            text = await self._answer(_read, self._path)
        except (OSError, UnicodeError) as problem:
            return Trouble(f"cannot read {self._path}: {_why(problem)}")
        if self._owed is None:
            self._owed = text is not None  # who wrote it may have died before nginx had read it
        urls = frozenset(f"http://{address}" for address in _SERVER.findall(text or ""))
        return Listed(urls, frozenset() if self._owed else urls, owed=self._owed)

    async def change(self, joining: Sequence[Worker], leaving: Sequence[Worker]) -> Trouble | None:
        """One file and one reload for all of them; neither when nothing changes and no reload is owed."""
        listed = await self.listed()
        if isinstance(listed, Trouble):
            return listed
        urls = (listed.urls - {worker.url for worker in leaving}) | {worker.url for worker in joining}
        try:
            before = await self._answer(_read, self._path)
            text = rendered(self._upstream, urls)
            if text == before and not self._owed:
                return None
            self._owed = True
            await self._answer(_write, self._path, text)
        except TimeoutError as problem:  # it may be written yet; as when whoever waits for us has left
            return Trouble(f"cannot write {self._path}: {_why(problem)}")
        except (OSError, UnicodeError) as problem:
            self._owed = listed.owed  # the old file is still there
            return Trouble(f"cannot write {self._path}: {_why(problem)}")
        trouble = await self._reloaded(before, listed.owed)
        if leaving and not trouble:
            await anyio.sleep(self._settle_s)
        return trouble

    async def _reloaded(self, before: str | None, owed: bool) -> Trouble | None:
        end = Reloaded("the reload was broken off", certain=False)
        try:
            end = await self._reload()
        finally:
            if not end.problem:
                self._owed = False
            elif await self._put_back(before) and end.certain:
                self._owed = owed
        return Trouble(f"nginx did not take the change: {end.problem}") if end.problem else None

    async def _put_back(self, before: str | None) -> bool:
        """When that fails, too, the file says what nginx may not have: a reload stays owed."""
        with anyio.CancelScope(shield=True), contextlib.suppress(OSError):
            await self._answer(_put_back, self._path, before)
            return True
        return False

    async def _answer(self, work: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
        return await self._threads.run(work, *arguments, limit_s=self._limit_s, thing=str(self._path))


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
