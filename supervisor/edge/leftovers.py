"""Removes shared-memory and IPC files that a killed server left behind: those whose maker is named and dead.

A full /dev/shm makes the next scheduler die of SIGBUS, and SIGKILL leaves every segment where it is. Only a file whose
name carries the pid of a process that no longer exists is anybody's to remove; names without a pid (`nccl-AbCdEf`,
`psm_1a2b3c4d`, the `/tmp/tmp*` sockets of ZeroMQ) stay, because nothing tells whether somebody still has them mapped.
Which names these are is data of the engine's profile.

A container with a pid namespace of its own that shares the directory names pids that look dead from here: give the
pids that the killed tree had, and only their files are touched.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

import msgspec

from supervisor import procstat
from supervisor.profile import LeftoverRule
from supervisor.threads import Threads

LOOK_LIMIT_S = 10.0
_looks = Threads("a directory", 2)
_NAMED_AT_MOST = 20


class Removed(msgspec.Struct, frozen=True):
    """What was removed. `files` names the first ones, `refused` says of the first that stayed why."""

    count: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


async def remove(rules: tuple[LeftoverRule, ...], owner: int, pids: frozenset[int] | None = None) -> Removed:
    """Remove what dead processes of the user `owner` (a uid) left; of `pids` alone, unless that is None.

    Call it when the server's tree is proven empty. Bounded: a directory that does not answer in time is given up.
    """
    places = ", ".join(sorted({rule.directory for rule in rules}))
    try:
        return await _looks.run(_remove, rules, owner, pids, limit_s=LOOK_LIMIT_S, thing=places)
    except TimeoutError:
        return Removed(refused=("the directories did not answer in time",))


def _remove(rules: tuple[LeftoverRule, ...], owner: int, pids: frozenset[int] | None) -> Removed:
    count = size = 0
    files: list[str] = []
    refused: list[str] = []
    for path, status in _stale(rules, owner, pids):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as problem:
            refused.append(f"cannot remove {path}: {problem.strerror}")
            continue
        count += 1
        size += status.st_blocks * 512
        files.append(path)
    return Removed(count, size, tuple(files[:_NAMED_AT_MOST]), tuple(refused[:_NAMED_AT_MOST]))


def _stale(
    rules: tuple[LeftoverRule, ...], owner: int, pids: frozenset[int] | None
) -> Iterator[tuple[str, os.stat_result]]:
    for rule in rules:
        pattern = re.compile(rule.pattern)
        for entry in _entries(rule.directory):
            pid = _embedded_pid(pattern, entry.name)
            if pid is None or (pids is not None and pid not in pids) or _alive(pid):
                continue
            status = _status(entry)
            if status and _is_plain(status) and status.st_uid == owner:
                yield entry.path, status


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # nothing of ours can be there
        return


def _embedded_pid(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    if match is None:
        return None
    found = match.groupdict()
    text, base = (found["pid"], 10) if found.get("pid") else (found.get("pid_hex"), 16)
    pid = int(text, base) if text else 0
    return pid or None


def _alive(pid: int) -> bool:
    """A process of that number lives; a pid that was reused keeps a stale file, which harms less than the reverse."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:  # no pid, whatever the name says
        return True
    except PermissionError:
        return True
    process = procstat.read(pid)
    return process is not None and process.alive


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_plain(status: os.stat_result) -> bool:
    """Never a directory, never a symbolic link that somebody may have laid out for us."""
    return stat.S_ISREG(status.st_mode) or stat.S_ISSOCK(status.st_mode)
