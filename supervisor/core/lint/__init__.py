"""Judges a start before it happens: what was found out about it goes in, findings for people come out."""

from supervisor.core.lint.judge import Finding, lint, worst

__all__ = ["Finding", "lint", "worst"]
