"""Finds the copy of a hub's model in the cache, as the hub's own library lays it out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def is_id(text: str) -> bool:
    """Whether it can be the id of a model: NAME or OWNER/NAME."""
    return _ID.fullmatch(text) is not None


def cache_of(environment: Mapping[str, str]) -> str:
    """The folder of all copies."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return environment[name]
    home = environment.get("HOME", "/")
    caches = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return f"{environment.get('HF_HOME') or f'{caches}/huggingface'}/hub"


def copy_of(model: str, cache: str) -> str:
    """The folder of the newest copy, "" without one."""
    folder = Path(cache) / f"models--{model.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(errors="replace").strip()
        copies = [folder / "snapshots" / revision, *sorted((folder / "snapshots").iterdir())]
    except OSError:
        return ""
    return next((str(copy) for copy in copies if copy.is_dir()), "")


def free_bytes(cache: str) -> int | None:
    """Free space where copies go, also before the folder exists."""
    place = Path(cache)
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_frsize * found.f_bavail
