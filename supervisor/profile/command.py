"""Reads a command line by the flags that a profile names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from supervisor.ports import HIGHEST, PortUse, derived_ports
from supervisor.profile.parts import Profile
from supervisor.units import parse_whole


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


def facts(profile: Profile, command: Sequence[str], host: str = "") -> CommandFacts:
    """Reads the command line by the profile's flags, `--flag value` and `--flag=value`; nothing is ever refused.

    `host` is the configured one, which says more than the command does.
    """
    rules = profile.command
    given = _flags(command)

    def text(flags: tuple[str, ...], default: str = "") -> str:
        return next((given[flag] for flag in flags if flag in given), default)

    def number(flags: tuple[str, ...], default: int) -> int:
        value = parse_whole(text(flags))
        return default if value is None else value

    def size(flags: tuple[str, ...]) -> int:
        return max(1, number(flags, 1))  # whoever divides by it divides by something

    def switch(flags: tuple[str, ...]) -> bool:
        return any(flag in given for flag in flags)

    port, node_rank = number(rules.port, rules.default_port), number(rules.node_rank, 0)
    if port > HIGHEST:
        port = rules.default_port
    return CommandFacts(
        port=port,
        host=host or text(rules.host, rules.default_host),
        model_path=text(rules.model) or (_first_word(profile, command) if rules.positional_model else ""),
        served_name=text(rules.served_name),
        tensor_parallel=size(rules.tensor_parallel),
        data_parallel=size(rules.data_parallel),
        pipeline_parallel=size(rules.pipeline_parallel),
        expert_parallel=size(rules.expert_parallel),
        nodes=size(rules.nodes),
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
    return any(_ends_of_name(profile, command))


def _first_word(profile: Profile, command: Sequence[str]) -> str:
    """The word behind the engine's program or module, "" when it is an option or there is none."""
    following = next((command[end] for end in _ends_of_name(profile, command) if end < len(command)), "")
    return "" if following.startswith("-") else following


def _ends_of_name(profile: Profile, command: Sequence[str]) -> Iterator[int]:
    """Where the words begin that follow the engine's program or module; never 0."""
    words = [word.rsplit("/", 1)[-1] for word in command]
    phrases = [program.split() for program in profile.command.programs]
    phrases += [["-m", module] for module in profile.command.modules]
    for phrase in phrases:
        yield from (at + len(phrase) for at in range(len(words)) if words[at : at + len(phrase)] == phrase)


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
