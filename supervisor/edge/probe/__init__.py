"""Asks servers of this host over HTTP: whether they are ready, and for whoever else asks them, by which client."""

from supervisor.edge.probe.client import connectable, local_client
from supervisor.edge.probe.prober import BODY_LIMIT_BYTES, Prober, identity

__all__ = ["BODY_LIMIT_BYTES", "Prober", "connectable", "identity", "local_client"]
