"""What the control socket says, as types: the one place where snapshots become JSON."""

from supervisor.api.wire.daemon import API_VERSION, Configured, Done, Error, Info, Reread, info
from supervisor.api.wire.journal import Event, Events, Story, event
from supervisor.api.wire.model import Accepted, Rank, Server, Servers, Span, Startup, Waited
from supervisor.api.wire.moments import iso
from supervisor.api.wire.server import diagnosis, server

__all__ = [
    "API_VERSION",
    "Accepted",
    "Configured",
    "Done",
    "Error",
    "Event",
    "Events",
    "Info",
    "Rank",
    "Reread",
    "Server",
    "Servers",
    "Span",
    "Startup",
    "Story",
    "Waited",
    "diagnosis",
    "event",
    "info",
    "iso",
    "server",
]
