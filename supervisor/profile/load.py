"""Reads a profile from `profiles/NAME.toml` and checks that it does not contradict itself.

A profile may take parts from further files (`include`), so that what every engine can suffer (CUDA, NCCL, Python) is
written once.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import TypeVar

import msgspec

from supervisor.profile.parts import Include, Profile

# `.*?X` searched for costs the square of the line's length when X is not in it (26 s for one 19 kB line of arguments)
_LEADING_WILDCARD = re.compile(r"(?:\(\?[a-z]+\))?(?:\.[*+]|\(\?:\.[*+])")


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


def check(profile: Profile) -> None:
    """Raises ProfileError naming what contradicts itself: unknown phases or causes, broken or costly patterns."""
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
