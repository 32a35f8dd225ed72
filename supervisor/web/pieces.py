"""Small pieces that several parts of the page are made of: times that go on, quoted lines without secrets."""

from __future__ import annotations

from supervisor.api.control import Clock
from supervisor.config import mask_text
from supervisor.units import format_duration
from supervisor.web.markup import Html, tag

LINE_MAX = 200


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


def quoted(text: str, limit: int = LINE_MAX) -> str:
    """The beginning of a text from a log, without secrets: an engine prints its arguments."""
    return mask_text(text[: 2 * limit])[:limit]
