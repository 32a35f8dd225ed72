"""What differs between engines, read once from `profiles/NAME.toml` into frozen values.

The daemon, the probes, the log reader and the checks name no engine: flags of the command line, phases and their
deadlines, log rules, cause signatures and process titles all come from here.
"""

from supervisor.profile.command import CommandFacts, api_key, facts, recognises
from supervisor.profile.load import ProfileError, check, load_profile, profile_names
from supervisor.profile.parts import (
    CanaryRule,
    Cause,
    CommandRules,
    EngineMetrics,
    Grammar,
    Include,
    LeftoverRule,
    LogRule,
    Part,
    PhaseRule,
    Place,
    Profile,
    Readiness,
    RoleRule,
    Signature,
    Stop,
)
from supervisor.profile.recognition import engine_of

__all__ = [
    "CanaryRule",
    "Cause",
    "CommandFacts",
    "CommandRules",
    "EngineMetrics",
    "Grammar",
    "Include",
    "LeftoverRule",
    "LogRule",
    "Part",
    "PhaseRule",
    "Place",
    "Profile",
    "ProfileError",
    "Readiness",
    "RoleRule",
    "Signature",
    "Stop",
    "api_key",
    "check",
    "engine_of",
    "facts",
    "load_profile",
    "profile_names",
    "recognises",
]
