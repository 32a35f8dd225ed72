"""Finds, packs and forgets evidence bundles: the newest stay, the oldest go, but none that is being written."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from supervisor.edge.evidence.bundle import MANIFEST, Manifest, being_written

KEPT_PER_SERVER = 20
KEPT_BYTES = 2 * 2**30


class Bundle(msgspec.Struct, frozen=True):
    """One bundle on disk. `manifest` None: it is still being written, or its daemon died over it just now."""

    server: str
    attempt: int
    path: str
    wall: float
    bytes: int
    manifest: Manifest | None = None
    lost: tuple[str, ...] = ()  # of what the manifest names: files that are not there any more, or not in full

    @property
    def whole(self) -> bool:
        """Whether it was written to its end, and is as it was then; what was missing then, the manifest names."""
        return self.manifest is not None and not self.manifest.cut and not self.lost


def bundles(directory: str, server: str) -> tuple[Bundle, ...]:
    """The bundles of a server, the newest first. Blocks: call it in a thread."""
    try:
        names = os.listdir(os.path.join(directory, server))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = [_bundle(server, os.path.join(directory, server, name)) for name in names]
    return tuple(sorted((one for one in found if one), key=_age, reverse=True))


def prune(directory: str, keep: int = KEPT_PER_SERVER, total_bytes: int = KEPT_BYTES) -> tuple[str, ...]:
    """Remove the oldest bundles beyond `keep` a server and `total_bytes` in all; the paths of those that went.

    The newest of each server stays, whatever its size: it is the one that somebody will ask for. Blocks.
    """
    by_server: dict[str, list[Bundle]] = defaultdict(list)
    for server in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        by_server[server] = list(bundles(directory, server))
    condemned = [one for found in by_server.values() for one in found[max(1, keep) :]]
    spared = [one for found in by_server.values() for one in found[: max(1, keep)]]
    excess = sum(one.bytes for one in spared) - total_bytes
    newest = {found[0].path for found in by_server.values() if found}
    for one in sorted(spared, key=_age):
        if excess > 0 and one.path not in newest:
            condemned.append(one)
            excess -= one.bytes
    return tuple(one.path for one in condemned if one.path not in being_written and _remove(one.path))


def tar(path: str, out: IO[bytes]) -> None:
    """Write the bundle as tar.gz, below one directory named SERVER-ATTEMPT. Blocks: call it in a thread."""
    place = Path(path)
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=3) as archive:
        archive.add(path, arcname=f"{place.parent.name}-{place.name}")


def _bundle(server: str, path: str) -> Bundle | None:
    """None for what is no bundle."""
    attempt = os.path.basename(path).partition("-")[0]
    if not attempt.isdigit():
        return None
    try:
        with os.scandir(path) as entries:
            sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
        manifest, wall = _manifest(path), os.stat(path).st_mtime
        return Bundle(server, int(attempt), path, wall, sum(sizes.values()), manifest, _lost(manifest, sizes))
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or somebody's file
        return None


def _lost(manifest: Manifest | None, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """A machine that lost its power may have kept the manifest and not the files."""
    named = manifest.files if manifest is not None else ()
    changed = [one for one in named if sizes.get(one.name, 0) != one.bytes]
    return tuple(f"{one.name}: {sizes.get(one.name, 0)} of {one.bytes} bytes are left" for one in changed)


def _manifest(path: str) -> Manifest | None:
    try:
        manifest = msgspec.json.decode(Path(path, MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None
    return None if manifest.under_way else manifest


def _age(bundle: Bundle) -> tuple[float, int, str]:
    return bundle.wall, bundle.attempt, bundle.path


def _remove(path: str) -> bool:
    """False when it cannot be removed (a read-only disk): the next turn tries again."""
    try:
        shutil.rmtree(path)
    except OSError:
        return False
    return True
