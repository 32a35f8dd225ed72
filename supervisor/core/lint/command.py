"""Tests of what is started: the program, the engine's installation, its options and variables."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from supervisor.core.lint import versions
from supervisor.core.lint.case import Case, Values, whole
from supervisor.preflight import FlagFacts, Rule


def program(case: Case, rule: Rule) -> Iterator[Values]:
    """The program cannot be started."""
    if case.seen.program.problem:
        yield {"problem": case.seen.program.problem}


def directory(case: Case, rule: Rule) -> Iterator[Values]:
    """The directory to start in is not there."""
    if case.seen.program.directory_problem:
        yield {"problem": case.seen.program.directory_problem}


def missing_file(case: Case, rule: Rule) -> Iterator[Values]:
    """A file that the start reads (an env_file, a logging configuration) cannot be read."""
    for purpose, problem in case.seen.looked.missing_files.items():
        if purpose in rule.words:
            yield {"purpose": purpose, "problem": problem}


def engine_not_installed(case: Case, rule: Rule) -> Iterator[Values]:
    """The interpreter's packages do not contain the engine."""
    engine = case.seen.engine
    if engine.location and not engine.version:
        yield {"location": engine.location, "package": case.rules.package.name}


def whole_numbers(case: Case, rule: Rule) -> Iterator[Values]:
    """An option that takes a whole number got something else."""
    for flag in (*case.options.numbers, *rule.words):
        if flag in case.given and whole(case.given[flag]) is None:
            yield {"option": flag, "value": case.given[flag] or "nothing"}


def unknown_option(case: Case, rule: Rule) -> Iterator[Values]:
    """An option that the installed engine does not know; its own source says so."""
    flags = case.seen.engine.flags
    if flags is not None and flags.complete and not case.variable(case.variables.plugins)[0]:
        yield from _unknown(case, flags)


def doubtful_option(case: Case, rule: Rule) -> Iterator[Values]:
    """The same where the source makes options up at run time, or plugins may."""
    flags = case.seen.engine.flags
    if flags is not None and not (flags.complete and not case.variable(case.variables.plugins)[0]):
        yield from _unknown(case, flags)


def _unknown(case: Case, flags: FlagFacts) -> Iterator[Values]:
    for word in case.raw:
        if word.startswith("--") and not _known(word, flags.known):
            near = difflib.get_close_matches(word, flags.known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "remove it"
            yield {"option": word, "hint": hint, "version": case.seen.engine.version}


def _known(word: str, known: Sequence[str]) -> bool:
    """argparse takes the beginning of an option for the option, and `_` is not `-` to it."""
    return any(flag.startswith(word) for flag in known)


def deprecated_option(case: Case, rule: Rule) -> Iterator[Values]:
    """An option that says of itself that it will go."""
    flags = case.seen.engine.flags
    for word in case.given:
        if flags is not None and word in flags.deprecated:
            yield {"option": word, "note": flags.deprecated[word]}


def colon_in_name(case: Case, rule: Rule) -> Iterator[Values]:
    """A colon in the name by which the model is served."""
    name = case.facts.served_name or case.facts.model_path
    if ":" in name and "://" not in name:
        yield {"name": name}


def log_level(case: Case, rule: Rule) -> Iterator[Values]:
    """A level that hides what a start says about itself. `words` are those that do not."""
    level = case.facts.log_level.lower()
    if level and level not in rule.words:
        yield {"level": level}


def log_format(case: Case, rule: Rule) -> Iterator[Values]:
    """The engine's format of lines is replaced."""
    name, value = case.variable(case.variables.logging_config)
    if value:
        yield {"variable": name, "value": value}


def warmup_skipped(case: Case, rule: Rule) -> Iterator[Values]:
    """No request is sent before the server calls itself ready."""
    if case.facts.skip_warmup:
        yield {}


def watchdog(case: Case, rule: Rule) -> Iterator[Values]:
    """The engine's own watchdog is set shorter than legal iterations. `number` is in seconds."""
    text = case.text(case.options.watchdog)
    seconds = whole(text.partition(".")[0])
    if seconds is not None and 0 < seconds < rule.number:
        yield {"option": case.flag(case.options.watchdog), "seconds": text, "enough": rule.number}


def variable_set(case: Case, rule: Rule) -> Iterator[Values]:
    """A variable that does nothing any more, or too much, is set."""
    for name in rule.words:
        if name in case.seen.environment:
            yield {"variable": name}


def package_versions(case: Case, rule: Rule) -> Iterator[Values]:
    """Kernel packages that are older than those the engine was built for."""
    if not case.on_devices:
        return
    engine = case.seen.engine
    for name, pinned in ((name, engine.pins.get(name, "")) for name in rule.words):
        have, wanted = versions.parse(engine.distributions.get(name, "")), versions.parse(pinned)
        if have is not None and wanted is not None and have < wanted:
            yield {"package": name, "have": engine.distributions[name], "wanted": pinned}
