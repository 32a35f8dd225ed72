"""Takes the shell out of a server's command where that is safe, and says so where it is not."""

from __future__ import annotations

import msgspec

from supervisor.config import LimitsConfig
from supervisor.convert.draft import Draft
from supervisor.convert.shell import Opaque, Plain, unwrapped


def without_shell(draft: Draft) -> Draft:
    """The draft with the engine's own command, or with the shell and what that means."""
    config = draft.config
    match unwrapped(config.command, config.environment, config.directory):
        case None:
            return draft
        case Opaque(reason):
            return draft.losing(
                f"command: it stays a shell's: {reason}. The shell gets the stop signal, the engine does not, and"
                " nothing drains: write the engine's own command, or exec before the script's last one"
            )
        case Plain() as plain:
            limits = LimitsConfig(
                nofile=config.limits.nofile if plain.nofile is None else plain.nofile,
                memlock=config.limits.memlock if plain.memlock is None else plain.memlock,
            )
            bare = msgspec.structs.replace(
                config,
                command=plain.command,
                environment=plain.environment,
                directory=plain.directory,
                limits=limits,
            )
            return draft.having(bare).remarking("command: the shell around it is gone", *plain.remarks)
