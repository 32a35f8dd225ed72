"""Hides secret values in environments and commands before anybody is shown them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"
_SECRET = re.compile(r"token|key|secret|passw|credential|auth|webhook", re.IGNORECASE)
# Words with "key" or "token" in them that hold no secret; hiding them would only hide the cause of a failure.
_HARMLESS = re.compile(r"tokeniz|tokens|key[-_]?file|author|(^|[-_])token[-_](id|ids|limit|usage)$", re.IGNORECASE)


def mask(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the values of *TOKEN*, *KEY*, *SECRET*, *WEBHOOK* and the like hidden."""
    return {name: HIDDEN if is_secret(name) and value else value for name, value in environment.items()}


def mask_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command with the value after `--api-key` (or in `--api-key=VALUE`, `TOKEN=VALUE`) hidden."""
    shown: list[str] = []
    hide_next = False
    for word in arguments:
        shown.append(HIDDEN if hide_next else _mask_word(word))
        hide_next = word.startswith("-") and "=" not in word and is_secret(word)
    return tuple(shown)


def is_secret(name: str) -> bool:
    """Whether an option or variable of this name usually holds a secret."""
    return bool(_SECRET.search(_HARMLESS.sub("", name)))


def _mask_word(word: str) -> str:
    name, equals, _ = word.partition("=")
    return f"{name}={HIDDEN}" if equals and len(name) <= 80 and is_secret(name) else word
