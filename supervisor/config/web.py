"""What may be the address of a receiver, and a header that is sent to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from supervisor.config.reader import join

_ADDRESS = re.compile(r"https?://[!-~]+", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)


def is_address(url: str) -> bool:
    """Whether a request can be sent there."""
    return bool(_ADDRESS.fullmatch(url))


def header_problems(key: str, headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the table of headers at `key`; values are not shown, they may be secrets."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not value.isprintable() or not value.isascii():
            yield join(key, name), "expected a header's name and a value of printable ASCII characters"
