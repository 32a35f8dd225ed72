"""Finds the files that profiles are read from: a host's own first, then those that come with the package."""

from __future__ import annotations

import os
import re
from pathlib import Path

VARIABLE = "SGLSUP_PROFILES"
OWN = "/etc/sglang-supervisor/profiles"
# importlib.resources would load tempfile and random into the child that looks before each start.
PACKAGED = Path(__file__).resolve().parents[1] / "profiles"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def find(name: str, part: str = "") -> Path | None:
    """The file of that name in the folder `part` of the profiles; None where there is none."""
    if not _NAME.fullmatch(name):
        return None
    files = (folder / part / f"{name}.toml" if part else folder / f"{name}.toml" for folder in folders())
    return next((file for file in files if file.is_file()), None)


def folders() -> tuple[Path, ...]:
    """Where profiles lie, the host's own first: a file there stands in the place of the package's."""
    own = own_folder()
    return (own, PACKAGED) if os.access(own, os.R_OK | os.X_OK) else (PACKAGED,)


def own_folder() -> Path:
    """Where the host's own are looked for, whether it is there or not."""
    return Path(os.environ.get(VARIABLE) or OWN)
