"""Tells Prometheus where the engines' own metrics are, in the format of its HTTP service discovery."""

from __future__ import annotations

import re

import msgspec

from supervisor.api.control import Control
from supervisor.metrics.page import command_facts, engine_metrics
from supervisor.snapshot import ServerSnapshot

_ANYWHERE = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - read from a server's command, not bound by us
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d+)?")


class Target(msgspec.Struct, frozen=True):
    """One engine. The labels come with every series that is scraped from it."""

    targets: tuple[str, ...]
    labels: dict[str, str]


def targets(control: Control, asked_host: str) -> tuple[Target, ...]:
    """The engines whose metrics have answered us in their present attempt.

    `asked_host` is the Host header: an engine that listens everywhere is reached where we were reached.
    """
    found = (_target(control, snapshot, asked_host) for snapshot in control.snapshots())
    return tuple(target for target in found if target is not None)


def _target(control: Control, snapshot: ServerSnapshot, asked_host: str) -> Target | None:
    config = control.config().servers.get(snapshot.name)
    if config is None or not snapshot.port or not _answers(snapshot):
        return None
    facts = command_facts(config.engine, config.command)
    labels = {
        "server": snapshot.name,
        "model": facts.served_name or facts.model_path,
        "gpus": ",".join(map(str, snapshot.gpus)),
        "__metrics_path__": engine_metrics(config.engine).path,
    }
    return Target((f"{_reachable(facts.host, asked_host)}:{snapshot.port}",), labels)


def _answers(snapshot: ServerSnapshot) -> bool:
    """The engine's vote is unknown until its counters have been read."""
    running = snapshot.lifecycle.value in ("running", "draining")
    return running and any(vote.source == "engine" and vote.says != "unknown" for vote in snapshot.votes)


def _reachable(host: str, asked_host: str) -> str:
    if host not in _ANYWHERE:
        return f"[{host}]" if ":" in host and not host.startswith("[") else host
    asked = _HOST.fullmatch(asked_host)
    return asked[1] if asked else "127.0.0.1"
