"""Gathers what a server's start will meet, has the rules judge it, and puts the verdict into a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from supervisor.config import UNLIMITED, EnvironmentRefusedError, GpuPlan, ServerConfig, read_env_file
from supervisor.core.gpus.views import GpusView
from supervisor.core.lint import Finding, lint
from supervisor.edge.inspect.ask import inspect
from supervisor.preflight import (
    DeviceFacts,
    Inspected,
    Launch,
    LimitFacts,
    Looked,
    PortFacts,
    Request,
    Rules,
    Severity,
    has_rules,
    launch_of,
    load_rules,
)
from supervisor.preflight.rules import DRAFT, MODEL
from supervisor.profile import CommandFacts, facts, load_profile
from supervisor.shell.environment import build

LIMIT_S = 5.0  # before a start; a cold network disk that takes longer holds up nothing
_PATHS = ("PATH", "HOME", "TMPDIR", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH", "XDG_CACHE_HOME")
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
_LOGGING, _ENV_FILE = "logging configuration", "env_file"


class Surroundings(msgspec.Struct, frozen=True):
    """What is found out for all servers at once, or not at all. `devices` None: the GPUs were not seen."""

    environment: dict[str, str]
    devices: tuple[DeviceFacts, ...] | None = None
    driver: str = ""
    ports: tuple[PortFacts, ...] = ()
    skipped: tuple[str, ...] = ()


async def findings_before_start(
    config: ServerConfig, environment: Mapping[str, str], gpus: GpusView, leased: tuple[int, ...] = ()
) -> list[Finding]:
    """What the daemon wants to know before each start. Bounded by LIMIT_S; what is not known by then is no finding."""
    if leased:
        config = msgspec.structs.replace(config, gpus=GpuPlan(indices=leased))
    around = Surroundings(dict(environment), *devices_of(gpus))
    inspected = await examine(config, around, LIMIT_S)
    return lint(inspected, load_rules(config.engine), standing_only=True)


def refusal(findings: Iterable[Finding]) -> str:
    """Why the start must not be: the first error in full, the others by their names. "" without errors."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return ""
    more = f" (and {', '.join(finding.rule for finding in errors[1:])})" if errors[1:] else ""
    return f"preflight: {errors[0].what}; {errors[0].change}{more}"


def told(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Errors and warnings, a line each, for status and `why`."""
    heavy = (finding for finding in findings if finding.severity is not Severity.NOTICE)
    return tuple(f"{finding.severity} {finding.rule}: {finding.what}; {finding.change}" for finding in heavy)


def devices_of(view: GpusView) -> tuple[tuple[DeviceFacts, ...] | None, str]:
    """The GPUs as the feed last saw them, and the driver; None while it sees nothing."""
    if view.sight != "seeing":
        return None, ""
    devices = tuple(DeviceFacts(gpu.index, gpu.name, gpu.total, _free(gpu.total, gpu.used)) for gpu in view.gpus)
    return devices, view.driver


def _free(total: int | None, used: int | None) -> int | None:
    return None if total is None or used is None else total - used


async def examine(config: ServerConfig, around: Surroundings, limit_s: float) -> Inspected:
    """Everything known about the server's start."""
    profile, rules = load_profile(config.engine), load_rules(config.engine)
    launch, read = launch_of(profile, config.command), facts(profile, config.command, config.host)
    if not launch.starter:  # of a script, options may mean anything
        read = CommandFacts(read.port, read.host)
    environment, refused = _environment(config, around.environment)
    wanted = {name: environment[name] for name in _wanted(rules) if name in environment}
    looked = await inspect(_request(config, launch, rules, read, wanted), limit_s)
    return Inspected(
        server=config.name,
        arguments=launch.arguments,
        facts=read,
        environment=wanted,
        own_environment=tuple(sorted(_own_names(config))),
        gpus=config.gpus.indices,
        gpu_count=config.gpus.count,
        user=config.user or "",
        looked=_completed(looked, config, around, refused, launched=bool(launch.starter)),
        ports=around.ports,
    )


def _environment(config: ServerConfig, own: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The server's environment, and why it cannot be made in full."""
    try:
        return build(config, own), ""
    except EnvironmentRefusedError as problem:
        return dict(own) | config.environment, str(problem)


def _own_names(config: ServerConfig) -> set[str]:
    try:
        return {*config.environment, *(read_env_file(config.env_file) if config.env_file else ())}
    except EnvironmentRefusedError:
        return set(config.environment)


def _wanted(rules: Rules) -> set[str]:
    """Names of the variables that matter. The rest may be secrets, and is passed on to nobody."""
    by_meaning = (name for names in msgspec.structs.asdict(rules.variables).values() for name in names)
    by_rule = (word for rule in rules.rules if rule.test == "variable-set" for word in rule.words)
    return {*_PATHS, *_CACHES, *by_meaning, *by_rule}


def _request(
    config: ServerConfig, launch: Launch, rules: Rules, read: CommandFacts, environment: dict[str, str]
) -> Request:
    options = rules.options
    logging = next((environment[name] for name in rules.variables.logging_config if environment.get(name)), "")
    models = {MODEL: read.model_path, DRAFT: read.draft_model, "tokenizer": _value(launch.arguments, options.tokenizer)}
    return Request(
        program=config.command[0] if config.command else "",
        starter=launch.starter,
        by_module=launch.by_module,
        directory=config.directory or "/",
        user=config.user or "",
        group=config.group or "",
        environment=environment,
        models={role: path for role, path in models.items() if path},
        files={_LOGGING: logging} if logging else {},
        tokenizer_names=rules.tokenizer_names,
        package=rules.package.name if launch.starter else "",
        distributions=rules.package.distributions,
        flag_sources=rules.package.flag_sources,
        class_sources=rules.package.class_sources,
        class_words=rules.package.class_words,
        compilers=rules.compilers,
        stack_reader=rules.stack_reader,
        elsewhere=bool(launch.elsewhere),
    )


def _value(arguments: tuple[str, ...], flags: tuple[str, ...]) -> str:
    for at, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in flags:
            return value if equals else (*arguments, "")[at + 1]
    return ""


def _completed(looked: Looked, config: ServerConfig, around: Surroundings, refused: str, *, launched: bool) -> Looked:
    """With the GPUs, which another process reads, and the limits that the configuration sets."""
    machine = msgspec.structs.replace(
        looked.machine,
        driver=around.driver,
        devices=around.devices,
        open_files=_limit(config.limits.nofile, looked.machine.open_files),
        locked_memory=_limit(config.limits.memlock, looked.machine.locked_memory),
    )
    missing = looked.missing_files | ({_ENV_FILE: refused} if refused else {})
    hidden = () if launched else (f"model and options: the command does not start {config.engine} itself",)
    general = () if has_rules(config.engine) else (f"options: for {config.engine} there are no checks of its own",)
    skipped = (*hidden, *general, *looked.skipped, *around.skipped)
    return msgspec.structs.replace(looked, machine=machine, missing_files=missing, skipped=skipped)


def _limit(configured: int | None, inherited: LimitFacts | None) -> LimitFacts | None:
    if configured is None or configured == UNLIMITED:
        return inherited if configured is None else LimitFacts(UNLIMITED, UNLIMITED)
    return LimitFacts(configured, configured)
