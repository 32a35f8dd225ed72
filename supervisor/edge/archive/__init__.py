"""Moves what has been read of a growing log into compressed segments, without losing or doubling a byte."""

from supervisor.edge.archive.reading import log_bytes
from supervisor.edge.archive.retention import Kept, Removed, free_oldest, prune
from supervisor.edge.archive.segments import Segment, attempt_of, live_attempts, live_path, newest_attempt, segments
from supervisor.edge.archive.writing import LogArchive, can_punch, finish

__all__ = [
    "Kept",
    "LogArchive",
    "Removed",
    "Segment",
    "attempt_of",
    "can_punch",
    "finish",
    "free_oldest",
    "live_attempts",
    "live_path",
    "log_bytes",
    "newest_attempt",
    "prune",
    "segments",
]
