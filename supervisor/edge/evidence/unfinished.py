"""Finishes bundles that a daemon has died over: what is whole is listed, what is not is said."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from supervisor.edge.evidence.bundle import MANIFEST, PART, Kept, Manifest, being_written, write_manifest
from supervisor.edge.evidence.store import Bundle, bundles

CUT = "its daemon ended while it was being written"


class Finished(msgspec.Struct, frozen=True):
    """One bundle that has got its manifest now; `problem`: why it has none."""

    server: str
    attempt: int
    path: str
    missing: tuple[str, ...] = ()
    problem: str = ""


def finish(directory: str) -> tuple[Finished, ...]:
    """All of them, the oldest first. Blocks: call it in a thread. Those of this process are left alone."""
    try:
        servers = sorted(os.listdir(directory))
    except FileNotFoundError:
        return ()
    found = [one for server in servers for one in reversed(bundles(directory, server))]
    return tuple(_finish(one) for one in found if one.manifest is None and one.path not in being_written)


def _finish(bundle: Bundle) -> Finished:
    try:
        manifest = _as_it_is(bundle)
        write_manifest(bundle.path, manifest)
    except OSError as problem:
        return Finished(bundle.server, bundle.attempt, bundle.path, problem=problem.strerror or str(problem))
    return Finished(bundle.server, bundle.attempt, bundle.path, manifest.missing)


def _as_it_is(bundle: Bundle) -> Manifest:
    names = sorted(set(os.listdir(bundle.path)) - {MANIFEST, f"{MANIFEST}{PART}"})
    halves = tuple(f"{name.removesuffix(PART)}: cut, {name} is what there is" for name in names if name.endswith(PART))
    return msgspec.structs.replace(
        _begun(bundle),
        files=tuple(_kept(bundle.path, name) for name in names if not name.endswith(PART)),
        missing=(*halves, f"what is not listed: {CUT}"),
        under_way=False,
        cut=CUT,
    )


def _begun(bundle: Bundle) -> Manifest:
    """What its daemon said when it began, as far as that can be read."""
    try:
        return msgspec.json.decode(Path(bundle.path, MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, msgspec.DecodeError):  # no room for it, or half of its end
        return Manifest(bundle.server, bundle.attempt, "", bundle.wall, 0.0)


def _kept(directory: str, name: str) -> Kept:
    data = Path(directory, name).read_bytes()
    return Kept(name, len(data), hashlib.sha256(data).hexdigest())
