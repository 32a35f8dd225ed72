"""Tests of memory: the weights against the very devices, the host's cache against the host."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.lint.case import Case, Values
from supervisor.preflight import ModelFacts, Rule
from supervisor.units import format_bytes

_GIB = 1 << 30
_FLOOR_BYTES = 4 * _GIB  # context of the driver, workspaces, a KV pool worth the name
_KEPT_FREE_BYTES = 10 * _GIB  # each rank leaves that to others (memory_pool_host.py:176 of 0.5.9)
_GB = 10**9  # the option counts in those
_SURE_PERCENT = 90  # of a checkpoint: extra layers for speculation are not loaded with the rest


def weights_over_device(case: Case, rule: Rule) -> Iterator[Values]:
    """More weights a rank than its device has memory at all. Only where they are loaded as they are."""
    share = _share(case, case.model)
    totals = [gpu.total_bytes for gpu in case.devices if gpu.total_bytes]
    if share is None or not totals or case.model is None or any(file.wide_bytes for file in case.model.files):
        return
    if share * _SURE_PERCENT // 100 > min(totals):
        yield _told(case, share) | {"memory": format_bytes(min(totals))}


def weights_over_free(case: Case, rule: Rule) -> Iterator[Values]:
    """Weights, draft and what every start needs besides, against what is free."""
    share = _share(case, case.model)
    frees = [gpu for gpu in case.devices if gpu.free_bytes is not None]
    if share is None or not frees:
        return
    draft = _share(case, case.draft) or 0
    tightest = min(frees, key=lambda gpu: gpu.free_bytes or 0)
    need = share + draft + _FLOOR_BYTES
    if need > (tightest.free_bytes or 0):
        free = format_bytes(tightest.free_bytes or 0)
        yield _told(case, share) | {"need": format_bytes(need), "gpu": tightest.index, "free": free}


def weights_over_share(case: Case, rule: Rule) -> Iterator[Values]:
    """Weights beyond the share of memory that weights and KV pool may take together."""
    share, text = _share(case, case.model), case.text(case.options.memory_share)
    totals = [gpu.total_bytes for gpu in case.devices if gpu.total_bytes]
    fraction = _fraction(text)
    if share is None or fraction is None or not totals:
        return
    if share > min(totals) * fraction:
        allowed = format_bytes(int(min(totals) * fraction))
        yield _told(case, share) | {"option": case.flag(case.options.memory_share), "value": text, "allowed": allowed}


def host_cache_over_memory(case: Case, rule: Rule) -> Iterator[Values]:
    """The host's cache of all ranks together against all memory there is."""
    wanted, there = _host_cache(case), case.seen.machine.memory_bytes
    if wanted and there and wanted > there:
        yield _cache(case, wanted) | {"there": format_bytes(there)}


def host_cache_over_free(case: Case, rule: Rule) -> Iterator[Values]:
    """The same against what is available now, less what each rank leaves to others."""
    wanted, machine = _host_cache(case), case.seen.machine
    free = machine.memory_free_bytes
    if not wanted or free is None or not machine.memory_bytes:
        return
    if free - _KEPT_FREE_BYTES < wanted <= machine.memory_bytes:
        yield _cache(case, wanted) | {"there": format_bytes(free)}


def _share(case: Case, model: ModelFacts | None) -> int | None:
    """Bytes of weights a rank, at least; None where something else decides (offload, quantization at load)."""
    options = case.options
    changed = (*options.offload, *options.quantization, *options.load_format, *options.model_override)
    if model is None or not model.bytes or not case.on_devices or case.has(changed):
        return None
    return model.bytes // (case.facts.tensor_parallel * case.facts.pipeline_parallel)


def _told(case: Case, share: int) -> Values:
    assert case.model is not None  # noqa: S101 - there is a share only of a model
    parts = case.facts.tensor_parallel * case.facts.pipeline_parallel
    return {"share": format_bytes(share), "weights": format_bytes(case.model.bytes), "parts": parts}


def _host_cache(case: Case) -> int:
    size = case.number(case.options.host_cache_size)
    if size is None or size <= 0 or not case.has(case.options.host_cache):
        return 0
    return size * _GB * case.local_ranks


def _cache(case: Case, wanted: int) -> Values:
    size = case.text(case.options.host_cache_size)
    return {"wanted": format_bytes(wanted), "ranks": case.local_ranks, "size": size, "option": _option(case)}


def _option(case: Case) -> str:
    return case.flag(case.options.host_cache_size)


def _fraction(text: str) -> float | None:
    digits = text.replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdecimal() else None
