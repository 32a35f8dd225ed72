"""What may be the name of a table, and what is said of one that no table has."""

from __future__ import annotations

import re
from collections.abc import Iterable

from supervisor.config.reader import nearest, shown

EVERYBODY = "all"  # where servers and groups are named
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def name_problem(name: str, taken: str = "") -> str:
    """Why a table cannot be called that, "" when it can. `taken` means something else."""
    if _NAME.fullmatch(name) and name != taken:
        return ""
    but = f", not {shown(taken)}" if taken else ""
    return f'expected a name of 1-64 letters, digits, ".", "_" or "-"{but}; the first a letter or digit'


def there_is_no(what: str, name: str, known: Iterable[str]) -> str:
    """The complaint about a name that nobody has, with the nearest one that somebody has."""
    near = nearest(name, known)
    return f"there is no {what} {shown(name)}" + (f", did you mean {near}?" if near else "")
