"""Numbers as text has them: whoever writes a log also writes its figures."""

import math
import re

MAX_DIGITS = 18  # fits 64 bits; Python itself refuses to read more than 4300 digits, with an exception
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")  # "933,888"


def count_of(text: str) -> int | None:
    """The whole number that `text` is; None for anything else and for what no counter can have reached."""
    text = text.replace(",", "") if _GROUPED.fullmatch(text) else text
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def amount_of(text: str) -> float | None:
    """The finite number that `text` is; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
