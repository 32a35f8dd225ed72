"""The parts of an engine's profile, as frozen values: what differs between engines is written in these words."""

from __future__ import annotations

import msgspec

from supervisor.ports import PortRule


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything that is read from a profile: an unknown key is an error."""


class Readiness(Part, frozen=True):
    """How readiness is asked for. `timeout_s` must exceed the engine's own probe limit.

    `identity_fields` of the answer at `identity_path` name the model, the first that is there before the others.
    """

    path: str = "/health"
    identity_path: str = ""
    identity_fields: tuple[str, ...] = ()
    timeout_s: float = 30.0
    warming_interval_s: float = 0.1
    interval_s: float = 10.0
    failure_threshold: int = 3


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
    """Processes whose title matches `title` have `role`; the group `rank` names the rank ("_TP0" means TP0).

    `name` is how such titles begin: of a process that has ended the kernel keeps no more than their first 15 bytes.
    """

    title: str
    role: str
    name: str = ""


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
    positional_model: bool = False  # the word behind the program or module is the model, unless it is an option
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
    sampled: bool = False  # only the newest is reported, once a second at most
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
    again: str = ""  # what a restart does, in a sentence after the remedy; untold where it does nothing
    backoff_factor: float = 1.0  # patience before a restart, beside that of other classes
    failure: bool = True  # False: taken for a failure and none; it explains no end and no stall


class Place(Part, frozen=True):
    """Functions by which a traceback tells the stage it happened in; the first that fits counts."""

    frames: str
    stage: str


class Grammar(Part, frozen=True):
    """How the engine writes its log.

    `prefix` has the groups `stamp`, `ranks`, and `speaker` where it names the process: of engines that put it before
    every line of a traceback, so that several processes may raise at once.
    """

    prefix: str
    loose_prefix: str = ""  # counts at the start of a line alone
    wrappers: tuple[str, ...] = ()  # what collectors put in front of every line
    rank_order: tuple[str, ...] = ()
    rank_identity: tuple[str, ...] = ()
    rank_aliases: dict[str, str] = {}  # other ways to write a rank's word in a prefix: " rank=" → "TP"
    lone_rank: str = "TP0"
    benign: tuple[str, ...] = ()  # starts of messages that mean nothing, however they sound
    last_words: tuple[str, ...] = ()  # before a traceback: with them the engine says that it ends of it
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
    saturated: str = "kv-pool-exhausted"  # a full pool with requests waiting
    include: tuple[str, ...] = ()
    terms: dict[str, str] = {}  # what shared remedies leave open: a meaning → the engine's own options and words

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
    terms: dict[str, str] = {}  # where the profile has none
