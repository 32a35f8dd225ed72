"""Looks at the GPUs through a process that may hang, and is then given up."""
