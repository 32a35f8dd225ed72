"""Keeps the evidence of an attempt before it is killed: one bundle directory each, never in the way of the kill."""

from supervisor.edge.evidence.keep import Facts, Part, Subject, keep
from supervisor.edge.evidence.store import Bundle, bundles, prune, tar

__all__ = ["Bundle", "Facts", "Part", "Subject", "bundles", "keep", "prune", "tar"]
