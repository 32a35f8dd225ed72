"""Shows who holds the memory of each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.api.control import Clock
from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.metrics.gpus import DRIVER, FOREIGN, SERVER, UNATTRIBUTED, memory_by_owner
from supervisor.units import format_duration
from supervisor.web.markup import Html, tag

GB = 10**9  # as `sglctl gpus` and all reasons count
OWNERS = (
    (SERVER, "its server"),
    (FOREIGN, "somebody else"),
    (UNATTRIBUTED, "nobody who can be named"),
    (DRIVER, "driver and contexts"),
)


def section(view: GpusView, clock: Clock, *, full: bool) -> Html:
    """All GPUs, or why none can be seen."""
    heading = tag("h2", "GPUs", id="gpus")
    if view.sight == "absent":
        return tag("section", heading, tag("p", "No GPU on this host.", class_="quiet"), aria_labelledby="gpus")
    rows = [_gpu(gpu, clock, full=full) for gpu in view.gpus]
    blind = _blind(view, clock) if view.sight == "blind" else None
    return tag("section", heading, blind, _legend(), tag("ul", *rows, class_="gpus"), aria_labelledby="gpus")


def _blind(view: GpusView, clock: Clock) -> Html:
    since = format_duration(max(0.0, clock.monotonic - view.since))
    return tag("p", f"The driver has not answered for {since}; below is what was seen last.", class_="warning")


def _legend() -> Html:
    items = [tag("li", _swatch(owner), text) for owner, text in OWNERS]
    return tag("ul", *items, class_="legend")


def _swatch(owner: str) -> Html:
    return tag(
        "svg", tag("rect", width=12, height=12, rx=2, class_=f"own-{owner}"), width=12, height=12, aria_hidden="true"
    )


def _gpu(gpu: GpuView, clock: Clock, *, full: bool) -> Html:
    sick = gpu.state in ("quarantined", "lost", "missing")
    head = tag("span", f"GPU {gpu.index}", class_="gpu-name")
    lost = f"{gpu.state}, of {gpu.server}" if gpu.server else gpu.state
    whose = tag("span", lost if sick else gpu.server or gpu.state, class_=f"gpu-state {gpu.state}")
    children = [head, whose, _bar(gpu), tag("span", _used(gpu), class_="gpu-used")]
    if sick or gpu.state == "in-use":
        children.append(tag("p", gpu.reason or "no reason is known", class_="gpu-reason"))
    if gpu.last_xid is not None and gpu.last_xid_at is not None:
        ago = format_duration(max(0.0, clock.monotonic - gpu.last_xid_at))
        children.append(tag("p", f"{gpu.last_xid_text}, {ago} ago", class_="gpu-reason"))
    children += _strangers(gpu, full=full)
    return tag("li", *children, class_="sick" if sick else None)


def _strangers(gpu: GpuView, *, full: bool) -> Iterable[Html]:
    """Who they are is nobody's business over TCP, that they are is everybody's."""
    words = dict(OWNERS)
    for holder in gpu.holders:
        if holder.kind not in (FOREIGN, UNATTRIBUTED) or not holder.bytes:
            continue
        named = full and holder.pid
        who = f"pid {holder.pid} of {holder.user or 'unknown'}: {holder.command}" if named else words[holder.kind]
        yield tag("p", f"{_gb(holder.bytes)} GB held by {who}", class_="gpu-reason")


def _bar(gpu: GpuView) -> Html | None:
    if not gpu.total:
        return None
    held = memory_by_owner(gpu)
    parts, at, words = [], 0.0, []
    for owner, text in OWNERS:
        share = 100 * sum(count for (kind, _), count in held.items() if kind == owner) / gpu.total
        if share > 0:
            parts.append(tag("rect", x=f"{at:.2f}%", width=f"{share:.2f}%", height=14, class_=f"own-{owner}"))
            words.append(f"{share:.0f} % {text}")
            at += share
    return tag("svg", *parts, height=14, class_="memory", role="img", aria_label=", ".join(words) or "empty")


def _used(gpu: GpuView) -> str:
    if gpu.used is None or not gpu.total:
        return "not seen"
    return f"{_gb(gpu.used)} of {_gb(gpu.total)} GB"


def _gb(count: int) -> str:
    return f"{count / GB:.1f}" if count else "0"
