"""Makes the facts about a start for the tests of rules: one call says what is special about it."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.core.lint import Finding, lint
from supervisor.preflight import (
    ConfigFacts,
    DeviceFacts,
    EngineFacts,
    FileFacts,
    Inspected,
    Looked,
    MachineFacts,
    ModelFacts,
    ModelKind,
    PortFacts,
    Severity,
    launch_of,
    load_rules,
)
from supervisor.preflight.rules import DRAFT, MODEL
from supervisor.profile import facts, load_profile

GIB = 1 << 30
PROFILE = load_profile("sglang")
RULES = load_rules("sglang")
MODEL_PATH, DRAFT_PATH = "/models/kimi", "/models/draft"


def config(**numbers: float) -> ConfigFacts:
    return ConfigFacts(("LlamaForCausalLM",), "llama", numbers)


def folder(role: str = MODEL, path: str = MODEL_PATH, **more: object) -> ModelFacts:
    """A complete model, but for what is said."""
    usual: dict[str, object] = {
        "config": config(max_position_embeddings=131072, num_attention_heads=64, hidden_size=8192),
        "files": (
            FileFacts("model-00001-of-00002.safetensors", 8 * GIB),
            FileFacts("model-00002-of-00002.safetensors"),
        ),
        "tokenizer": True,
    }
    return ModelFacts(role, path, ModelKind.FOLDER, path, **(usual | more))  # type: ignore[arg-type]


def draft(**more: object) -> ModelFacts:
    return folder(DRAFT, DRAFT_PATH, **({"tokenizer": None} | more))


def gpus(count: int, total_gib: int = 141, free_gib: int = 140) -> tuple[DeviceFacts, ...]:
    return tuple(DeviceFacts(index, "H200", total_gib * GIB, free_gib * GIB) for index in range(count))


def start(
    options: str = "",
    *,
    version: str = "0.5.9",
    models: Iterable[ModelFacts] = (),
    environment: dict[str, str] | None = None,
    own: Iterable[str] = (),
    leased: tuple[int, ...] = (),
    leased_count: int = 0,
    engine: EngineFacts | None = None,
    machine: MachineFacts | None = None,
    ports: tuple[PortFacts, ...] = (),
    looked: Looked | None = None,
    user: str = "",
) -> Inspected:
    command = ["python", "-m", "sglang.launch_server", "--model-path", MODEL_PATH, *options.split()]
    seen = looked or Looked(
        models=tuple(models), engine=engine or EngineFacts(version=version), machine=machine or MachineFacts()
    )
    return Inspected(
        server="kimi",
        arguments=launch_of(PROFILE, command).arguments,
        facts=facts(PROFILE, command),
        environment=environment or {},
        own_environment=tuple(own),
        gpus=leased,
        gpu_count=leased_count,
        user=user,
        looked=seen,
        ports=ports,
    )


def findings(inspected: Inspected, rule: str = "") -> list[Finding]:
    return [finding for finding in lint(inspected, RULES) if rule in ("", finding.rule)]


def severity(inspected: Inspected, rule: str) -> Severity | None:
    """How grave the rule's finding is, None when it finds nothing."""
    found = findings(inspected, rule)
    assert len(found) <= 1, found
    return found[0].severity if found else None


def names(inspected: Inspected) -> set[str]:
    return {finding.rule for finding in findings(inspected)}
