"""The checks of the second engine: what vLLM 0.32.0 was seen to refuse."""

from __future__ import annotations

import pytest

from supervisor.core.lint import lint
from supervisor.preflight import (
    DeviceFacts,
    EngineFacts,
    Inspected,
    Looked,
    MachineFacts,
    Severity,
    launch_of,
    load_rules,
)
from supervisor.profile import facts, load_profile
from tests.core.lint.start import config, folder, gpus

PROFILE, RULES = load_profile("vllm"), load_rules("vllm")
COMMAND = ["/opt/vllm/bin/vllm", "serve", "/models/kimi"]


def found(options: str, version: str = "0.32.0", devices: tuple[DeviceFacts, ...] | None = None) -> dict[str, Severity]:
    command = [*COMMAND, *options.split()]
    model = folder(config=config(max_position_embeddings=131072, num_attention_heads=28))
    looked = Looked(models=(model,), engine=EngineFacts(version=version), machine=MachineFacts(devices=devices))
    read = facts(PROFILE, command)
    assert read.model_path == "/models/kimi"
    seen = Inspected("kimi", launch_of(PROFILE, command).arguments, read, looked=looked)
    return {one.rule: one.severity for one in lint(seen, RULES) if one.severity is not Severity.NOTICE}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--max-model-len 200000", "context-too-long"),
        ("--tensor-parallel-size 8", "heads-divide"),
        ("-tp 8", "heads-divide"),
        ("--max-num-seqs many", "whole-numbers"),
    ],
)
def test_what_is_refused(options: str, rule: str) -> None:
    assert found(options) == {rule: Severity.ERROR}


def test_a_plain_start_has_no_findings() -> None:
    assert found("--tensor-parallel-size 4 --max-model-len 32768", devices=gpus(4)) == {}


def test_a_model_without_tokenizer_is_told_where_no_option_does_without() -> None:
    looked = Looked(models=(folder(tokenizer=False),), engine=EngineFacts(version="0.32.0"))
    seen = Inspected("kimi", launch_of(PROFILE, COMMAND).arguments, facts(PROFILE, COMMAND), looked=looked)
    assert {one.rule for one in lint(seen, RULES)} == {"tokenizer-missing"}


def test_more_ranks_than_devices() -> None:
    assert found("--tensor-parallel-size 4", devices=gpus(2)) == {"devices-too-few": Severity.ERROR}


def test_another_version_was_not_studied() -> None:
    assert found("--tensor-parallel-size 8", version="0.40.0") == {"heads-divide": Severity.WARNING}
    assert found("--tensor-parallel-size 8", version="0.20.1") == {}
