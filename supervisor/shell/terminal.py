"""Draws servers on a terminal: their phases, a bar per rank, silence against the deadline.

`draw` is a function of what the control socket answers; `Board` repaints it in place below the lines that stay. A frame
is written in one piece and over the last one, never erased first: an erased frame is what the eye sees as flicker.
rich only styles and measures text here; whoever has no terminal should not import this module: rich is large
(`python -m bench.prices rich.console`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from types import TracebackType
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from supervisor.api import wire
from supervisor.lines import printable
from supervisor.units import format_duration, format_tenths

RANKS_MAX = 16
PAIRED_RANKS = 3  # from so many ranks on they stand in two columns
_RATIO_CELLS = 24
_RANK_CELLS = 8
_CELL_WIDTH_MAX = 46
_STATES = {
    "RUNNING": "bold green",
    "STARTING": "bold cyan",
    "STOPPING": "bold yellow",
    "BACKOFF": "bold yellow",
    "FATAL": "bold red",
    "EXITED": "yellow",
}
_BAD = ("stalled", "dead", "degraded")
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output, ignored where it is unknown
_HIDE_CURSOR, _SHOW_CURSOR, _ERASE_BELOW, _ERASE_REST = "\x1b[?25l", "\x1b[?25h", "\x1b[J", "\x1b[K"


class Glyphs(NamedTuple):
    """What bars and marks are made of."""

    full: str
    empty: str
    done: str
    now: str
    more: str
    dot: str


FINE = Glyphs("━", "─", "✓", "▸", "…", "·")
PLAIN = Glyphs("#", "-", "ok", ">", "~", "-")


def glyphs_for(encoding: str) -> Glyphs:
    """Line drawing where the encoding has it."""
    try:
        "".join(FINE).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return FINE


class Step(NamedTuple):
    """One phase of the whole start: from the first rank's entry to the last one's leaving."""

    phase: str
    seconds: float
    ended: bool


def steps(start: wire.Startup) -> list[Step]:
    """The phases that this start has gone through, in order of entry.

    The launcher's own spans last beside those of the ranks, so they count only before there are any.
    """
    of_ranks = [span for span in start.timeline if span.rank] or start.timeline
    spans = sorted(of_ranks, key=lambda span: span.phase)
    grouped = [list(group) for _, group in groupby(spans, key=lambda span: span.phase)]
    grouped.sort(key=lambda group: min(span.begin for span in group))
    return [_step(group) for group in grouped]


def _step(spans: list[wire.Span]) -> Step:
    begins = [_moment(span.begin) for span in spans]
    ends = [begin + span.seconds for begin, span in zip(begins, spans, strict=True)]
    return Step(spans[0].phase, max(ends) - min(begins), all(span.end is not None for span in spans))


def finished(start: wire.Startup) -> dict[str, float]:
    """The ranks that are through with the phase the start is in, and how many seconds each took for it."""
    return {span.rank: span.seconds for span in start.timeline if span.phase == start.phase and span.end is not None}


# --- one frame -------------------------------------------------------------------------------------------------------


def draw(
    servers: Sequence[wire.Server], width: int, glyphs: Glyphs = FINE, notes: Mapping[str, str] | None = None
) -> list[Text]:
    """The frame, one Text a line, none wider than `width`. `notes` are the caller's words for a server's first line."""
    lines = [Text()]
    for server in servers:
        lines += [*_server(server, width, glyphs, (notes or {}).get(server.name, "")), Text()]
    for line in lines:
        line.truncate(width, overflow="ellipsis" if glyphs is FINE else "crop")
    return lines


def _server(server: wire.Server, width: int, glyphs: Glyphs, note: str) -> Iterator[Text]:
    yield _head(server, glyphs, note)
    start = server.start
    match server.lifecycle.value:
        case "starting" if start is not None:
            yield _trail(start, width, glyphs)
            yield _now(server, start, glyphs)
            yield from _ranks(start, width, glyphs)
        case "running":
            yield _serving(server, glyphs)
        case _:
            style = "red" if server.verdict.value in _BAD and server.goal == "up" else ""
            yield Text(f"  {printable(_under_way(server))}", style)


def _head(server: wire.Server, glyphs: Glyphs, note: str) -> Text:
    line = Text(printable(server.name), "bold")
    line.append("  ").append(server.state, _STATES.get(server.state, "bold"))
    facts = [f"attempt {server.attempt}" if server.attempt else "", f"pid {server.pid}" if server.pid else ""]
    facts += [f"port {server.port}" if server.port else "", _restarts(server.restarts), note]
    return line.append("  " + f" {glyphs.dot} ".join(fact for fact in facts if fact), "dim")


def _restarts(count: int) -> str:
    return "" if count == 0 else f"{count} restart{'' if count == 1 else 's'}"


def _trail(start: wire.Startup, width: int, glyphs: Glyphs) -> Text:
    """Phases gone through with their seconds; the newest ones when not all fit."""
    past = [step for step in steps(start) if step.phase != start.phase]
    parts = [Text(f"{step.phase} {format_tenths(step.seconds)}", "green") for step in past]
    parts.append(Text(f"{glyphs.now} {start.phase}", "bold cyan"))
    room, kept = width - 5, [parts.pop()]
    while parts and sum(part.cell_len + 2 for part in kept) + parts[-1].cell_len <= room:
        kept.insert(0, parts.pop())
    line = Text(f"  {glyphs.more} " if parts else "  ", "dim")
    return line.append_text(Text("  ").join(kept))


def _now(server: wire.Server, start: wire.Startup, glyphs: Glyphs) -> Text:
    """How far the phase is, how long it lasts, and how much of the patience with its silence is used up."""
    ratios = [rank.progress.ratio for rank in start.ranks if rank.phase == start.phase and rank.progress is not None]
    line = Text("  ").append_text(_bar(min(ratios) if ratios else None, _RATIO_CELLS, "cyan", glyphs))
    line.append(f" {min(ratios):4.0%}" if ratios else "     ").append(f" in {format_duration(start.seconds)}")
    silent_s = start.last_progress_ago_s
    if server.deadline_in_s is None or silent_s is None:
        return line
    patience_s = max(0.001, silent_s + server.deadline_in_s)
    used = silent_s / patience_s
    style = "red" if used > 0.75 else "yellow" if used > 0.4 else "green"
    line.append("   silent ").append_text(_bar(used, _RANK_CELLS, style, glyphs))
    return line.append(f" {format_tenths(silent_s)} of {format_duration(patience_s)}", style)


def _ranks(start: wire.Startup, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """The slowest ranks' lines, in the order of their numbers; nothing for a lone rank, the line above is its own."""
    if len(start.ranks) < 2:
        return
    done = finished(start)
    shown = sorted(start.ranks, key=lambda rank: rank.phase == start.phase and rank.rank in done)[:RANKS_MAX]
    kept = [rank for rank in start.ranks if rank in shown]
    columns = 2 if len(kept) >= PAIRED_RANKS else 1
    pads = max(len(rank.rank) for rank in kept), max(len(rank.phase) for rank in kept)
    cells = [_rank(rank, done.get(rank.rank) if rank.phase == start.phase else None, pads, glyphs) for rank in kept]
    rows = -(-len(cells) // columns)
    cell_width = min(_CELL_WIDTH_MAX, (width - 2) // columns)
    for row in range(rows):
        line = Text("  ")
        for cell in cells[row::rows]:
            cell.truncate(cell_width - 1, pad=True)
            line.append_text(cell).append(" ")
        line.rstrip()
        yield line
    if len(start.ranks) > len(kept):
        yield Text(f"  and {len(start.ranks) - len(kept)} more ranks", "dim")


def _rank(rank: wire.Rank, done_s: float | None, pads: tuple[int, int], glyphs: Glyphs) -> Text:
    """Not every rank prints a bar: one without shows what is known, that it is in its phase, or through with it."""
    line = Text(f"{rank.rank:<{pads[0]}} {rank.phase:<{pads[1]}} ")
    if done_s is not None:
        line.append_text(_bar(1.0, _RANK_CELLS, "green", glyphs))
        return line.append(f" {glyphs.done} {format_tenths(done_s)}", "green")
    line.append_text(_bar(rank.progress.ratio if rank.progress else None, _RANK_CELLS, "cyan", glyphs))
    return line.append(f" {format_tenths(rank.seconds)}")


def _bar(ratio: float | None, cells: int, style: str, glyphs: Glyphs) -> Text:
    """None: under way, nobody knows how far."""
    if ratio is None:
        return Text(glyphs.dot * cells, "dim")
    full = round(min(1.0, max(0.0, ratio)) * cells)
    return Text(glyphs.full * full, style).append(glyphs.empty * (cells - full), "dim")


def _serving(server: wire.Server, glyphs: Glyphs) -> Text:
    verdict = server.verdict
    line = Text("  ")
    if verdict.value in _BAD:
        return line.append(f"{verdict.value}: {printable(verdict.reason)}", "red")
    up = format_duration(server.uptime_s or 0.0)
    line.append(f"{glyphs.done} {'healthy' if server.healthy else 'not ready'}, {verdict.value}, up {up}")
    return line.append(f"   {printable(server.lifecycle.reason)}", "dim")


def _under_way(server: wire.Server) -> str:
    reason = server.lifecycle.reason
    if server.backoff_s is not None:
        return f"next start in {format_duration(server.backoff_s)}: {reason}"
    what = "checking" if server.lifecycle.value == "reclaiming" else server.lifecycle.value  # devices and ports
    return f"{what}: {reason}" if reason else what


def _moment(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


# --- the place where frames appear -----------------------------------------------------------------------------------


class Board:
    """The lower part of a terminal, repainted in place; lines said above it stay and scroll away as usual."""

    def __init__(self, console: Console, notes: Mapping[str, str] | None = None) -> None:
        self._console = console
        self._glyphs = glyphs_for(console.encoding)
        self._notes = notes or {}
        self._frame: list[str] = []

    def __enter__(self) -> Board:
        self._write(_HIDE_CURSOR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last frame stays; the cursor is below it."""
        self._write(_SHOW_CURSOR)

    def show(self, servers: Sequence[wire.Server]) -> None:
        """Paint the frame where the last one was."""
        size = self._console.size
        drawn = draw(servers, size.width - 1, self._glyphs, self._notes)
        self._paint([], [self._styled(line) for line in drawn[: max(1, size.height - 2)]])

    def say(self, *lines: Text) -> None:
        """Lines that stay, above the frame."""
        self._paint([self._styled(line) for line in lines], self._frame)

    def clear(self) -> None:
        """Take the frame away: what is said next follows the lines above it."""
        self._paint([], [])

    def _styled(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", soft_wrap=True, highlight=False)
        return capture.get()

    def _paint(self, above: list[str], frame: list[str]) -> None:
        if not above and frame == self._frame:
            return
        up = f"\x1b[{len(self._frame)}A" if self._frame else ""
        body = "".join(f"{line}{_ERASE_REST}\n" for line in [*above, *frame])
        self._write(f"{_BEGIN_FRAME}\r{up}{body}{_ERASE_BELOW}{_END_FRAME}")
        self._frame = frame

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()
