"""`sglsup demo`: a daemon and two fake servers, one of which stalls, is explained, killed and restarted."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the demo; its exit status. Imported late: the keeper, which imports this package as well, stays small."""
    from supervisor.demo.command import main as run_command

    return run_command(arguments)
