"""What the control socket says, as types: the one place where snapshots become JSON."""

from supervisor.api.wire.daemon import API_VERSION, Configured, Done, Error, Info, Reread, Updated, info
from supervisor.api.wire.fleet import Group, Groups, Starts, starts
from supervisor.api.wire.journal import Event, Events, event
from supervisor.api.wire.model import Accepted, Brief, Rank, Server, Servers, Span, Startup, Status, Waited
from supervisor.api.wire.moments import iso
from supervisor.api.wire.past import Bundles, Incident, Story, Timeline, bundle, incident, timeline
from supervisor.api.wire.rolling import RollingCancelled, RollingStatus, rolling
from supervisor.api.wire.server import diagnosis, server

__all__ = [
    "API_VERSION",
    "Accepted",
    "Brief",
    "Bundles",
    "Configured",
    "Done",
    "Error",
    "Event",
    "Events",
    "Group",
    "Groups",
    "Incident",
    "Info",
    "Rank",
    "Reread",
    "RollingCancelled",
    "RollingStatus",
    "Server",
    "Servers",
    "Span",
    "Starts",
    "Startup",
    "Status",
    "Story",
    "Timeline",
    "Updated",
    "Waited",
    "bundle",
    "diagnosis",
    "event",
    "incident",
    "info",
    "iso",
    "rolling",
    "server",
    "starts",
    "timeline",
]
