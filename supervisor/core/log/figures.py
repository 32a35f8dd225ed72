"""Numbers as text has them: whoever writes a log also writes its figures."""

import math
import re

from supervisor.units import parse_whole

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")  # "933,888"


def count_of(text: str) -> int | None:
    """The whole number that `text` is; None for anything else and for what no counter can have reached."""
    return parse_whole(text.replace(",", "") if _GROUPED.fullmatch(text) else text)


def amount_of(text: str) -> float | None:
    """The finite number that `text` is; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
