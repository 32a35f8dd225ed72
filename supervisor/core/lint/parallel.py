"""Tests of how the work is divided: over devices, nodes, heads, blocks and pages."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.lint.case import Case, Values
from supervisor.preflight import Rule


def ranks_over_devices(case: Case, rule: Rule) -> Iterator[Values]:
    """More ranks on this node than it has devices for."""
    have = _devices_at_hand(case)
    if not case.on_devices or have is None or case.ranks % case.facts.nodes:
        return
    count, where = have
    step = case.number(case.options.gpu_step) or 1
    need = case.facts.base_gpu + (case.local_ranks - 1) * step + 1
    if need > count:
        yield {"ranks": case.local_ranks, "need": need, "have": count, "where": where, "how": _how(case)}


def idle_devices(case: Case, rule: Rule) -> Iterator[Values]:
    """A lease of more devices than there are ranks."""
    leased = len(case.seen.gpus) or case.seen.gpu_count
    if case.on_devices and leased > case.facts.base_gpu + case.local_ranks:
        yield {"ranks": case.local_ranks, "leased": leased, "how": _how(case)}


def other_visible_devices(case: Case, rule: Rule) -> Iterator[Values]:
    """The server's own variable wins over the lease: we would watch other devices than it uses."""
    name, value = case.variable(case.variables.visible_devices)
    if name not in case.seen.own_environment or not (case.seen.gpus or case.seen.gpu_count):
        return
    if case.visible() != case.seen.gpus:
        leased = ", ".join(map(str, case.seen.gpus)) or f"any {case.seen.gpu_count}"
        yield {"variable": name, "value": value, "leased": leased}


def _devices_at_hand(case: Case) -> tuple[int, str] | None:
    """How many devices the server will see, and who says so."""
    name, value = case.variable(case.variables.visible_devices)
    if name in case.seen.own_environment:
        return len([word for word in value.split(",") if word.strip()]), f"{name}={value}"
    leased = len(case.seen.gpus) or case.seen.gpu_count
    if leased:
        return leased, "gpus"
    if name:
        return len([word for word in value.split(",") if word.strip()]), f"{name}={value}"
    devices = case.seen.machine.devices
    return (len(devices), "this machine") if devices is not None else None


def _how(case: Case) -> str:
    facts = case.facts
    replicas = 1 if facts.data_parallel_attention else facts.data_parallel
    parts = (("tensor", facts.tensor_parallel), ("pipeline", facts.pipeline_parallel), ("data", replicas))
    text = " x ".join(f"{kind} parallel {size}" for kind, size in parts if size > 1) or "tensor parallel 1"
    return f"{text} over {facts.nodes} nodes" if facts.nodes > 1 else text


def nodes(case: Case, rule: Rule) -> Iterator[Values]:
    """Ranks that the nodes do not divide."""
    facts = case.facts
    total = facts.tensor_parallel * facts.pipeline_parallel
    if facts.nodes > 1 and total % facts.nodes:
        yield {"ranks": total, "nodes": facts.nodes}


def attention_groups(case: Case, rule: Rule) -> Iterator[Values]:
    """Ranks that attention in data parallel does not divide."""
    if case.facts.tensor_parallel % case.attention_groups:
        yield {"tensor": case.facts.tensor_parallel, "data": case.facts.data_parallel}


def replicas_over_nodes(case: Case, rule: Rule) -> Iterator[Values]:
    """Whole replicas over several nodes."""
    facts = case.facts
    if facts.data_parallel > 1 and facts.nodes > 1 and not facts.data_parallel_attention:
        yield {"data": facts.data_parallel, "nodes": facts.nodes}


def heads(case: Case, rule: Rule) -> Iterator[Values]:
    """Attention heads that the ranks do not divide, of a class that asserts it (`words`; without words: of any other).

    The error and the warning are two rules: the latter lists in `words`, after "not", whom the former covers.
    """
    config = case.config
    if config is None or not case.on_devices or case.has(case.options.context_parallel):
        return
    inverse, known = rule.words[:1] == ("not",), set(rule.words)
    if bool(known & set(config.architectures)) is inverse:
        return
    count = config.numbers.get("num_attention_heads")
    ranks = case.facts.tensor_parallel // case.attention_groups
    if count and ranks > 1 and count % ranks:
        yield {"heads": int(count), "ranks": ranks}


def quantization_block(case: Case, rule: Rule) -> Iterator[Values]:
    """Parts of a matrix, quantized in blocks, that are no whole blocks."""
    config = case.config
    if config is None or config.quantization != "fp8" or len(config.quantization_block) != 2:
        return
    spread = (*case.options.expert_exchange, *case.options.context_parallel)
    if case.has(spread) or case.facts.data_parallel_attention or case.facts.expert_parallel > 1 or not case.on_devices:
        return
    ranks, block = case.facts.tensor_parallel, config.quantization_block[0]
    for key in ("intermediate_size", "moe_intermediate_size"):
        size = int(config.numbers.get(key, 0))
        if size and ranks > 1 and (size % ranks or (size // ranks) % block):
            yield {"key": key, "size": size, "ranks": ranks, "block": block}


def prefill_pages(case: Case, rule: Rule) -> Iterator[Values]:
    """A prefill chunk that is no whole number of pages."""
    chunk, page = case.number(case.options.chunked_prefill), case.number(case.options.page_size)
    if chunk is None or page is None or chunk <= 0 or page <= 0 or case.facts.disaggregation == "decode":
        return
    part = chunk // case.attention_groups
    if part % page:
        shared = f" ({chunk} shared by {case.attention_groups})" if part != chunk else ""
        yield {"chunk": part, "page": page, "shared": shared}


def context_length(case: Case, rule: Rule) -> Iterator[Values]:
    """A context longer than the model's own."""
    if case.config is None or case.is_on(case.variables.longer_context):
        return
    derived = case.context_of(case.config)
    if derived is not None and case.facts.context_length > derived:
        yield {"wanted": case.facts.context_length, "derived": derived, "variable": case.variables.longer_context[0]}
