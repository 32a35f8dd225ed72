"""Small pieces that several parts of the page are made of: times that go on, quoted lines, hidden secrets."""

from __future__ import annotations

import re

from supervisor.api.control import Clock
from supervisor.config.secrets import HIDDEN, is_secret
from supervisor.units import format_duration
from supervisor.web.markup import Html, tag

LINE_MAX = 200
_NAMED = re.compile(r"([\w-]+)(['\"]?\s*[=:]\s*)(?![({\[])('[^']*'|\"[^\"]*\"|[^\s,)]+)")
_OPTION = re.compile(r"(--[\w-]+)(['\",]*\s+)([^\s-]\S*)")


def since(moment: float, clock: Clock) -> Html:
    """A time that grows while one looks."""
    text = format_duration(max(0.0, clock.monotonic - moment))
    return tag("time", text, data_from=f"{clock.wall_of(moment):.1f}", class_="ticking")


def until(moment: float, clock: Clock) -> Html:
    """A time that shrinks while one looks."""
    text = format_duration(max(0.0, moment - clock.monotonic))
    return tag("time", text, data_until=f"{clock.wall_of(moment):.1f}", class_="ticking")


def length(seconds: float) -> Html:
    """A time that is over: number and unit stay on one line."""
    return tag("span", format_duration(max(0.0, seconds)), class_="length")


def preformatted(text: str) -> Html:
    """Line by line, since line ends inside a text are made blanks."""
    rows = [tag("span", line) for line in text.split("\n")]
    return tag("pre", *rows, tabindex=0, aria_label="log lines")


def mask(text: str) -> str:
    """The text with what looks like a secret hidden: an engine prints its arguments."""
    return _OPTION.sub(_hidden, _NAMED.sub(_hidden, text))


def _hidden(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{HIDDEN}" if is_secret(found[1]) else found[0]
