"""Keeps the evidence of an attempt before it is killed: one bundle directory each, never in the way of the kill."""

from supervisor.edge.evidence.keep import Facts, Part, Subject, keep
from supervisor.edge.evidence.store import Bundle, bundles, prune, tar
from supervisor.edge.evidence.unfinished import Finished, finish

__all__ = ["Bundle", "Facts", "Finished", "Part", "Subject", "bundles", "finish", "keep", "prune", "tar"]
