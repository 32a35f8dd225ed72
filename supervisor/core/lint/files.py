"""Tests of what lies on disk: model folders, shards, tokenizers, copies of a hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.core.lint.case import Case, Values
from supervisor.preflight import ModelFacts, ModelKind, Rule
from supervisor.units import format_bytes

_NAMED = 3  # of a list of files; the rest is counted


def model_missing(case: Case, rule: Rule) -> Iterator[Values]:
    """A path where nothing is."""
    for model in _of(case, ModelKind.MISSING):
        yield _named(model)


def model_forbidden(case: Case, rule: Rule) -> Iterator[Values]:
    """A folder or files that the server's user may not read."""
    user = case.seen.user or "the server's user"
    for model in case.seen.models:
        if model.kind is ModelKind.FORBIDDEN:
            yield _named(model) | {"user": user, "files": model.path}
        elif model.unreadable:
            yield _named(model) | {"user": user, "files": listed(model.unreadable)}


def config_broken(case: Case, rule: Rule) -> Iterator[Values]:
    """A config.json that is none."""
    for model in case.seen.models:
        if model.config_problem:
            yield _named(model) | {"problem": model.config_problem}


def config_missing(case: Case, rule: Rule) -> Iterator[Values]:
    """A folder without config.json, and without files of a format that needs none."""
    for model in _of(case, ModelKind.FOLDER):
        readable = not model.unreadable and model.role != "tokenizer"
        if readable and model.config is None and not model.config_problem and not model.other_formats:
            yield _named(model)


def index_broken(case: Case, rule: Rule) -> Iterator[Values]:
    """An index of shards that cannot be read."""
    for model in _weighed(case):
        if model.index_problem:
            yield _named(model) | {"problem": model.index_problem}


def shards_missing(case: Case, rule: Rule) -> Iterator[Values]:
    """Files that the index names and that are not there."""
    for model in _weighed(case):
        if model.missing and not _completed_by_itself(case, model):
            total = len(model.missing) + len(model.files)
            yield _named(model) | {"count": len(model.missing), "total": total, "files": listed(model.missing)}


def shards_broken(case: Case, rule: Rule) -> Iterator[Values]:
    """Files whose header or size is wrong."""
    for model in _weighed(case):
        broken = [file for file in model.files if file.problem]
        if broken:
            names = [f"{file.name} ({file.problem})" for file in broken]
            yield _named(model) | {"count": len(broken), "files": listed(names)}


def shards_small(case: Case, rule: Rule) -> Iterator[Values]:
    """Less weight than the index speaks of, though all files are there and whole."""
    for model in _weighed(case):
        complete = not model.missing and not any(file.problem for file in model.files)
        if complete and model.index_bytes and model.bytes * 100 < model.index_bytes * rule.number:
            yield _named(model) | {"bytes": format_bytes(model.bytes), "index": format_bytes(model.index_bytes)}


def no_weights(case: Case, rule: Rule) -> Iterator[Values]:
    """A folder without any weights."""
    for model in _weighed(case):
        some = model.files or model.missing or model.unreadable or model.other_formats or model.index_problem
        if not some and not _completed_by_itself(case, model):
            yield _named(model)


def unfinished(case: Case, rule: Rule) -> Iterator[Values]:
    """Partial files of a download."""
    for model in case.seen.models:
        if model.unfinished:
            yield _named(model) | {"count": len(model.unfinished), "files": listed(model.unfinished)}


def tokenizer(case: Case, rule: Rule) -> Iterator[Values]:
    """No file of a tokenizer where one is needed."""
    if case.has(case.options.skip_tokenizer):
        return
    for model in case.seen.models:
        if model.tokenizer is False and not _completed_by_itself(case, model):
            yield _named(model) | {"option": case.options.skip_tokenizer[0] if case.options.skip_tokenizer else ""}


def hub_offline(case: Case, rule: Rule) -> Iterator[Values]:
    """A hub's model without a copy, and the hub must not be asked."""
    for model in _uncached(case):
        if case.is_on(case.variables.hub_offline):
            yield _named(model) | {"variable": case.variable(case.variables.hub_offline)[0], "cache": model.cache}


def hub_download(case: Case, rule: Rule) -> Iterator[Values]:
    """A hub's model without a copy: the start begins with a download."""
    for model in _uncached(case):
        if not case.is_on(case.variables.hub_offline):
            free = "" if model.cache_free_bytes is None else f", {format_bytes(model.cache_free_bytes)} are free there"
            yield _named(model) | {"cache": model.cache, "free": free}


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _named(model: ModelFacts) -> Values:
    return {"role": model.role, "path": model.path}


def _of(case: Case, kind: ModelKind) -> Iterator[ModelFacts]:
    return (model for model in case.seen.models if model.kind is kind)


def _weighed(case: Case) -> Iterator[ModelFacts]:
    """Models whose weights will be read from files as they lie there (a dummy load reads none)."""
    plain = case.text(case.options.load_format) in ("", "auto", "safetensors")
    for model in case.seen.models:
        here = model.kind is ModelKind.FOLDER or (model.kind is ModelKind.HUB and model.folder)
        if plain and here and model.role != "tokenizer":
            yield model


def _completed_by_itself(case: Case, model: ModelFacts) -> bool:
    """A hub's copy: what is missing is fetched at the start, unless that is forbidden."""
    return model.kind is ModelKind.HUB and not case.is_on(case.variables.hub_offline)


def _uncached(case: Case) -> Iterator[ModelFacts]:
    if not case.is_on(case.variables.other_hub):
        yield from (model for model in _of(case, ModelKind.HUB) if not model.folder)
