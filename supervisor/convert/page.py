"""Prints a conversion as TOML, with what it could not carry over beside what it belongs to."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from supervisor.config import DaemonConfig
from supervisor.convert.draft import Conversion, Draft
from supervisor.convert.toml import key, table
from supervisor.lines import printable

_WIDTH = 118


def page(conversion: Conversion) -> str:
    """The whole file."""
    blocks = [_head(conversion)]
    if conversion.daemon != DaemonConfig():
        blocks.append(table("daemon", conversion.daemon))
    blocks += [_server(draft) for draft in conversion.drafts]
    blocks += [table(f"group.{key(group.name)}", group) for group in conversion.groups]
    return "\n".join("\n".join(block) + "\n" for block in blocks)


def told(conversion: Conversion) -> list[str]:
    """One line for each thing that was lost or that the host lacks, for standard error."""
    lines = [f"not carried over: {text}" for text in conversion.lost]
    for draft in conversion.drafts:
        lines += [f"not carried over: {draft.config.name}: {text}" for text in _losses(draft)]
        lines += [f"to be made first: {draft.config.name}: {text}" for text in draft.missing]
    if not conversion.drafts:
        lines.append("nothing to convert: the file has no program")
    return [printable(line) for line in lines]


def _head(conversion: Conversion) -> list[str]:
    lines = _comment(f"Made by `sglsup convert` from {conversion.source}. Read it, then `sglsup check` it.")
    for text in conversion.lost:
        lines += _comment(f"not carried over: {text}")
    for text in conversion.remarks:
        lines += _comment(text)
    return lines


def _server(draft: Draft) -> list[str]:
    lines = [line for text in draft.remarks for line in _comment(text)]
    lines += [line for text in _losses(draft) for line in _comment(f"not carried over: {text}")]
    lines += [line for text in draft.missing for line in _comment(f"to be made first: {text}")]
    written = table(f"server.{key(draft.config.name)}", draft.config)
    return lines + (list(_commented(written)) if draft.unusable else written)


def _losses(draft: Draft) -> tuple[str, ...]:
    refused = (f"the whole server, which the daemon would refuse: {draft.unusable}",) if draft.unusable else ()
    return draft.lost + refused


def _commented(lines: list[str]) -> Iterator[str]:
    for line in "\n".join(lines).splitlines():
        yield f"# {line}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_on_hyphens=False,
        break_long_words=False,
    )
