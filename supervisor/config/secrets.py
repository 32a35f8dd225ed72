"""Hides secret values in environments, commands and log text before anybody is shown them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"
_SECRET = re.compile(r"token|key|secret|passw|credential|auth|webhook", re.IGNORECASE)
# Words with "key" or "token" in them that hold no secret; hiding them would only hide the cause of a failure.
_HARMLESS = re.compile(
    r"tokeniz|tokens|key[-_]?file|author(?!iz)|(^|[-_])token[-_](id|ids|limit|usage)$", re.IGNORECASE
)

# What a text must contain, in lower case, to hold anything that is hidden. Most lines do not.
_HINTS = ("key", "oken", "earer", "assw", "ecret", "://", "auth", "redential", "webhook")
# All patterns are linear: each begins at a word's first letter or at a rare sign, and what may repeat is bounded or
# followed by nothing. A value needs no closing quote: texts are cut.
_NAME = r"(?<![\w-])(?=[\w-]{0,60}?(?:token|key|secret|passw|credential|auth|webhook))(?P<name>-{0,2}[a-z_][\w-]{1,80})"
_QUOTED = r"""'[^']*|"[^"]*"""
_BARE = r"""[^\s'",;&(){}\[\]<>\\]+"""
_ASSIGNED = re.compile(
    _NAME + r"""(?P<sep>\\?['"]?[ ]{0,2}(?P<sign>[=:])[ ]{0,2}\\?)(?P<value>""" + _QUOTED + "|" + _BARE + ")",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?<![\w-])(?P<name>--[a-z][\w-]{1,80})(?P<sep>['\"]?,?[ ]{1,2}(?!-))(?P<value>" + _QUOTED + "|" + _BARE + ")",
    re.IGNORECASE,
)
_SCHEME = re.compile(
    r"(?<!\w)(?P<scheme>bearer|basic|(?<=authorization: )\w{1,20})[ ]{1,2}(?!token\b|auth)[\w.~+/=-]{6,}", re.IGNORECASE
)
_URL = re.compile(r"""://(?:(?P<user>[^\s/@:'"]{0,100}):[^\s/'"]{1,400}|[^\s/@:'"]{16,400})@""")
_NO_VALUE = re.compile(r"['\"]?(?:[-+]?[\d.]+%?|none|null|true|false|)['\"]?", re.IGNORECASE)
# Names in prose and in failures: `KeyError: 'model.layers.0'` is the cause, no secret.
_PROSE = re.compile(r"keys?|keywords?|\w*(?:error|exception|warning)|\w+_keys", re.IGNORECASE)
_HEADER = re.compile(r"api[-_]?key|passw|secret|(?:access|auth|hf)[-_]?token|authorization|credential", re.IGNORECASE)


def mask(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the values of *TOKEN*, *KEY*, *SECRET* and the like, and without passwords in URLs."""
    return {name: HIDDEN if is_secret(name) and value else mask_text(value) for name, value in environment.items()}


def mask_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command with the value after `--api-key` (or in `--api-key=VALUE`, `TOKEN=VALUE`, JSON, a URL) hidden."""
    shown: list[str] = []
    hide_next = False
    for word in arguments:
        shown.append(HIDDEN if hide_next else _mask_word(word))
        hide_next = word.startswith("-") and "=" not in word and is_secret(word)
    return tuple(shown)


def mask_text(text: str) -> str:
    """The text without values assigned to a secret's name or option, bearer tokens, and passwords in URLs."""
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return text
    text = _SCHEME.sub(rf"\g<scheme> {HIDDEN}", text)
    text = _URL.sub(_without_password, text)
    text = _OPTION.sub(_without_value, text)
    return _ASSIGNED.sub(_without_assigned, text)


def is_secret(name: str) -> bool:
    """Whether an option or variable of this name usually holds a secret."""
    return bool(_SECRET.search(_HARMLESS.sub("", name)))


def _mask_word(word: str) -> str:
    name, equals, _ = word.partition("=")
    return f"{name}={HIDDEN}" if equals and len(name) <= 80 and is_secret(name) else mask_text(word)


def _without_password(found: re.Match[str]) -> str:
    return f"://{HIDDEN}@" if found["user"] is None else f"://{found['user']}:{HIDDEN}@"


def _without_assigned(found: re.Match[str]) -> str:
    """After a colon and without quotes only a header's value is hidden: engines write `#token: 512`."""
    name, value = found["name"], found["value"]
    quoted = value[0] in "'\""
    if _PROSE.fullmatch(name) or (found["sign"] == ":" and not quoted and not _HEADER.search(name)):
        return found[0]
    return _without_value(found)


def _without_value(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    if not is_secret(name) or _NO_VALUE.fullmatch(value) or value.lower() in ("bearer", "basic"):
        return found[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{name}{found['sep']}{quote}{HIDDEN}"
