"""One start under judgement: the facts with the command's options and variables, looked up by meaning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from supervisor.core.lint import versions
from supervisor.preflight import ConfigFacts, DeviceFacts, Inspected, ModelFacts, Rules
from supervisor.preflight.rules import DRAFT, MODEL
from supervisor.units import parse_whole

Values: TypeAlias = dict[str, str | int]
_TRUE = frozenset({"1", "true", "yes", "y"})
_GRAPHICS = ("", "cuda", "cuda:0", "auto")


class Case:
    """Reads only. A test asks it and yields the values of each finding."""

    def __init__(self, seen: Inspected, rules: Rules) -> None:
        self.seen = seen
        self.facts = seen.facts
        self.rules = rules
        self.options = rules.options
        self.variables = rules.variables
        self.given = given(seen.arguments)
        self.raw = tuple(word.partition("=")[0] for word in before_end(seen.arguments) if is_option(word))
        self.version = versions.parse(seen.engine.version)

    # --- the command line ---

    def flag(self, flags: Iterable[str]) -> str:
        """Which of the spellings was used, "" when none."""
        return next((flag for flag in flags if flag in self.given), "")

    def text(self, flags: Iterable[str]) -> str:
        """The option's value; the last one counts."""
        flag = self.flag(flags)
        return self.given[flag] if flag else ""

    def number(self, flags: Iterable[str]) -> int | None:
        """The option's value as a whole number, None without one."""
        return whole(self.text(flags))

    def has(self, flags: Iterable[str]) -> bool:
        """Whether the option was given at all."""
        return bool(self.flag(flags))

    # --- the environment ---

    def variable(self, names: Iterable[str]) -> tuple[str, str]:
        """The first of the variables that is set, with its value; ("", "") without one."""
        environment = self.seen.environment
        return next(((name, environment[name]) for name in names if name in environment), ("", ""))

    def is_on(self, names: Iterable[str]) -> bool:
        """Whether the variable says yes."""
        return self.variable(names)[1].strip().lower() in _TRUE

    # --- what the options mean ---

    @property
    def eagle(self) -> bool:
        """Whether a draft model proposes a tree of tokens."""
        return self.facts.speculative.upper() in self.rules.eagle_family

    @property
    def hooked(self) -> bool:
        """Whether the draft needs the hidden states of layers that the target's class has to hand out."""
        return self.facts.speculative.upper() in self.rules.hooked_family

    @property
    def attention_groups(self) -> int:
        """Into how many groups attention in data parallel divides the ranks."""
        return self.facts.data_parallel if self.facts.data_parallel_attention else 1

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        replicas = 1 if self.facts.data_parallel_attention else self.facts.data_parallel
        return self.facts.tensor_parallel * self.facts.pipeline_parallel * replicas

    @property
    def local_ranks(self) -> int:
        """Ranks, and so devices, of this node; where nodes do not divide them another rule says so."""
        return max(1, self.ranks // self.facts.nodes)

    @property
    def on_devices(self) -> bool:
        """Whether it runs on GPUs, as far as its options tell."""
        return self.text(self.options.device) in _GRAPHICS

    @property
    def devices(self) -> tuple[DeviceFacts, ...]:
        """The devices that it will have, as far as they were seen."""
        all_devices = self.seen.machine.devices or ()
        if self.seen.gpu_count and not self.seen.gpus:  # any: no start will be worse off than with the best
            return tuple(sorted(all_devices, key=lambda gpu: -(gpu.free_bytes or 0))[: self.local_ranks])
        visible = self.visible()
        wanted = self.seen.gpus or (visible if visible is not None else tuple(gpu.index for gpu in all_devices))
        first, step = self.facts.base_gpu, self.number(self.options.gpu_step) or 1
        used = tuple(wanted)[first::step][: self.local_ranks]
        return tuple(gpu for gpu in all_devices if gpu.index in used)

    def visible(self) -> tuple[int, ...] | None:
        """The devices that the environment names by number; None when it says nothing, or says it in UUIDs."""
        _, value = self.variable(self.variables.visible_devices)
        words = [word.strip() for word in value.split(",") if word.strip()]
        numbers = [number for word in words if (number := parse_whole(word)) is not None]
        return tuple(numbers) if words and len(numbers) == len(words) else None

    # --- models ---

    @property
    def model(self) -> ModelFacts | None:
        """The model that is served."""
        return self.seen.model(MODEL)

    @property
    def draft(self) -> ModelFacts | None:
        """The draft model, when it has a path of its own."""
        return self.seen.model(DRAFT)

    @property
    def config(self) -> ConfigFacts | None:
        """The served model's configuration; None when unknown or overridden on the command line."""
        if self.model is None or self.has(self.options.model_override):
            return None
        return self.model.config

    def context_of(self, config: ConfigFacts) -> int | None:
        """The longest context by the engine's own rule; None when the configuration leaves it to a class's default."""
        rope = config.rope
        factor = 1.0 if rope is None or rope.original or rope.kind == "llama3" else rope.factor
        for key in self.rules.context_keys:
            if key in config.numbers:
                return int(factor * config.numbers[key])
        known = config.model_type in self.rules.default_context_types
        return int(factor * self.rules.default_context) if known and self.rules.default_context else None


def given(arguments: Sequence[str]) -> dict[str, str]:
    """Every `--option` with its value ("" for a switch), `_` taken for `-`; the last one counts, as argparse has it."""
    found: dict[str, str] = {}
    arguments = before_end(arguments)
    for at, word in enumerate(arguments):
        if not is_option(word):
            continue
        flag, sep, value = word.partition("=")
        following = arguments[at + 1] if at + 1 < len(arguments) else "--"
        found[spelled(flag)] = value if sep else "" if is_option(following) else following
    return found


def before_end(arguments: Sequence[str]) -> Sequence[str]:
    """The words before "--", behind which nothing is an option."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def is_option(word: str) -> bool:
    """Whether an argument parser takes the word for an option: -1 is a number, and what has a space is a value."""
    return len(word) > 1 and word[0] == "-" and " " not in word and not _is_number(word)


def spelled(flag: str) -> str:
    """The option as rules write it."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def whole(text: str) -> int | None:
    """The text as a whole number."""
    number = parse_whole(text[1:] if text[:1] in "+-" else text)
    return -number if number is not None and text[0] == "-" else number


def _is_number(word: str) -> bool:
    return word[1:].replace(".", "", 1).isdecimal()
