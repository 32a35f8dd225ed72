"""Shows the servers: a table of all, and for each how its start goes, what went wrong before, what it said last."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.api.control import Clock
from supervisor.api.words import State, stage_words, state_of, under_way_since
from supervisor.core import outlook
from supervisor.core.lifecycle import GIVEN_UP
from supervisor.core.outlook import progress
from supervisor.snapshot import RankView, ServerSnapshot, StartupView
from supervisor.web.incidents import incidents
from supervisor.web.lanes import lanes
from supervisor.web.markup import Child, Html, tag
from supervisor.web.pieces import preformatted, quoted, since, until
from supervisor.web.stages import COLOURS, colour_of, stages

LINES = 16
REASON_MAX = 1000
_SYMBOLS = {
    "running": "●",
    "starting": "◐",
    "draining": "◑",
    "stopping": "◑",
    "reclaiming": "◌",
    "backoff": "↻",
    "fatal": "✕",
    "quarantined": "⊘",
    "stopped": "○",
}
NEAR = 0.75  # of the patience with silence


def table(snapshots: list[ServerSnapshot], clock: Clock) -> Html:
    """All servers at a glance."""
    heads = ("Server", "State", "What it does", "Ready", "GPUs", "Restarts")
    head = tag("tr", *(tag("th", text, scope="col") for text in heads))
    rows = [_row(snapshot, clock) for snapshot in snapshots]
    if not rows:
        return tag("p", "No server is configured.", class_="quiet")
    caption = tag("caption", "All servers", class_="unseen")
    return tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="servers", id="table")


def _row(snapshot: ServerSnapshot, clock: Clock) -> Html:
    name = snapshot.name
    return tag(
        "tr",
        tag("th", tag("a", name, href=f"#server-{name}"), scope="row"),
        _cell("State", badge(snapshot)),
        _cell("What it does", *_doing(snapshot, clock)),
        _cell("Ready", _ready(snapshot, clock)),
        _cell("GPUs", _span_of(snapshot.gpus) or "none"),
        _cell("Restarts", _restarts(snapshot)),
        id=f"row-{name}",
        data_server=name,
        data_state=state_word(snapshot),
    )


def _cell(label: str, *children: Child) -> Html:
    """The label is shown on narrow screens, where a row becomes a card."""
    return tag("td", tag("span", label, class_="label"), tag("div", *children), class_="cell")


def state_word(snapshot: ServerSnapshot) -> str:
    """The lifecycle in a word; of one that waits for its turn, looks for devices or cannot be used, that."""
    state = snapshot.lifecycle.value
    if state == "reclaiming":
        return "waiting" if snapshot.turn else "checking"
    if state_of(snapshot) is State.EXITED:
        return "exited"  # as `sglctl status` calls what is down although it is wanted up
    if state != "running" or snapshot.healthy:
        return state
    return "not ready"


def badge(snapshot: ServerSnapshot) -> Html:
    """State as symbol, word and colour: none of them alone."""
    word = state_word(snapshot)
    symbol = tag("span", _SYMBOLS.get(snapshot.lifecycle.value, "?"), aria_hidden="true")
    return tag("span", symbol, " ", word, class_=f"badge {word.replace(' ', '-')}")


def _doing(snapshot: ServerSnapshot, clock: Clock) -> list[Child]:
    """In words; first of all what holds it up from outside."""
    paused = snapshot.maintenance
    note = [tag("span", "paused for ", since(paused.since, clock), class_="note-line")] if paused else []
    return [*note, *_at_work(snapshot, clock)]


def _at_work(snapshot: ServerSnapshot, clock: Clock) -> list[Child]:
    match snapshot.lifecycle.value:
        case "starting" if snapshot.start is not None:
            return _starting(snapshot, snapshot.start, clock)
        case "running":
            return [snapshot.verdict.value, " for ", since(snapshot.verdict.since, clock)]
        case "reclaiming" if snapshot.turn:
            return ["waiting ", since(snapshot.lifecycle.since, clock), " ", snapshot.turn.removeprefix("waits ")]
        case "reclaiming":
            return ["its devices and ports for ", since(under_way_since(snapshot), clock)]
        case "backoff" if snapshot.backoff_until is not None:
            return [*_cause_of(snapshot), "next start in ", until(snapshot.backoff_until, clock)]
        case "fatal" | "quarantined":
            return [*_cause_of(snapshot), "given up ", since(snapshot.lifecycle.since, clock), " ago"]
        case "stopped" if not snapshot.attempt:
            return ["not started yet"]
        case "stopped":
            return ["for ", since(snapshot.lifecycle.since, clock)]
        case _:
            stalled = [tag("b", "stalled", class_="slow-note"), ", "] if is_stalled(snapshot) else []
            stage = stage_words(snapshot.stop_stage)
            return [*stalled, f"{stage} for " if stage else "for ", since(snapshot.lifecycle.since, clock)]


def is_stalled(snapshot: ServerSnapshot) -> bool:
    """Whether the attempt was found without progress, and lives."""
    return snapshot.verdict.value == "stalled" and snapshot.lifecycle.value in ("starting", "running", "stopping")


def _starting(snapshot: ServerSnapshot, start: StartupView, clock: Clock) -> list[Child]:
    ready = start.phase == outlook.SERVING
    said: list[Child] = [tag("b", "ready by its log" if ready else start.phase), " for ", since(start.since, clock)]
    if ready:
        said.append(f", but no probe at port {snapshot.port} has succeeded")  # why is a reason, and may quote the log
    if (ratio := progress(start)) is not None:
        said.append(_progress(snapshot.engine, start.phase, ratio))
    if slow := start.lagging:
        more = f" and {len(slow) - 4} more" if len(slow) > 4 else ""
        said += [tag("span", "slow: ", ", ".join(slow[:4]), more, class_="slow-note"), " "]
    if snapshot.deadline is not None and snapshot.last_progress is not None:
        near = deadline_share(snapshot, clock) >= NEAR
        told = ("silent for ", since(snapshot.last_progress, clock), ", stalled in ", until(snapshot.deadline, clock))
        said.append(tag("span", *told, class_="deadline near" if near else "deadline"))
    return said


def deadline_share(snapshot: ServerSnapshot, clock: Clock) -> float:
    """How much of the patience with its silence is used; 0 when there is no deadline."""
    if snapshot.deadline is None or snapshot.last_progress is None:
        return 0.0
    patience_s = snapshot.deadline - snapshot.last_progress
    return (clock.monotonic - snapshot.last_progress) / patience_s if patience_s > 0 else 1.0


def _progress(engine: str, phase: str, ratio: float) -> Html:
    bar = tag("rect", width=f"{100 * ratio:.1f}%", height=8, rx=4, class_=f"c{colour_of(engine, phase)}")
    groove = tag("rect", width="100%", height=8, rx=4, class_="groove")
    picture = tag("svg", groove, bar, height=8, class_="progress", role="img", aria_label=f"{ratio:.0%}")
    return tag("span", picture, tag("span", f"{ratio:.0%}", class_="percent"), class_="with-progress")


def _cause_of(snapshot: ServerSnapshot) -> list[Child]:
    cause = snapshot.diagnosis.cause if snapshot.diagnosis else ""
    return [tag("b", cause), ", "] if cause else []


def _ready(snapshot: ServerSnapshot, clock: Clock) -> Child:
    if snapshot.ready_since is not None and snapshot.healthy:
        return tag("span", "for ", since(snapshot.ready_since, clock))
    at = outlook.ready_at(snapshot, clock.monotonic)
    if at is not None:
        late = at <= clock.monotonic
        return tag("span", "any moment" if late else "in about ", None if late else until(at, clock))
    if outlook.overdue(snapshot, clock.monotonic):
        return "overdue"
    return tag("span", "first start" if snapshot.lifecycle.value == "starting" else "no", class_="quiet")


def _restarts(snapshot: ServerSnapshot) -> Child:
    if not snapshot.restarts:
        return "0"
    if snapshot.lifecycle.value in GIVEN_UP:
        return str(snapshot.restarts)  # nobody uses what is left of the budget
    return f"{snapshot.restarts} ({snapshot.budget_remaining} left)"


def _span_of(gpus: tuple[int, ...]) -> str:
    """0-3, 6 of 0, 1, 2, 3, 6."""
    parts: list[list[int]] = []
    for gpu in sorted(gpus):
        if parts and gpu == parts[-1][-1] + 1:
            parts[-1].append(gpu)
        else:
            parts.append([gpu])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


# --- one server ------------------------------------------------------------------------------------------------------


def details(snapshot: ServerSnapshot, clock: Clock, *, full: bool, tail: str = "") -> Html:
    """Everything else about one server; open when there is something to look at."""
    quiet = snapshot.lifecycle.value in ("running", "stopped") and snapshot.healthy == (snapshot.goal == "up")
    summary = tag("summary", tag("h3", snapshot.name), badge(snapshot), _attempt(snapshot))
    parts = [
        _reason(snapshot) if full else None,
        _timeline(snapshot, clock),
        _tail(tail) if full and tail else _lines(snapshot) if snapshot.lifecycle.value == "starting" else None,
        incidents(snapshot, clock, full=full),
    ]
    body = parts if any(parts) else [tag("p", *_nothing_more(snapshot), class_="quiet")]
    return tag("details", summary, *body, id=f"server-{snapshot.name}", class_="server", open=not quiet)


def _nothing_more(snapshot: ServerSnapshot) -> Iterator[Child]:
    """In the place of a story: there is none yet, or this reader may not have it."""
    if snapshot.lifecycle.value == "stopped" and not snapshot.attempt:
        yield "It has not been started yet."
        return
    cause = f" ({snapshot.diagnosis.cause})" if snapshot.diagnosis is not None else ""
    told = {"waiting": "Its turn to start has not come", "checking": "Its devices and ports are being looked at"}
    yield f"{told.get(state_word(snapshot), f'It is {state_word(snapshot)}{cause}')}. Why, "
    yield from (tag("code", f"sglctl why {snapshot.name}"), " tells on the host.")


def _attempt(snapshot: ServerSnapshot) -> Html | None:
    return tag("span", f"attempt {snapshot.attempt}", class_="quiet") if snapshot.attempt else None


def _reason(snapshot: ServerSnapshot) -> Html | None:
    reason = snapshot.lifecycle.reason
    return tag("p", quoted(reason, REASON_MAX), class_="reason") if reason else None


def _timeline(snapshot: ServerSnapshot, clock: Clock) -> Html | None:
    drawn = lanes(snapshot, clock)
    if drawn is None:
        return None
    title = "This start" if snapshot.lifecycle.value == "starting" else "Last start"
    return tag("div", tag("h4", title), _headline(snapshot, clock), drawn, _legend(snapshot), class_="start")


def _headline(snapshot: ServerSnapshot, clock: Clock) -> Html | None:
    """The laggard and the deadline in one sentence."""
    start = snapshot.start
    if start is None or not (snapshot.lifecycle.value == "starting" or is_stalled(snapshot)):
        return None
    said: list[Child] = [start.laggard, ". "] if start.laggard else []
    if snapshot.deadline is not None and snapshot.lifecycle.value == "starting":
        said += ["Called stalled in ", tag("b", until(snapshot.deadline, clock)), " unless something moves. "]
    return tag("p", *said, class_="headline") if said else None


def _legend(snapshot: ServerSnapshot) -> Html:
    start, engine = snapshot.start, snapshot.engine
    seen = {colour_of(engine, span.phase) for span in start.timeline} if start else set[int]()
    seen |= {colour_of(engine, phase.phase) for phase in outlook.usual(snapshot)}
    items = [_swatch(f"bar c{at}", name) for at, name in enumerate(stages(engine)[:COLOURS]) if at in seen]
    if outlook.usual(snapshot):
        items.append(_swatch("ghost c3", "pale: the usual start"))
    if snapshot.lifecycle.value == "starting":
        items.append(_line("now-line", "now"))
        items += [_line("ready-line", "ready, as usual")] if outlook.usual(snapshot) else []
        items += [_line("deadline-line", "called stalled")] if snapshot.deadline is not None else []
    return tag("ul", *items, class_="legend", aria_hidden="true")


def _swatch(kind: str, text: str) -> Html:
    return tag("li", tag("svg", tag("rect", width=12, height=12, rx=2, class_=kind), width=12, height=12), text)


def _line(kind: str, text: str) -> Html:
    return tag("li", tag("svg", tag("line", x1=6, x2=6, y1=0, y2=12, class_=kind), width=12, height=12), text)


def _tail(text: str) -> Html:
    """Whatever the log says, for whom may read it anyway."""
    cut = "\n".join(quoted(line) for line in text.split("\n"))
    return tag("div", tag("h4", "Last lines of its log"), preformatted(cut), class_="lines")


def _lines(snapshot: ServerSnapshot) -> Html | None:
    """The last line of each rank that told of the start: nothing that users send can be among them."""
    ranks = [rank for rank in snapshot.start.ranks if rank.last_line][:LINES] if snapshot.start else []
    if not ranks:
        return None
    text = "\n".join(_said(rank) for rank in ranks)
    return tag("div", tag("h4", "Last recognised lines"), preformatted(text), class_="lines")


def _said(rank: RankView) -> str:
    return quoted(rank.last_line)
