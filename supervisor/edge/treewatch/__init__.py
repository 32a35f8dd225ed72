"""Watches the processes of one tree: how much they move, what state they are in, and who of them dies."""

from supervisor.edge.treewatch.roles import Rules
from supervisor.edge.treewatch.watch import Member, TreeWatch

__all__ = ["Member", "Rules", "TreeWatch"]
