"""The journal: every event and action of every server, on disk and in order."""

from supervisor.edge.journal.store import SCHEMA_VERSION, Entry, Retention
from supervisor.edge.journal.writer import Journal, JournalState

__all__ = ["SCHEMA_VERSION", "Entry", "Journal", "JournalState", "Retention"]
