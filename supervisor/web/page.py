"""The status page as one document, and the part of it that changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from supervisor.api.control import Clock
from supervisor.api.words import under_way_since
from supervisor.core.gpus.views import GpusView
from supervisor.core.lifecycle import GIVEN_UP
from supervisor.core.remedy import with_name
from supervisor.snapshot import ServerSnapshot
from supervisor.web import gpus, servers
from supervisor.web.markup import Child, Html, tag
from supervisor.web.pieces import since, until
from supervisor.web.still import Shown

TITLE = "SGLang Supervisor"
_HELP = "Reasons, evidence and log lines of a serving server are shown over the control socket only: "
_LOOKS_LONG_S = 10.0
NO_TAILS: Mapping[str, str] = MappingProxyType({})


def document(control: Shown, *, full: bool, tails: Mapping[str, str] = NO_TAILS) -> str:
    """The whole page. Without JavaScript it loads itself again every ten seconds."""
    refresh = tag("noscript", tag("meta", http_equiv="refresh", content="10"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", _title(control.snapshots())),
        tag("link", rel="icon", href="/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/style.css"),
        tag("script", src="/app.js", defer=True),
        refresh,
    )
    body = tag(
        "body",
        tag("a", "To the servers", href="#table", class_="skip"),
        tag("p", id="announce", class_="unseen", role="status", aria_live="polite"),
        content(control, full=full, tails=tails),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def content(control: Shown, *, full: bool, tails: Mapping[str, str] = NO_TAILS) -> Html:
    """What is sent again with every change; `tails` are the last lines of logs, for whom may read them."""
    snapshots, clock, view = list(control.snapshots()), control.clock(), control.gpus()
    info = control.daemon_info()
    header = tag(
        "header",
        tag("h1", TITLE),
        tag("p", *_counts(snapshots), class_="counts"),
        tag("p", "as of now", id="live", class_="live", data_state="still"),
    )
    alarms = list(_alarms(snapshots, view, clock))
    attention = tag("ul", *alarms, class_="alarms", aria_label="Needs attention") if alarms else None
    listing = tag("section", tag("h2", "Servers", id="servers", class_="unseen"), servers.table(snapshots, clock))
    each = [servers.details(one, clock, full=full, tail=tails.get(one.name, "")) for one in snapshots]
    main = tag("main", attention, listing, tag("section", *each), gpus.section(view, clock, full=full))
    footer = tag("footer", tag("p", f"version {info.version}, pid {info.pid}"), None if full else _hint(control))
    return tag("div", header, main, footer, id="content", data_now=f"{clock.wall:.1f}", data_title=_title(snapshots))


def _title(snapshots: Sequence[ServerSnapshot]) -> str:
    """The tab tells whether all is well."""
    wanted = [snapshot for snapshot in snapshots if snapshot.goal == "up"]
    ready = sum(snapshot.healthy for snapshot in wanted)
    return f"{ready}/{len(wanted)} serving - {TITLE}"


def _counts(snapshots: list[ServerSnapshot]) -> list[Child]:
    counts: dict[str, int] = {}
    for snapshot in snapshots:
        word = servers.state_word(snapshot)
        counts[word] = counts.get(word, 0) + 1
    return [tag("span", f"{count} {word}", class_=f"count {word.replace(' ', '-')}") for word, count in counts.items()]


def _alarms(snapshots: list[ServerSnapshot], view: GpusView, clock: Clock) -> Iterator[Html]:
    """What somebody should look at now, the worst first."""
    for snapshot in snapshots:
        if snapshot.lifecycle.value in GIVEN_UP and snapshot.goal == "up":
            yield _alarm("bad", snapshot.name, *_given_up(snapshot))
    for gpu in view.gpus:
        if gpu.state in ("quarantined", "lost", "missing"):
            yield tag("li", tag("a", f"GPU {gpu.index}", href="#gpus"), f" {gpu.state}: {gpu.reason}", class_="bad")
    for snapshot in snapshots:
        if servers.is_stalled(snapshot):
            yield _alarm("bad", snapshot.name, *_stalled(snapshot))
    for snapshot in snapshots:
        yield from _warnings(snapshot, clock)
    if view.sight == "blind" and view.gpus:
        words = (" have not been seen for ", since(view.since, clock))
        yield tag("li", tag("a", "The GPUs", href="#gpus"), *words, class_="warning")


def _warnings(snapshot: ServerSnapshot, clock: Clock) -> Iterator[Html]:
    """Of one that may need somebody soon, or has been forgotten."""
    name, state = snapshot.name, snapshot.lifecycle.value
    if state == "starting" and servers.deadline_share(snapshot, clock) >= servers.NEAR:
        yield _alarm("warning", name, "is called stalled in ", until(snapshot.deadline or 0.0, clock), *_more(name))
    elif servers.state_word(snapshot) == "not ready" and not servers.is_stalled(snapshot):
        yield _alarm("warning", name, f"runs and takes no requests ({snapshot.verdict.value})", *_more(name))
    elif snapshot.healthy and snapshot.verdict.value == "degraded":
        yield _alarm("warning", name, "serves, and is degraded", *_more(name))
    elif servers.state_word(snapshot) == "checking" and snapshot.goal == "up" and _looks_long(snapshot, clock):
        since_ = since(under_way_since(snapshot), clock)
        why = tag("code", f"sglctl why {name}")
        yield _alarm("warning", name, "has waited ", since_, " for its devices and ports: ", why, " tells who has them")
    elif state == "stopped" and snapshot.goal == "up" and snapshot.maintenance is not None:
        resume = tag("code", f"sglctl resume {name}")
        yield _alarm("warning", name, "is down, wanted up and paused: it starts with ", resume)


def _looks_long(snapshot: ServerSnapshot, clock: Clock) -> bool:
    """Mostly all is free at the second look; what is not may be somebody's for the rest of the night."""
    return clock.monotonic - under_way_since(snapshot) >= _LOOKS_LONG_S


def _given_up(snapshot: ServerSnapshot) -> Iterator[Child]:
    """Why, what to change, and what to type then: nothing more happens by itself."""
    name, found = snapshot.name, snapshot.diagnosis
    if found and found.cause:
        yield f"{snapshot.lifecycle.value}, wanted up: {found.cause}. {with_name(found.remedy, name)} Then "
        yield from (tag("code", f"sglctl start {name}"), "; more tells ", tag("code", f"sglctl why {name}"), ".")
    else:
        yield from (f"{snapshot.lifecycle.value}, wanted up; why tells ", tag("code", f"sglctl why {name}"), ".")


def _stalled(snapshot: ServerSnapshot) -> list[Child]:
    """Where, as far as the start tells."""
    where = f"stalled in {snapshot.start.phase}" if snapshot.start and snapshot.ready_since is None else "stalled"
    laggard = f": {snapshot.start.laggard}" if snapshot.start and snapshot.start.laggard else ""
    return [f"{where}{laggard}", *_more(snapshot.name)]


def _more(name: str) -> tuple[Child, ...]:
    """The next command."""
    return "; more tells ", tag("code", f"sglctl why {name}")


def _alarm(kind: str, name: str, *words: Child) -> Html:
    return tag("li", tag("a", name, href=f"#server-{name}"), " ", *words, class_=kind)


def _hint(control: Shown) -> Html:
    socket = control.config().daemon.socket
    return tag("p", _HELP, tag("code", f"ssh -L 9878:{socket} HOST"), ", then http://localhost:9878/")
