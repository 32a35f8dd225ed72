"""Reads a model's config.json into the few facts that rules ask for."""

from __future__ import annotations

from typing import Any, TypeGuard

from supervisor.preflight import ConfigFacts, RopeFacts

# Where models of several kinds of input keep what describes their text model.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_NUMBER_MAX = 1 << 62


def parse_config(config: dict[str, Any]) -> ConfigFacts:
    """Whatever the file holds, the answer is one; what has a wrong type is left out."""
    text = _text_part(config)
    quantization = _table(config.get("quantization_config")) or _table(text.get("quantization_config"))
    architectures = config.get("architectures")
    return ConfigFacts(
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        model_type=str(text.get("model_type") or ""),
        numbers={key: float(value) for key, value in text.items() if is_number(value)},
        rope=_rope(text),
        quantization=str(quantization.get("quant_method") or ""),
        quantization_block=_whole(quantization.get("weight_block_size")),
    )


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The innermost one, however deep it lies."""
    while part := next(filter(None, (_table(config.get(name)) for name in _TEXT_PARTS)), None):
        config = part
    return config


def _rope(text: dict[str, Any]) -> RopeFacts | None:
    """`rope_parameters` is what newer releases of transformers call it."""
    rope = _table(text.get("rope_scaling")) or _table(text.get("rope_parameters"))
    if not rope:
        return None
    factor = rope.get("factor", 1)
    kind = rope.get("rope_type") or ""
    original = "original_max_position_embeddings" in rope
    return RopeFacts(float(factor) if is_number(factor) else 1.0, original, str(kind))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def is_number(value: object) -> TypeGuard[int | float]:
    """One that a model can have: JSON as Python reads it knows infinity, and whole numbers of any length."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _NUMBER_MAX


def _whole(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) and all(type(one) is int for one in value) else ()
