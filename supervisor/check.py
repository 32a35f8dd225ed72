"""`sglsup check`: tells before a start what would end it, and what to change."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

import anyio
import msgspec

from supervisor.config import DEFAULT_ENGINE, Config, ConfigError, GpuPlan, ServerConfig, load, mask_command
from supervisor.core.lint import Finding, lint
from supervisor.devices import GpuAbsent, GpuBlind, GpuSample
from supervisor.edge.gpu.feed import GpuFeed
from supervisor.edge.listener import COMMAND_CHARACTERS, PortHolder, holder
from supervisor.output import columns, for_a_reader
from supervisor.ports import PortUse
from supervisor.preflight import DeviceFacts, Inspected, PortFacts, Severity, load_rules
from supervisor.profile import engine_of, facts, load_profile, profile_names, recognises
from supervisor.shell.preflight import Surroundings, examine
from supervisor.shell.single import default_name, devices_of

EXIT_FINE = 0
EXIT_ERRORS = 1
EXIT_USAGE = 2
LIMIT_S = 120.0  # a person waits; 160 shards on a cold network disk take their time
_GPU_LIMIT_S = 20.0  # without persistence mode the driver wakes each GPU for seconds
_INDENT = " " * 11
_COLOURS = {Severity.ERROR: "\x1b[1;31m", Severity.WARNING: "\x1b[1;33m", Severity.NOTICE: "\x1b[1m"}


class Judged(msgspec.Struct, frozen=True):
    """One server's verdict. `skipped` names what was not looked at."""

    server: str
    engine: str
    version: str
    running: bool
    findings: tuple[Finding, ...]
    skipped: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    servers: tuple[Judged, ...]
    errors: int
    warnings: int
    notices: int


class Gpus(msgspec.Struct, frozen=True):
    """One look at the GPUs; `problem` says why there was none."""

    devices: tuple[DeviceFacts, ...] | None = None
    driver: str = ""
    problem: str = ""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 no errors, 1 errors, 2 usage or an unusable configuration."""
    options = parser().parse_args(_before(arguments))
    try:
        servers = _servers(options, _behind(arguments))
    except (ConfigError, UsageError) as problem:
        sys.stderr.write("".join(f"sglsup check: {line}\n" for line in str(problem).splitlines()))
        return EXIT_USAGE
    verdict = anyio.run(judge, servers)
    with for_a_reader():
        _write(verdict, as_json=options.json)
    return EXIT_ERRORS if verdict.errors else EXIT_FINE


# --- the command line ------------------------------------------------------------------------------------------------


class UsageError(ValueError):
    """The command line asks for nothing that can be done."""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(
        prog="sglsup check",
        usage="sglsup check [--json] FILE [SERVER...] | sglsup check [--json] [--gpus 0-7] [--engine E] -- CMD...",
        description="Say before a start what would end it. Nothing is started; what is looked at is only read.",
        epilog="exit status: 0 no errors, 1 errors (the daemon refuses such a start), 2 usage or a broken FILE",
        allow_abbrev=False,
    )
    result.add_argument("file", nargs="?", metavar="FILE", help="the daemon's configuration")
    result.add_argument("names", nargs="*", metavar="SERVER", help="only these of its servers")
    result.add_argument("--json", action="store_true", help="one JSON object")
    result.add_argument("--gpus", default="", metavar="0-7", help="devices that the command gets, such as 0-3,6")
    result.add_argument("--engine", choices=profile_names(), help="of the command; default: the one it starts")
    return result


def _before(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _behind(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[arguments.index("--") + 1 :] if "--" in arguments else ()


def _servers(options: argparse.Namespace, command: Sequence[str]) -> tuple[ServerConfig, ...]:
    if bool(options.file) == bool(command):
        raise UsageError("expected either a FILE, or -- and a command")
    if command:
        return (_lone(options, tuple(command)),)
    config: Config = load(options.file)
    if not config.servers:  # what a conversion that failed leaves behind must not pass
        raise UsageError(f"cannot check {options.file}: it has no [server.NAME], so nothing was looked at")
    for name in options.names:
        if name not in config.servers:
            raise UsageError(f"{options.file} has no server {name}; it has {', '.join(config.servers)}")
    return tuple(server for name, server in config.servers.items() if name in (options.names or config.servers))


def _lone(options: argparse.Namespace, command: tuple[str, ...]) -> ServerConfig:
    """A command as the caller would start it, from his directory."""
    try:
        devices = devices_of(options.gpus) if options.gpus else ()
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    return ServerConfig(
        name=default_name(command),
        command=command,
        engine=options.engine or engine_of(command, DEFAULT_ENGINE),
        gpus=GpuPlan(indices=devices),
        directory=os.getcwd(),
    )


# --- looking ---------------------------------------------------------------------------------------------------------


async def judge(servers: Sequence[ServerConfig]) -> Verdict:
    """Look at everything, one server after another, and apply the rules."""
    gpus = await look_at_gpus() if servers else Gpus()
    judged = tuple([await _judge(server, servers, gpus) for server in servers])
    counted = Counter(finding.severity for one in judged for finding in one.findings)
    return Verdict(judged, counted[Severity.ERROR], counted[Severity.WARNING], counted[Severity.NOTICE])


async def _judge(server: ServerConfig, all_servers: Sequence[ServerConfig], gpus: Gpus) -> Judged:
    held, running = await _held(server)
    ports = (*held, *_shared(server, all_servers))
    devices = gpus.devices
    if running and devices is not None:  # what is free now is not what it will find
        devices = tuple(msgspec.structs.replace(device, free_bytes=None) for device in devices)
    skipped = (f"GPUs: {gpus.problem}",) if gpus.problem else ()
    around = Surroundings(dict(os.environ), devices, gpus.driver, ports, skipped)
    seen: Inspected = await examine(server, around, LIMIT_S)
    findings = tuple(lint(seen, load_rules(server.engine)))
    return Judged(server.name, server.engine, seen.engine.version, running, findings, seen.looked.skipped)


async def look_at_gpus() -> Gpus:
    """The first look of a feed of our own."""
    with anyio.move_on_after(_GPU_LIMIT_S):
        async with GpuFeed() as feed:
            async for report in feed:
                match report:
                    case GpuSample():
                        return Gpus(tuple(_devices(report)), report.driver)
                    case GpuAbsent() | GpuBlind():
                        return Gpus(problem=report.reason)
                    case _:
                        continue  # an Xid
    return Gpus(problem=f"the driver gave no answer within {_GPU_LIMIT_S:g} s")


def _devices(sample: GpuSample) -> Iterable[DeviceFacts]:
    for gpu in sample.devices:
        memory = gpu.memory
        yield DeviceFacts(gpu.index, gpu.name, memory.total if memory else None, memory.free if memory else None)


def _uses(server: ServerConfig) -> tuple[PortUse, ...]:
    read = facts(load_profile(server.engine), server.command)
    return PortUse(server.port or read.port, "requests"), *read.ports


async def _held(server: ServerConfig) -> tuple[tuple[PortFacts, ...], bool]:
    """Ports in other hands, and whether the one of requests is in the server's own: then it runs already."""
    own, *further = _uses(server)
    found = await holder(own.port)
    if found is not None and _is_itself(found, server):
        return (), True
    taken = [(own, found)] + [(use, await holder(use.port)) for use in further]
    return tuple(_port(use, by, server) for use, by in taken if by is not None), False


def _port(use: PortUse, by: PortHolder, server: ServerConfig) -> PortFacts:
    by_engine = recognises(load_profile(server.engine), by.command.split())
    return PortFacts(use.port, use.purpose, str(by), by_engine)


def _is_itself(found: PortHolder, server: ServerConfig) -> bool:
    return bool(found.command) and found.command == " ".join(mask_command(server.command))[:COMMAND_CHARACTERS]


def _shared(server: ServerConfig, all_servers: Sequence[ServerConfig]) -> Iterable[PortFacts]:
    """Ports that a server before this one in the file wants, too: each pair is told of once."""
    for other in all_servers:
        if other.name == server.name:
            return
        others = {use.port: use for use in _uses(other)}
        for use in _uses(server):
            if use.port in others:
                purpose = others[use.port].purpose
                yield PortFacts(use.port, use.purpose, other_server=other.name, other_purpose=purpose)


# --- telling ---------------------------------------------------------------------------------------------------------


def _write(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n")
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(page(verdict, colour, columns()))


def page(verdict: Verdict, colour: bool = False, width: int = 100) -> str:
    """For a person at 3 a.m.: what, why, what to change."""
    first: dict[Finding, str] = {}
    lines = [line for one in verdict.servers for line in (*_told(one, colour, width, first), "")]
    return "\n".join([*lines, _wrapped("", _sum(verdict), width)]) + "\n"


def _told(one: Judged, colour: bool, width: int, first: dict[Finding, str]) -> Iterable[str]:
    """What has been told of an earlier server in the same words, as of the host's limits, is one line here."""
    version = f" {one.version}" if one.version else ", version unknown"
    yield f"{one.server}   {one.engine}{version}{'   (running now)' if one.running else ''}"
    if not one.findings:
        yield "  nothing found"
    for finding in one.findings:
        label = f"  {finding.severity.value:<9}"
        paint = _COLOURS[finding.severity] if colour else ""
        said_of = first.setdefault(msgspec.structs.replace(finding, server=""), one.server)
        if said_of != one.server:
            yield _wrapped(label, f"{finding.what} (see {said_of})", width, paint)
            continue
        yield _wrapped(label, finding.what, width, paint)
        yield _wrapped(f"{_INDENT}why     ", finding.why, width)
        yield _wrapped(f"{_INDENT}change  ", finding.change, width)
        versions = f" ({finding.versions})" if finding.versions else ""
        yield _wrapped(f"{_INDENT}rule    ", f"{finding.rule}{versions}: {finding.source}", width)
    for text in one.skipped:
        yield _wrapped("  skipped  ", text, width)


def _wrapped(head: str, text: str, width: int, paint: str = "") -> str:
    """Beside its head; what goes on hangs below the text. A path that is too long is left whole."""
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    wrap.initial_indent, wrap.subsequent_indent = head, " " * len(head)
    told = wrap.fill(text)
    return f"{paint}{head}\x1b[0m{told[len(head) :]}" if paint else told


def _sum(verdict: Verdict) -> str:
    counts = [(verdict.errors, "error"), (verdict.warnings, "warning"), (verdict.notices, "notice")]
    told = ", ".join(f"{count} {word}{'s' if count != 1 else ''}" for count, word in counts if count) or "no findings"
    end = "; the daemon refuses to start what has errors (sglctl start --force overrides)" if verdict.errors else ""
    return f"{told} in {len(verdict.servers)} server{'s' if len(verdict.servers) != 1 else ''}{end}"
