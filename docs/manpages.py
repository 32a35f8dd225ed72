"""Prints the manual pages from what they describe: the commands' arguments and the types of the configuration."""

import argparse
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec

from supervisor import completion, main
from supervisor.cli import codes
from supervisor.cli.main import parser as client_parser
from supervisor.config.model import (
    DaemonConfig,
    DetectorsConfig,
    GpuPlan,
    GroupConfig,
    HooksConfig,
    LogConfig,
    PhaseDeadline,
    ReadinessConfig,
    RestartConfig,
    RouterConfig,
    ServerConfig,
    ServingConfig,
    StopConfig,
)

CONFIGURATION = Path(__file__).resolve().parent / "configuration.md"
HEAD = '.\\" Printed by `make docs`.\n'
COMMANDS = completion.parsers()
# A section of configuration.md, the type that it describes, and where the table stands in the file.
SECTIONS = {
    "[daemon]": DaemonConfig,
    "[server.NAME]": ServerConfig,
    "stop": StopConfig,
    "restart": RestartConfig,
    "readiness": ReadinessConfig,
    "serving": ServingConfig,
    "detectors": DetectorsConfig,
    "log": LogConfig,
    "hooks": HooksConfig,
    "[router.NAME]": RouterConfig,
    "[group.NAME]": GroupConfig,
}
_ABOUT_THE_FILE = """
One TOML file, /etc/sglang-supervisor/supervisor.toml unless named otherwise, and every conf.d/*.toml beside it.
Durations are text such as "90s", "5m", "1h30m"; sizes such as "10GB", "512MiB". An unknown key is an error.
"""
_OWN_SECTION = (StopConfig, RestartConfig, ReadinessConfig, ServingConfig, DetectorsConfig, LogConfig, HooksConfig)


class UndocumentedError(Exception):
    """A key of the configuration has no row in configuration.md."""


def sglsup() -> str:
    top = main.parser()
    body = [
        _head("sglsup", 1, "starts, watches, explains, kills and restarts the inference servers of one GPU host"),
        ".SH SYNOPSIS\n.B sglsup\n.I COMMAND\n[\\fIARGUMENTS\\fR]",
        ".SH DESCRIPTION\n" + _text(str(top.description) + " The daemon owns them; sglctl(1) controls it."),
        ".SH COMMANDS",
    ]
    for name, command in main.COMMANDS.items():
        body += [f".SS sglsup {name}", _text(command.summary[0].upper() + command.summary[1:].rstrip(".") + ".")]
        body += _command(COMMANDS[name]) if name in COMMANDS else []
    body += [_environment(), _files(), _see("sglctl(1)", "sglang-supervisor.toml(5)", "systemd(1)")]
    return HEAD + "\n".join(body) + "\n"


def sglctl() -> str:
    top = client_parser()
    body = [
        _head("sglctl", 1, "controls the daemon of sglsup(1)"),
        ".SH SYNOPSIS\n.B sglctl\n[\\fB\\-s\\fR \\fISOCKET\\fR] [\\fB\\-H\\fR \\fIssh://USER@HOST\\fR]",
        "[\\fIVERB\\fR ...]",
        ".SH DESCRIPTION\n" + _text(str(top.description) + " Without a verb it is an interactive shell."),
        ".SH OPTIONS",
        *_options(top),
        ".SH VERBS",
    ]
    verbs = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    for name, verb in verbs.choices.items():
        body += [f".SS sglctl {name}", *_command(verb)]
    body += [
        ".SH EXIT STATUS",
        *_statuses(),
        _environment(),
        _see("sglsup(1)", "sglang-supervisor.toml(5)", "supervisorctl(1)"),
    ]
    return HEAD + "\n".join(body) + "\n"


def configuration() -> str:
    """Keys, defaults and meanings as in configuration.md. Raises UndocumentedError for a key that is not there."""
    rows = rows_of(CONFIGURATION.read_text())
    body = [
        _head("sglang-supervisor.toml", 5, "what the daemon of sglsup(1) runs"),
        ".SH DESCRIPTION\n" + _text(_ABOUT_THE_FILE),
    ]
    for title, struct in SECTIONS.items():
        body += [f".SH {_escaped(title if title.startswith('[') else f'[server.NAME] {title}')}"]
        for key in keys(struct):
            default, meaning = rows[title, key] if (title, key) in rows else _missing(title, key)
            body += [
                f".TP\n.B {_escaped(key)}\n{_text(f'{meaning}. Default: {default}.' if default else f'{meaning}.')}"
            ]
    body += [_files(), _see("sglsup(1)", "sglctl(1)")]
    return HEAD + "\n".join(body) + "\n"


def keys(struct: type[msgspec.Struct]) -> list[str]:
    """Keys that are written in the struct's own table; tables with a section of their own are not among them."""
    hints = typing.get_type_hints(struct)
    found = []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if field.required or hint in _OWN_SECTION:
            continue
        table = PhaseDeadline in typing.get_args(hint)  # [deadlines.PHASE] has a section with prose
        if not table or hint is GpuPlan:
            found.append(field.encode_name)
    return found


def rows_of(page: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Section and key → default and meaning, from the tables of the page; a row may name several keys."""
    rows: dict[tuple[str, str], tuple[str, str]] = {}
    section = ""
    for line in page.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").strip()
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)][1:-1]
        if len(cells) == 3 and cells[0].startswith("`"):
            for key in re.findall(r"`([a-z_]+)`", cells[0]):
                rows[section, key] = (cells[1], cells[2])
    return rows


# --- parts of a page -------------------------------------------------------------------------------------------------


def _missing(title: str, key: str) -> tuple[str, str]:
    raise UndocumentedError(f"docs/configuration.md has no row for {key} under {title}")


def _head(name: str, section: int, what: str) -> str:
    title = f'.TH {_escaped(name.upper())} {section} "" "sglang\\-supervisor"'
    return f"{title}\n.SH NAME\n{_escaped(name)} \\- {_escaped(what)}"


def _command(parser: argparse.ArgumentParser) -> list[str]:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    told = [".PP", f"\\fB{_escaped(usage)}\\fR"]
    if parser.description:
        told += [".PP", _text(parser.description)]
    epilog = [line for line in (parser.epilog or "").splitlines() if line.strip()]
    return [*told, *_options(parser), *([".PP", "\n.br\n".join(map(_text, epilog))] if epilog else [])]


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in action.option_strings)
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        if action.choices and not action.metavar:
            value = "|".join(map(str, action.choices))
        word = f"\\fI{_escaped(str(value))}\\fR" if value and action.nargs != 0 else ""
        text = (action.help or _unexplained(action)).replace("%(default)s", str(action.default))
        yield f".TP\n{' '.join(filter(None, (names, word)))}\n{_text(text)}"


def _unexplained(action: argparse.Action) -> str:
    raise SystemExit(f"cannot write the manual: the option {action.option_strings or action.dest} has no help")


def _statuses() -> Iterator[str]:
    for code, meaning in codes.LONG.items():
        yield f".TP\n.B {code}\n{_text(meaning)}"


def _environment() -> str:
    return ".SH ENVIRONMENT\n.TP\n.B SGLSUP_SOCKET\n" + _text("The daemon's socket for sglctl.")


def _files() -> str:
    rows = (
        ("/etc/sglang-supervisor/supervisor.toml", "configuration, with conf.d/*.toml beside it"),
        ("/run/sglang-supervisor/control.sock", "the control socket"),
        ("/var/lib/sglang-supervisor", "journal, evidence, state"),
        ("/var/log/sglang-supervisor", "the servers' logs"),
    )
    return ".SH FILES\n" + "\n".join(f".TP\n.I {_escaped(path)}\n{_text(what)}" for path, what in rows)


def _see(*pages: str) -> str:
    shown = ",\n".join(f".BR {name} ({section})" for name, section in (page.rstrip(")").split("(") for page in pages))
    return ".SH SEE ALSO\n" + re.sub(r"\)\s*,\n", "),\n", shown)


def _text(markdown: str) -> str:
    """One paragraph: code in bold, links as their words."""
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(markdown.split())).replace("\\|", "|")
    parts = plain.split("`")
    shown = "".join(f"\\fB{_escaped(part)}\\fR" if at % 2 else _escaped(part) for at, part in enumerate(parts))
    return f"\\&{shown}" if shown[:1] in (".", "'") else shown


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("→", "\\(->").replace("·", "\\(pc")
