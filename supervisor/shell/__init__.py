"""Carries events to the cores and their actions to the edges: the part that waits."""
