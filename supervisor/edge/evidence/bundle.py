"""One bundle directory under way: files of bounded size without control characters or secrets, and their manifest."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable

import msgspec

from supervisor.config import is_secret, mask_text
from supervisor.config.secrets import HIDDEN
from supervisor.lines import clean

BUNDLE_BYTES = 32 * 2**20
FILE_BYTES = 2 * 2**20
MANIFEST = "manifest.json"
PART = ".part"  # what a file is called until it is whole
MISSING_MAX = 64
_MANIFEST_RESERVE_BYTES = 16 * 2**10  # taken first: a disk that fills up meanwhile must not cost us the manifest
_REASON_LETTERS = 240
_SECRET_LETTERS = 4  # shorter words would be found everywhere
# api_key='…' and the like, as engines print their arguments. The look behind keeps the search linear: without it, a
# line of a million letters would be tried from each of them, and a pattern at work holds the interpreter's lock.
_ASSIGNED = re.compile(
    r"""(?<![\w-])(?P<name>[\w-]{2,60})(?P<sep>['"]?[ ]{0,2}[=:][ ]{0,2})(?P<quote>['"])[^'"]{1,400}(?P=quote)"""
)

being_written: set[str] = set()  # paths of this process's bundles that nobody may remove


class Kept(msgspec.Struct, frozen=True):
    """One file of a bundle."""

    name: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What is in a bundle, and what is not and why."""

    server: str
    attempt: int
    reason: str
    wall: float
    took_s: float
    files: tuple[Kept, ...] = ()
    missing: tuple[str, ...] = ()
    under_way: bool = False  # the rest of it is not known yet
    cut: str = ""  # why it was not written to its end


class BundleWriter:
    """Made for one attempt. Methods block: call them in threads. Several may write at once."""

    def __init__(self, wanted: str, server: str, attempt: int, reason: str, secrets: Iterable[str] = ()) -> None:
        self.path = ""
        self.missing: list[str] = []
        self._wanted = wanted
        self.server = server
        self._attempt = attempt
        self._reason = reason
        self._began = time.monotonic()
        self._wall = time.time()
        self._secrets = _forms(secrets)
        self._left = BUNDLE_BYTES
        self._files: list[Kept] = []
        self._lock = threading.Lock()

    @property
    def empty(self) -> bool:
        """Whether nothing has been kept."""
        return not self._files

    def open(self) -> None:
        """Make the directory, beside an earlier bundle of the same attempt. OSError when that is not possible."""
        os.makedirs(os.path.dirname(self._wanted), mode=0o750, exist_ok=True)
        self.path = self._place()
        begun = Manifest(self.server, self._attempt, self.redact(self._reason), self._wall, 0.0, under_way=True)
        with contextlib.suppress(OSError):
            data = msgspec.json.encode(begun).ljust(_MANIFEST_RESERVE_BYTES)
            write_new(os.path.join(self.path, MANIFEST), data)

    def _place(self) -> str:
        number, path = 1, self._wanted
        while True:
            being_written.add(path)  # before anybody can find it, and take it for one whose daemon has died
            try:
                os.mkdir(path, mode=0o750)
            except OSError as problem:
                being_written.discard(path)
                if not isinstance(problem, FileExistsError):
                    raise
                number, path = number + 1, f"{self._wanted}-{number + 1}"
            else:
                return path

    def drop(self) -> None:
        """The directory was made too late: nobody writes into it any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        being_written.discard(self.path)

    def lacks(self, what: str, why: str) -> None:
        """Say what is not in the bundle. Says it in one bounded line, without secrets, and not for ever."""
        if len(self.missing) < MISSING_MAX:
            self.missing.append(clean(self.redact(f"{what}: {why}".replace("\n", " ")))[:_REASON_LETTERS])
        elif len(self.missing) == MISSING_MAX:
            self.missing.append("and more")

    def write(self, name: str, text: str, limit_bytes: int = FILE_BYTES) -> None:
        """Keep the text as a file. What does not fit is cut, a file that fails is in `missing`; nothing raises."""
        data = self._prepared(text[: 2 * limit_bytes])  # beyond that, nothing can fit, however much is taken out
        with self._lock:
            room = min(limit_bytes, self._left)
            self._left -= min(len(data), room)
        if len(data) > room:
            self.lacks(name, f"cut to {room} of {len(data)} bytes")
            data = data[:room]
        try:
            write_new(os.path.join(self.path, name), data)
        except OSError as problem:
            self.lacks(name, problem.strerror or str(problem))
            return
        with self._lock:
            self._files.append(Kept(name, len(data), hashlib.sha256(data).hexdigest()))

    def redact(self, text: str) -> str:
        """The text without the secrets that we know, and without values that are assigned to a secret's name."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return _ASSIGNED.sub(_hidden, text)

    def close(self) -> None:
        """Write the manifest; the bundle may be removed from now on. OSError when it cannot be written."""
        files = tuple(sorted(self._files, key=lambda one: one.name))
        took_s = time.monotonic() - self._began
        manifest = Manifest(
            self.server, self._attempt, self.redact(self._reason), self._wall, took_s, files, tuple(self.missing)
        )
        write_manifest(self.path, manifest)

    def _prepared(self, text: str) -> bytes:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return self.redact("\n".join(map(_shown, lines))).encode("utf-8", "replace")


def _shown(line: str) -> str:
    """Line by line and only where it may help: a pattern at work on megabytes holds the interpreter's lock."""
    text = clean(line)
    return mask_text(text) if "earer" in text or "://" in text else text


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Over the place that was taken for it, without giving that back first. OSError when it cannot be written."""
    data = msgspec.json.format(msgspec.json.encode(manifest))
    descriptor = os.open(os.path.join(directory, MANIFEST), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    with open(descriptor, "wb") as out:
        out.write(data)
        out.truncate()


def write_new(path: str, data: bytes) -> None:
    """It has its name when it is whole. On a full disk nothing: half a file would take the room of a smaller one."""
    part = f"{path}{PART}"
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    _write_part(part, data)
    os.rename(part, path)


def _write_part(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """Each secret as it is, as JSON has it and as Python prints it; the longest first: one may contain another."""
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= _SECRET_LETTERS:
            forms |= {secret, msgspec.json.encode(secret).decode()[1:-1], repr(secret)[1:-1]}
    return tuple(sorted(forms, key=len, reverse=True))


def _hidden(found: re.Match[str]) -> str:
    if not is_secret(found["name"]):
        return found[0]
    return f"{found['name']}{found['sep']}{found['quote']}{HIDDEN}{found['quote']}"
