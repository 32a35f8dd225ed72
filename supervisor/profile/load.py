"""Reads a profile from NAME.toml and checks that it does not contradict itself.

A profile may take parts from further files (`include`), so that what every engine can suffer (CUDA, NCCL, Python) is
written once.
"""

from __future__ import annotations

import functools
import re
from typing import TypeVar

import msgspec

from supervisor.profile.parts import Cause, Include, Profile, Signature
from supervisor.profile.place import find, folders, own_folder
from supervisor.units import is_signal

# `.*?X` searched for costs the square of the line's length when X is not in it (26 s for one 19 kB line of arguments)
_LEADING_WILDCARD = re.compile(r"(?:\(\?[a-z]+\))?(?:\.[*+]|\(\?:\.[*+])")
# What a linear matcher has not: references back, conditions, and what never gives back (RE2's documentation of syntax)
_BEYOND_LINEAR = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?P=|\(\?\(|\(\?>|(?<!\\)[*+?}]\+)")
_TERM = re.compile(r"\{(\w+)\}")


class ProfileError(ValueError):
    """A profile cannot be used; the message names the file and the key."""


@functools.cache
def load_profile(name: str) -> Profile:
    """The profile of that name. Raises ProfileError naming file and key of what is wrong."""
    profile = _parse(name, Profile)
    for include in profile.include:
        part = _parse(include, Include)
        profile = _join(profile, part)
    check(profile)
    return profile


def profile_names() -> tuple[str, ...]:
    """The engines that are known here (a file that others include is none)."""
    entries = (entry.name for folder in folders() for entry in folder.iterdir())
    names = {entry.removesuffix(".toml") for entry in entries if entry.endswith(".toml")}
    return tuple(sorted(name for name in names if not name.startswith("causes")))


def _join(profile: Profile, part: Include) -> Profile:
    grammar = msgspec.structs.replace(
        profile.grammar,
        wrappers=profile.grammar.wrappers + part.wrappers,
        benign=profile.grammar.benign + part.benign,
    )
    own, terms = {cause.name for cause in profile.causes}, part.terms | profile.terms
    return msgspec.structs.replace(
        profile,
        grammar=grammar,
        compilers=profile.compilers + part.compilers,
        signatures=profile.signatures + tuple(_worded(one, terms) for one in part.signatures),
        causes=profile.causes + tuple(_worded(one, terms) for one in part.causes if one.name not in own),
        places=profile.places + part.places,
    )


_Advice = TypeVar("_Advice", Signature, Cause)


def _worded(advice: _Advice, terms: dict[str, str]) -> _Advice:
    """What to change, in the engine's own words; values that only a log knows stay open."""
    plain, computed = advice.remedy, advice.remedy_computed
    for term, words in terms.items():
        plain, computed = plain.replace(f"{{{term}}}", words), computed.replace(f"{{{term}}}", words)
    return msgspec.structs.replace(advice, remedy=plain, remedy_computed=computed)


_T = TypeVar("_T", Profile, Include)


def _parse(name: str, kind: type[_T]) -> _T:
    path = find(name)
    if path is None:
        raise ProfileError(
            f"cannot load the profile of engine {name!r}: neither {own_folder()} nor the package has {name}.toml"
        )
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as problem:
        raise ProfileError(f"cannot load the profile of engine {name!r}: {path}: {problem.strerror}") from problem
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ProfileError(f"cannot load the profile of engine {name!r}: {path}: {error}") from error


def check(profile: Profile) -> None:
    """Raises ProfileError naming what contradicts itself: unknown phases or causes, broken or costly patterns."""
    phases = {phase.name for phase in profile.phases} | {phase.speculative_name for phase in profile.phases}
    for rule in profile.rules:
        _compiles(profile.name, rule.name, rule.pattern)
        for phase in (rule.enter, rule.leave, rule.again, rule.draft):
            if phase not in phases | {""}:
                raise ProfileError(f"profile {profile.name}: rule {rule.name!r} names an unknown phase {phase!r}")
    if not is_signal(profile.stop.signal):
        raise ProfileError(f"profile {profile.name}: [stop] has no signal {profile.stop.signal!r}: write TERM or INT")
    causes = {cause.name for cause in profile.causes}
    names = {signature.name for signature in profile.signatures} | {""}
    for signature in profile.signatures:
        _check_signature(profile.name, signature, names, causes)
    advised: tuple[Cause | Signature, ...] = (*profile.causes, *profile.signatures)
    for advice in advised:
        if missing := _TERM.findall(advice.remedy):
            wanted = ", ".join(sorted(set(missing)))
            raise ProfileError(f"profile {profile.name}: the remedy of {advice.name!r} needs under [terms]: {wanted}")


def _check_signature(profile: str, signature: Signature, names: set[str], causes: set[str]) -> None:
    for other in (signature.beyond, signature.together, signature.repeated, signature.closes):
        if other not in names:
            raise ProfileError(f"profile {profile}: {signature.name!r} names an unknown signature {other!r}")
    if not signature.needles and {"record", "raw"} & set(signature.where):
        raise ProfileError(f"profile {profile}: {signature.name!r} reads lines and has no needles")
    if _LEADING_WILDCARD.match(signature.pattern) and not signature.at_start:
        raise ProfileError(
            f"profile {profile}: {signature.name!r} begins with a wildcard, which makes a search "
            "cost the square of the line's length: leave it out"
        )
    for pattern in (signature.pattern, signature.frames, signature.not_frames, signature.unless):
        _compiles(profile, signature.name, pattern)
    for cause in (signature.cause, *signature.by_stage.values()):
        if cause not in causes:
            raise ProfileError(f"profile {profile}: signature {signature.name!r} names an unknown cause {cause!r}")


def _compiles(profile: str, name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ProfileError(f"profile {profile}: {name!r} has a broken pattern {pattern!r}: {error}") from error
    if beyond := _BEYOND_LINEAR.search(pattern):
        raise ProfileError(
            f"profile {profile}: {name!r} has a pattern that cannot be matched in linear time: "
            f"{beyond[0]!r} in {pattern!r}"
        )
