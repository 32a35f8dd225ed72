"""Takes the shell out of a server's command where that is safe, and says so where it is not."""

from __future__ import annotations

from pathlib import Path

import msgspec

from supervisor.config import LimitsConfig, ServerConfig
from supervisor.convert.draft import ConversionError, Draft
from supervisor.convert.files import bytes_of
from supervisor.convert.shell import Opaque, Plain, script_file, understood, unwrapped

SCRIPT_BYTES_MAX = 64 * 1024
_PRICE = (
    "The shell gets the stop signal, the engine does not, and nothing drains: write the engine's own command, or exec"
    " before the script's last one"
)


def without_shell(draft: Draft) -> Draft:
    """The draft with the engine's own command, or with the shell and what that means."""
    config = draft.config
    found, gone = unwrapped(config.command, config.environment, config.directory), "the shell around it is gone"
    file = script_file(config.command, config.directory)
    if file is not None:
        found, gone = _read(draft, file), f"what {file} does today is written out, the file is not used any more"
    match found:
        case None:
            return draft
        case Opaque(reason):
            return draft.losing(f"command: it stays a shell's: {reason}. {_PRICE}")
        case Plain() as plain:
            return draft.having(_bare(draft, plain)).remarking(f"command: {gone}", *plain.remarks)


def _bare(draft: Draft, plain: Plain) -> ServerConfig:
    limits = draft.config.limits
    return msgspec.structs.replace(
        draft.config,
        command=plain.command,
        environment=plain.environment,
        directory=plain.directory,
        limits=LimitsConfig(
            nofile=limits.nofile if plain.nofile is None else plain.nofile,
            memlock=limits.memlock if plain.memlock is None else plain.memlock,
        ),
    )


def _read(draft: Draft, file: Path) -> Plain | Opaque:
    try:
        data = bytes_of(file, SCRIPT_BYTES_MAX)
        text = data.decode()
    except (ConversionError, UnicodeDecodeError):
        return Opaque(f"{file} cannot be read here")
    if len(data) > SCRIPT_BYTES_MAX:
        return Opaque(f"{file} is longer than {SCRIPT_BYTES_MAX} bytes")
    return understood(text, draft.config.environment, draft.config.directory)
