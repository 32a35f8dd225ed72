"""Writes down what a replay found: for people at a terminal, and as values for machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from supervisor.core.log.stamps import text
from supervisor.core.replay.comparison import Mark, Row
from supervisor.core.replay.relive import Life, PhaseStretch
from supervisor.core.replay.review import Section
from supervisor.units import format_duration

_SIGNS = {Mark.SAME: "=", Mark.MOVED: "~", Mark.THEN: "-", Mark.NOW: "+"}
_LEGEND = "= decided then and now   ~ at another moment   - only then   + only now   times are UTC\n"


class ServerReplay(msgspec.Struct, frozen=True):
    """One server of a journal. `settings` says what it was judged by, `configured` whether a file had it."""

    name: str
    engine: str
    settings: str
    sections: tuple[Section, ...]
    configured: bool = True

    @property
    def differences(self) -> int:
        """Decisions that were not the same ones."""
        return sum(row.mark is not Mark.SAME for section in self.sections for row in section.rows)


class JournalReplay(msgspec.Struct, frozen=True):
    """A whole journal. `lost` rows were never written, `unknown` ones are of kinds that this version does not know."""

    journal: str
    servers: tuple[ServerReplay, ...]
    lost: int = 0
    unknown: int = 0

    @property
    def differences(self) -> int:
        """Over all servers."""
        return sum(server.differences for server in self.servers)


class LogReplay(msgspec.Struct, frozen=True):
    """A server's log. `stamp` shows the form of its times."""

    log: str
    engine: str
    settings: str
    stamp: str
    lives: tuple[Life, ...]

    @property
    def condemned(self) -> int:
        """Attempts that today's rules would have ended."""
        return sum(life.charge is not None for life in self.lives)


# --- journals ----------------------------------------------------------------------------------------------------


def journal_page(replay: JournalReplay) -> str:
    """For people."""
    lines = [line for server in replay.servers for line in _server(server)]
    return "\n".join([*_caveat(replay), *_holes(replay), _LEGEND, *lines])


def _caveat(replay: JournalReplay) -> Iterator[str]:
    """The journal has no settings: what was decided by a file's differs from what the engine's own lead to."""
    names = [server.name for server in replay.servers if not server.configured]
    if names:
        whose = ", ".join(names)
        yield f"{whose}: judged without the settings of your file, which explains differences: give it with -c FILE"


def _holes(replay: JournalReplay) -> Iterator[str]:
    if replay.lost:
        yield f"{replay.lost} rows were lost when the journal could not be written: differences may come from that"
    if replay.unknown:
        yield f"{replay.unknown} rows of kinds that this version does not know were left out"


def _server(server: ServerReplay) -> Iterator[str]:
    count = server.differences
    verdict = "no difference" if not count else f"{count} difference{'s' if count > 1 else ''}"
    yield f"{server.name}: {verdict}  (engine {server.engine}, {server.settings})"
    for section in server.sections:
        yield from _section(section)
    yield ""


def _section(section: Section) -> Iterator[str]:
    yield f"  {section.began.date}  {_attempts(section)}"
    for row in section.rows:
        if not (row.daily and row.mark is Mark.SAME):
            yield f"  {_SIGNS[row.mark]} {_row(row, section.began.at)}"
    if section.note:
        yield f"    → {section.note}"


def _attempts(section: Section) -> str:
    numbers = {row.attempt for row in section.rows if row.attempt and row.what.startswith("spawn")} or {section.attempt}
    first, last = min(numbers), max(numbers)
    if not last:
        return "never started"
    return f"attempt {last}" if first == last else f"attempts {first} to {last}"


def _row(row: Row, begin: float) -> str:
    moved = ""
    if row.mark is Mark.MOVED:
        moved = f"now {abs(row.later_s):.1f} s {'later' if row.later_s > 0 else 'earlier'}" + (row.reason and ": ")
    words = f"{row.what}: {moved}{row.reason}".removesuffix(": ") if moved or row.reason else row.what
    return f"{row.moment.at - begin:9.1f} s  {row.moment.clock}  {words}"


def journal_json(replay: JournalReplay) -> bytes:
    """For machines."""
    servers = [msgspec.structs.asdict(one) | {"differences": one.differences} for one in replay.servers]
    return _json(msgspec.structs.asdict(replay) | {"servers": servers, "differences": replay.differences})


# --- logs --------------------------------------------------------------------------------------------------------


def log_page(replay: LogReplay) -> str:
    """For people."""
    lines = [f"{replay.log}: {_condemned(replay)}  (engine {replay.engine}, {replay.settings})"]
    for life in replay.lives:
        lines += _life(life, replay.stamp)
    return "\n".join(lines) + "\n"


def _condemned(replay: LogReplay) -> str:
    if not replay.condemned:
        return "nothing that today's rules would have ended"
    whole = f" of {len(replay.lives)}" if len(replay.lives) > 1 else ""
    return f"today's rules would have ended {replay.condemned}{whole} attempt{'s' if len(replay.lives) > 1 else ''}"


def _life(life: Life, stamp: str) -> Iterator[str]:
    yield f"  attempt {life.attempt}, from line {life.line}, {text(life.begin, stamp)}: {_outcome(life)}"
    yield "      begins  phase                  lasts  longest silence  allowed  at most"
    for phase in life.phases:
        yield _stretch(phase, life.begin)
    if life.charge is not None:
        after_s = life.charge.at - life.begin
        yield f"    ✗ {after_s:7.0f} s  {text(life.charge.at, stamp)}  {life.charge.reason}"
        yield f"      {_went_on(life.charge.went_on_s)}"
    elif life.deadline is not None:
        yield f"      silence would be called a stall at {text(life.deadline, stamp)}"


def _outcome(life: Life) -> str:
    if life.ready is not None:
        return f"ready after {format_duration(life.ready - life.begin)}"
    return f"not ready after {format_duration(life.end - life.begin)}"


def _went_on(went_on_s: float | None) -> str:
    if went_on_s is None:
        return "and the log does not move again"
    return f"but the log moves again {format_duration(went_on_s)} later: this patience was too short for this start"


def _stretch(phase: PhaseStretch, begin: float) -> str:
    allowed, limit = _seconds(phase.allowed_s), _seconds(phase.limit_s)
    head = f"  {phase.begin - begin:8.0f} s  {phase.phase:<18}{phase.seconds:8.0f} s"
    return f"{head}  {phase.longest_silence_s:13.0f} s  {allowed:>7}  {limit:>7}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def log_json(replay: LogReplay) -> bytes:
    """For machines: seconds count from each attempt's begin."""
    attempts = [_life_values(life, replay.stamp) for life in replay.lives]
    plain = {"log": replay.log, "engine": replay.engine, "settings": replay.settings}
    return _json(plain | {"condemned": replay.condemned, "attempts": attempts})


class _AttemptValues(msgspec.Struct, frozen=True):
    attempt: int
    line: int
    begin: str
    seconds: float
    ready_s: float | None
    phases: tuple[PhaseStretch, ...]
    charge_s: float | None
    charge: str
    went_on_s: float | None
    deadline_s: float | None


def _life_values(life: Life, stamp: str) -> _AttemptValues:
    def since(at: float | None) -> float | None:
        return None if at is None else at - life.begin

    phases = tuple(msgspec.structs.replace(phase, begin=phase.begin - life.begin) for phase in life.phases)
    charge = life.charge
    return _AttemptValues(
        life.attempt,
        life.line,
        text(life.begin, stamp),
        life.end - life.begin,
        since(life.ready),
        phases,
        since(charge.at) if charge else None,
        charge.reason if charge else "",
        charge.went_on_s if charge else None,
        since(life.deadline),
    )


def _json(values: dict[str, object] | Iterable[object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(values), indent=1) + b"\n"
