"""What differs between engines, read once from `profiles/NAME.toml` into frozen values.

The daemon, the probes, the log reader and the checks name no engine: flags of the command line, phases and their
deadlines, log rules, cause signatures and process titles all come from here. A profile may take parts from further
files (`include`), so that what every engine can suffer (CUDA, NCCL, Python) is written once.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from supervisor.ports import PortRule, PortUse, derived_ports

# `.*?X` searched for costs the square of the line's length when X is not in it (26 s for one 19 kB line of arguments)
_LEADING_WILDCARD = re.compile(r"(?:\(\?[a-z]+\))?(?:\.[*+]|\(\?:\.[*+])")


class ProfileError(ValueError):
    """A profile cannot be used; the message names the file and the key."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything that is read from a profile: an unknown key is an error."""


class Readiness(Part, frozen=True):
    """How readiness is asked for. `timeout_s` must exceed the engine's own probe limit."""

    path: str = "/health"
    identity_path: str = ""
    identity_fields: tuple[str, ...] = ()
    timeout_s: float = 30.0
    warming_interval_s: float = 0.1
    interval_s: float = 10.0
    failure_threshold: int = 3
    success_threshold: int = 1


class Stop(Part, frozen=True):
    """How a server is asked to end, and for how long it may take before its tree is killed."""

    signal: str = "TERM"
    grace_s: float = 90.0
    startup_grace_s: float = 5.0


class PhaseRule(Part, frozen=True):
    """One phase of a start. Without progress for `stall_s`, or longer than `limit_s` in all, it is called stalled.

    `floor_s`: a deadline learned from earlier starts never goes below it. 0 means no deadline.
    A `nested` phase runs inside another one and has the other's stage.
    """

    name: str
    stage: str
    stall_s: float
    limit_s: float
    floor_s: float
    nested: bool = False
    speculative_name: str = ""  # what the phase is called when a draft model is used


class RoleRule(Part, frozen=True):
    """Processes whose title matches `title` have `role`; the group `rank` names the rank ("_TP0" means TP0)."""

    title: str
    role: str


class EngineMetrics(Part, frozen=True):
    """Names on the engine's Prometheus page, each kind summed over names and labels; path "" = it has no page."""

    path: str = ""
    tokens: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()


class CanaryRule(Part, frozen=True):
    """A small request that every healthy server answers: POST `body` (JSON); the answer is in the first of `fields`."""

    path: str = ""
    body: str = "{}"
    fields: tuple[str, ...] = ()


class LeftoverRule(Part, frozen=True):
    """Files of `directory` whose whole name matches the regex `pattern`, which has a group `pid` or `pid_hex`."""

    directory: str
    pattern: str


class CommandRules(Part, frozen=True):
    """Flags of the engine's command line, by meaning."""

    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    default_port: int = 0
    default_host: str = "127.0.0.1"
    port: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    served_name: tuple[str, ...] = ()
    tensor_parallel: tuple[str, ...] = ()
    data_parallel: tuple[str, ...] = ()
    pipeline_parallel: tuple[str, ...] = ()
    expert_parallel: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    node_rank: tuple[str, ...] = ()
    speculative: tuple[str, ...] = ()
    draft_model: tuple[str, ...] = ()
    base_gpu: tuple[str, ...] = ()
    context_length: tuple[str, ...] = ()
    disaggregation: tuple[str, ...] = ()
    log_level: tuple[str, ...] = ()
    api_key: tuple[str, ...] = ()
    data_parallel_attention: tuple[str, ...] = ()
    skip_warmup: tuple[str, ...] = ()
    no_graphs: tuple[str, ...] = ()


class LogRule(Part, frozen=True):
    """One kind of line. `starts` (or, without it, `needles`) is the cheap test, `pattern` the exact one.

    `where`: "record" = behind the engine's own prefix, at the start of the message; "raw" = a line without prefix, at
    its start; "any" = both. `emitter`: whether a rank or the launcher says it (a record without rank can be either).
    `again` is the phase meant when the rank has been through `enter` before (a draft model's load, for instance).
    """

    name: str
    where: str = "record"
    emitter: str = "rank"
    starts: tuple[str, ...] = ()
    needles: tuple[str, ...] = ()
    pattern: str = ""
    enter: str = ""
    leave: str = ""
    again: str = ""
    draft: str = ""  # the phase meant when the group `type` or `what` names a draft model
    everyone: bool = False  # enters the phase for all ranks at once
    # who prints it: "every" rank in every version; "some", as far as the rank has printed another line of the family;
    # the "first" rank of a group
    spoken_by: str = "some"
    family: str = ""
    bar: str = ""  # unit of a progress bar with the groups done, total, rate
    hint: str = ""  # listening · ready · fatal · restart · drain
    sampled: bool = False  # only the newest of one read is reported
    progress: bool = True  # False: heard, but no sign of progress
    baseline: bool = False  # its group `left` is the memory before anything was loaded
    life: bool = False  # only a living server says this
    slow: str = ""  # the cause of a long wait here …
    slow_below_per_s: float = 0.0  # … when the bar is slower than this
    weak: bool = False  # enters its phase only while the log has told of none
    facts: bool = False  # its groups describe the launch (speculative, tp, ...)


class Signature(Part, frozen=True):
    """A text that points to a cause.

    Looked for in the exceptions of a traceback (`where` = "traceback"), an engine's record ("record"), or a line
    without prefix ("raw"); several may be named. `frames` must be found among the functions of the traceback; a
    signature with `frames` alone fits any exception that passed through them.
    `weight` 1…100: how much it says about the cause. `victim` marks a message that somebody else's end brings about.
    `severity`: "fatal" (it ends the server), "stall" (it hangs), "error" (it serves on, damaged), "notice".
    `stage`: where this happens when the log does not tell.
    """

    name: str
    cause: str
    where: tuple[str, ...] = ("traceback",)
    needles: tuple[str, ...] = ()
    pattern: str = ""
    at_start: bool = False  # the text must begin with the pattern
    frames: str = ""
    not_frames: str = ""
    unless: str = ""
    weight: int = 60
    severity: str = "fatal"
    victim: bool = False
    stage: str = ""
    certain_stage: bool = False  # it happens in `stage` alone, whatever else the log shows
    stages: tuple[str, ...] = ()  # counts only there
    by_stage: dict[str, str] = {}  # stage → cause
    restart: str = ""
    restart_by_stage: dict[str, str] = {}
    remedy: str = ""
    remedy_computed: str = ""  # used when all its {values} are known
    clock: tuple[str, ...] = ()  # two groups with times of day: beyond `clock_limit_s` between them …
    clock_limit_s: float = 0.0
    beyond: str = ""  # … it is that signature instead
    together: str = ""  # seen from several ranks within seconds, it is that signature instead
    repeated: str = ""  # seen `repeated_count` times, it is that signature instead
    repeated_count: int = 3
    quiet_only: bool = False  # counts only when the engine has not said itself why it ends
    explains_hang: bool = False  # when nothing follows it, this is what a hang hangs in
    closes: str = ""  # the signature that this text ends


class Cause(Part, frozen=True):
    """A class of failures: whether a restart can help, and what to change."""

    name: str
    restart: str
    remedy: str
    stage: str = ""
    remedy_computed: str = ""
    backoff_factor: float = 1.0  # patience before a restart, beside that of other classes


class Place(Part, frozen=True):
    """Functions by which a traceback tells the stage it happened in; the first that fits counts."""

    frames: str
    stage: str


class Grammar(Part, frozen=True):
    """How the engine writes its log."""

    prefix: str
    loose_prefix: str = ""  # counts at the start of a line alone
    wrappers: tuple[str, ...] = ()  # what collectors put in front of every line
    rank_order: tuple[str, ...] = ()
    rank_identity: tuple[str, ...] = ()
    lone_rank: str = "TP0"
    benign: tuple[str, ...] = ()  # starts of messages that mean nothing, however they sound
    untrusted: tuple[str, ...] = ()  # starts of messages that carry users' text
    rank_tag: str = ""  # third-party lines that carry a rank ("[rank3]: …")
    rank_tag_name: str = "TP{rank}"
    recognise: tuple[str, ...] = ()
    calm: str = ""  # bytes pattern of whole lines that may be skipped in long logs


class Profile(Part, frozen=True):
    """One engine."""

    name: str
    stages: tuple[str, ...]
    phases: tuple[PhaseRule, ...]
    grammar: Grammar
    readiness: Readiness = Readiness()
    stop: Stop = Stop()
    command: CommandRules = CommandRules()
    roles: tuple[RoleRule, ...] = ()
    ports: tuple[PortRule, ...] = ()  # that it binds besides its own
    leftovers: tuple[LeftoverRule, ...] = ()  # that a killed server leaves behind
    compilers: tuple[str, ...] = ()  # names of processes that compile kernels, as /proc/PID/comm has them
    metrics: EngineMetrics = EngineMetrics()
    canary: CanaryRule = CanaryRule()
    rules: tuple[LogRule, ...] = ()
    signatures: tuple[Signature, ...] = ()
    causes: tuple[Cause, ...] = ()
    places: tuple[Place, ...] = ()
    hangs: dict[str, str] = {}  # stage → what a stall there most likely is
    include: tuple[str, ...] = ()

    def phase(self, name: str) -> PhaseRule:
        """The rule of that phase, also under its speculative name."""
        for rule in self.phases:
            if name in (rule.name, rule.speculative_name) and name:
                return rule
        raise KeyError(name)

    def stage_of(self, phase: str) -> str:
        """The coarse stage for people and scoring."""
        return self.phase(phase).stage

    def cause(self, name: str) -> Cause | None:
        """The class of that name."""
        return next((cause for cause in self.causes if cause.name == name), None)


class Include(Part, frozen=True):
    """A file of signatures and causes that several profiles take in."""

    signatures: tuple[Signature, ...] = ()
    causes: tuple[Cause, ...] = ()
    places: tuple[Place, ...] = ()
    wrappers: tuple[str, ...] = ()
    benign: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()


@functools.cache
def load_profile(name: str) -> Profile:
    """The profile of that name. Raises ProfileError naming file and key of what is wrong."""
    profile = _parse(name, Profile)
    for include in profile.include:
        part = _parse(include, Include)
        profile = _join(profile, part)
    _check(profile)
    return profile


def profile_names() -> tuple[str, ...]:
    """The engines that come with the package (a file that others include is none)."""
    folder = importlib.resources.files("supervisor") / "profiles"
    names = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return tuple(name for name in names if not name.startswith("causes"))


def _join(profile: Profile, part: Include) -> Profile:
    grammar = msgspec.structs.replace(
        profile.grammar,
        wrappers=profile.grammar.wrappers + part.wrappers,
        benign=profile.grammar.benign + part.benign,
    )
    return msgspec.structs.replace(
        profile,
        grammar=grammar,
        compilers=profile.compilers + part.compilers,
        signatures=profile.signatures + part.signatures,
        causes=profile.causes + part.causes,
        places=profile.places + part.places,
    )


_T = TypeVar("_T", Profile, Include)


def _parse(name: str, kind: type[_T]) -> _T:
    path = importlib.resources.files("supervisor") / "profiles" / f"{name}.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ProfileError(f"cannot load the profile of engine {name!r}: {path} does not exist") from None
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ProfileError(f"cannot load the profile of engine {name!r}: {path}: {error}") from error


def _check(profile: Profile) -> None:
    phases = {phase.name for phase in profile.phases} | {phase.speculative_name for phase in profile.phases}
    causes = {cause.name for cause in profile.causes}
    for rule in profile.rules:
        _compiles(profile.name, rule.name, rule.pattern)
        for phase in (rule.enter, rule.leave, rule.again, rule.draft):
            if phase not in phases | {""}:
                raise ProfileError(f"profile {profile.name}: rule {rule.name!r} names an unknown phase {phase!r}")
    names = {signature.name for signature in profile.signatures} | {""}
    for signature in profile.signatures:
        for other in (signature.beyond, signature.together, signature.repeated, signature.closes):
            if other not in names:
                raise ProfileError(f"profile {profile.name}: {signature.name!r} names an unknown signature {other!r}")
        if not signature.needles and {"record", "raw"} & set(signature.where):
            raise ProfileError(f"profile {profile.name}: {signature.name!r} reads lines and has no needles")
        if _LEADING_WILDCARD.match(signature.pattern) and not signature.at_start:
            raise ProfileError(
                f"profile {profile.name}: {signature.name!r} begins with a wildcard, which makes a search "
                "cost the square of the line's length: leave it out"
            )
        for pattern in (signature.pattern, signature.frames, signature.not_frames, signature.unless):
            _compiles(profile.name, signature.name, pattern)
        for cause in (signature.cause, *signature.by_stage.values()):
            if cause not in causes:
                raise ProfileError(
                    f"profile {profile.name}: signature {signature.name!r} names an unknown cause {cause!r}"
                )


def _compiles(profile: str, name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ProfileError(f"profile {profile}: {name!r} has a broken pattern {pattern!r}: {error}") from error


class CommandFacts(msgspec.Struct, frozen=True):
    """What the command line says about the server, by the profile's flags; defaults where it says nothing."""

    port: int
    host: str
    model_path: str = ""
    served_name: str = ""
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    nodes: int = 1
    node_rank: int = 0
    base_gpu: int = 0
    context_length: int = 0
    speculative: str = ""
    draft_model: str = ""
    disaggregation: str = ""
    log_level: str = ""
    data_parallel_attention: bool = False
    skip_warmup: bool = False
    no_graphs: bool = False
    ports: tuple[PortUse, ...] = ()  # besides its own
    recognised: bool = False  # the command starts the engine's own module or program


def facts(profile: Profile, command: Sequence[str]) -> CommandFacts:
    """Reads the command line by the profile's flags, `--flag value` and `--flag=value`; nothing is ever refused."""
    rules = profile.command
    given = _flags(command)

    def text(flags: tuple[str, ...], default: str = "") -> str:
        return next((given[flag] for flag in flags if flag in given), default)

    def number(flags: tuple[str, ...], default: int) -> int:
        value = text(flags)
        return int(value) if value.isdecimal() else default

    def switch(flags: tuple[str, ...]) -> bool:
        return any(flag in given for flag in flags)

    port, node_rank = number(rules.port, rules.default_port), number(rules.node_rank, 0)
    return CommandFacts(
        port=port,
        host=text(rules.host, rules.default_host),
        model_path=text(rules.model),
        served_name=text(rules.served_name),
        tensor_parallel=number(rules.tensor_parallel, 1),
        data_parallel=number(rules.data_parallel, 1),
        pipeline_parallel=number(rules.pipeline_parallel, 1),
        expert_parallel=number(rules.expert_parallel, 1),
        nodes=number(rules.nodes, 1),
        node_rank=node_rank,
        base_gpu=number(rules.base_gpu, 0),
        context_length=number(rules.context_length, 0),
        speculative=text(rules.speculative),
        draft_model=text(rules.draft_model),
        disaggregation=text(rules.disaggregation),
        log_level=text(rules.log_level),
        data_parallel_attention=switch(rules.data_parallel_attention),
        skip_warmup=switch(rules.skip_warmup),
        no_graphs=switch(rules.no_graphs),
        ports=derived_ports(profile.ports, given, port, node_rank),
        recognised=recognises(profile, command),
    )


def api_key(profile: Profile, command: Sequence[str]) -> str:
    """The key that clients of the server must present, "" when none is on the command line. Never to be shown."""
    given = _flags(command)
    return next((given[flag] for flag in profile.command.api_key if flag in given), "")


def recognises(profile: Profile, command: Sequence[str]) -> bool:
    """Whether the command starts this engine (behind wrappers such as numactl or env, too)."""
    words = [word.rsplit("/", 1)[-1] for word in command]
    if any(word in profile.command.modules for word in _modules(command)):
        return True
    phrases = [program.split() for program in profile.command.programs]
    return any(words[at : at + len(phrase)] == phrase for phrase in phrases for at in range(len(words)))


def _modules(command: Sequence[str]) -> list[str]:
    return [after for before, after in itertools.pairwise(command) if before == "-m"]


def _flags(command: Sequence[str]) -> dict[str, str]:
    """Every `--flag` with its value ("" for a switch); the last one counts, as argparse has it."""
    given: dict[str, str] = {}
    for at, word in enumerate(command):
        if not word.startswith("-") or word == "--":
            continue
        flag, sep, value = word.partition("=")
        following = command[at + 1] if at + 1 < len(command) else "-"
        if not sep:
            value = "" if following.startswith("-") else following
        given[flag.replace("_", "-") if flag.startswith("--") else flag] = value
    return given
