"""Tells whoever hands requests out which servers may have some: a gateway, a webhook's receiver, or nginx."""

from supervisor.edge.router.client import gateway_client
from supervisor.edge.router.gateway import Gateway
from supervisor.edge.router.nginx import Reloaded, UpstreamFile
from supervisor.edge.router.parts import Listed, Router, Trouble, Worker
from supervisor.edge.router.receiver import Receiver

__all__ = ["Gateway", "Listed", "Receiver", "Reloaded", "Router", "Trouble", "UpstreamFile", "Worker", "gateway_client"]
