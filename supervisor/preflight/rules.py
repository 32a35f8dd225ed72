"""The rules of the preflight as data: which test, in which versions, how grave, and what to tell a person.

They are read from `profiles/checks/ENGINE.toml`; tests are named functions of `core.lint`.
"""

from __future__ import annotations

import enum
import functools

import msgspec

from supervisor.profile import ProfileError
from supervisor.profile.place import find

MODEL, DRAFT = "model", "draft model"


class Severity(enum.StrEnum):
    """error: the start must fail, or would serve something else. warning: it can. notice: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything read from a file of rules: an unknown key is an error."""


class Rule(Part, frozen=True):
    """One rule. `what`, `why` and `change` are templates for the values that the test finds.

    `versions` is a range such as ">=0.5.1,<0.5.7", "" for all. `words` and `number` are the test's own data. A rule
    with `standing` false asks about the present moment, which the daemon does itself before each start.
    """

    name: str
    test: str
    severity: Severity
    what: str
    why: str
    change: str
    source: str
    versions: str = ""
    words: tuple[str, ...] = ()
    number: int = 0
    standing: bool = True


class OptionNames(Part, frozen=True):
    """Options of the command line by meaning, beyond those of the engine's profile."""

    draft_steps: tuple[str, ...] = ()
    draft_top_k: tuple[str, ...] = ()
    draft_tokens: tuple[str, ...] = ()
    adaptive_draft: tuple[str, ...] = ()
    draft_options: tuple[str, ...] = ()  # that mean nothing without an algorithm
    page_size: tuple[str, ...] = ()
    attention_backend: tuple[str, ...] = ()
    prefill_attention_backend: tuple[str, ...] = ()
    decode_attention_backend: tuple[str, ...] = ()
    chunked_prefill: tuple[str, ...] = ()
    max_running: tuple[str, ...] = ()
    memory_share: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    host_cache: tuple[str, ...] = ()
    host_cache_size: tuple[str, ...] = ()
    quantization: tuple[str, ...] = ()
    load_format: tuple[str, ...] = ()
    tokenizer: tuple[str, ...] = ()
    skip_tokenizer: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    gpu_step: tuple[str, ...] = ()
    watchdog: tuple[str, ...] = ()
    model_override: tuple[str, ...] = ()
    expert_exchange: tuple[str, ...] = ()  # that changes how experts are spread over the ranks
    context_parallel: tuple[str, ...] = ()
    options_file: tuple[str, ...] = ()  # a file with further options, which is not read
    numbers: tuple[str, ...] = ()  # options that take a whole number


class VariableNames(Part, frozen=True):
    """Variables of the environment by meaning."""

    longer_context: tuple[str, ...] = ()
    speculation_version: tuple[str, ...] = ()
    pipeline_speculation: tuple[str, ...] = ()
    logging_config: tuple[str, ...] = ()
    other_hub: tuple[str, ...] = ()
    hub_offline: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    visible_devices: tuple[str, ...] = ()


class PackageRules(Part, frozen=True):
    """Where the engine keeps what is read without starting it. Paths are globs below its package."""

    name: str = ""
    flag_sources: tuple[str, ...] = ()
    class_sources: tuple[str, ...] = ()
    class_words: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()


class Rules(Part, frozen=True):
    """All rules of one engine. `studied`: the versions whose source the rules were read from."""

    rules: tuple[Rule, ...] = ()
    include: tuple[str, ...] = ()
    studied: str = ""
    package: PackageRules = PackageRules()
    options: OptionNames = OptionNames()
    variables: VariableNames = VariableNames()
    context_keys: tuple[str, ...] = ()
    default_context: int = 0
    default_context_types: tuple[str, ...] = ()
    eagle_family: tuple[str, ...] = ()  # algorithms with a tree of draft tokens
    hooked_family: tuple[str, ...] = ()  # algorithms whose draft reads what the target's class must hand out
    tokenizer_names: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    stack_reader: str = ""


@functools.cache
def load_rules(engine: str) -> Rules:
    """The rules of that engine; those for all engines when it has none of its own. Raises ProfileError."""
    rules = _parse(engine) or _parse("general") or Rules()
    for name in rules.include:
        part = _parse(name) or Rules()
        rules = msgspec.structs.replace(
            rules,
            rules=rules.rules + part.rules,
            tokenizer_names=rules.tokenizer_names or part.tokenizer_names,
            compilers=rules.compilers or part.compilers,
            stack_reader=rules.stack_reader or part.stack_reader,
            variables=_joined(rules.variables, part.variables),
        )
    return rules


def has_rules(engine: str) -> bool:
    """Whether the engine has rules of its own."""
    return find(engine, "checks") is not None


def _joined(own: VariableNames, general: VariableNames) -> VariableNames:
    named = {meaning: names for meaning, names in msgspec.structs.asdict(own).items() if names}
    return msgspec.structs.replace(general, **named)


def _parse(name: str) -> Rules | None:
    path = find(name, "checks")
    if path is None:
        return None
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Rules)
    except OSError as problem:
        raise ProfileError(f"cannot load the checks of {name!r}: {path}: {problem.strerror}") from problem
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ProfileError(f"cannot load the checks of {name!r}: {path}: {error}") from error
