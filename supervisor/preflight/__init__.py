"""The words of the preflight: what was found out about a start before it, and the rules that judge it, as data."""

from supervisor.preflight.command import Launch, launch_of
from supervisor.preflight.facts import (
    ConfigFacts,
    DeviceFacts,
    EngineFacts,
    FileFacts,
    FlagFacts,
    Inspected,
    LimitFacts,
    Looked,
    MachineFacts,
    ModelFacts,
    ModelKind,
    PortFacts,
    ProgramFacts,
    Request,
    RopeFacts,
)
from supervisor.preflight.rules import OptionNames, PackageRules, Rule, Rules, Severity, VariableNames, load_rules

__all__ = [
    "ConfigFacts",
    "DeviceFacts",
    "EngineFacts",
    "FileFacts",
    "FlagFacts",
    "Inspected",
    "Launch",
    "LimitFacts",
    "Looked",
    "MachineFacts",
    "ModelFacts",
    "ModelKind",
    "OptionNames",
    "PackageRules",
    "PortFacts",
    "ProgramFacts",
    "Request",
    "RopeFacts",
    "Rule",
    "Rules",
    "Severity",
    "VariableNames",
    "launch_of",
    "load_rules",
]
