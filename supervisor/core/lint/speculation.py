"""Tests of speculative decoding: what the engine refuses, changes without a word, or finds out half an hour later."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.lint.case import Case, Values
from supervisor.preflight import Rule


def draft_tokens(case: Case, rule: Rule) -> Iterator[Values]:
    """With top-k 1 the draft is a chain: steps + 1 tokens, whatever was asked for."""
    options = case.options
    steps, tokens = case.number(options.draft_steps), case.number(options.draft_tokens)
    if not case.eagle or case.number(options.draft_top_k) != 1 or steps is None or tokens is None:
        return
    if tokens != steps + 1:
        yield {"tokens": tokens, "becomes": steps + 1, "steps": steps, "wanted_steps": tokens - 1}


def draft_steps_missing(case: Case, rule: Rule) -> Iterator[Values]:
    """Top-k or tokens without steps."""
    options = case.options
    if not case.eagle or case.has((*options.draft_steps, *options.adaptive_draft)):
        return
    others = [flag for flag in (case.flag(options.draft_top_k), case.flag(options.draft_tokens)) if flag]
    if others:
        yield {"others": " and ".join(others), "steps": options.draft_steps[0]}


def draft_top_k_missing(case: Case, rule: Rule) -> Iterator[Values]:
    """Steps without top-k."""
    options = case.options
    if case.eagle and case.has(options.draft_steps) and not case.has((*options.draft_top_k, *options.adaptive_draft)):
        yield {"steps": case.flag(options.draft_steps), "top_k": options.draft_top_k[0]}


def draft_tree_paged(case: Case, rule: Rule) -> Iterator[Values]:
    """A tree (top-k > 1) over pages of several tokens, with an attention backend that cannot do it."""
    backend = case.text(case.options.attention_backend)
    if backend and backend not in rule.words:
        yield from _tree_over_pages(case, rule, backend)


def draft_tree_paged_unsure(case: Case, rule: Rule) -> Iterator[Values]:
    """The same where the engine chooses the backend."""
    if not case.has(case.options.attention_backend):
        yield from _tree_over_pages(case, rule, "the engine's own choice")


def _tree_over_pages(case: Case, rule: Rule, backend: str) -> Iterator[Values]:
    top_k, page = case.number(case.options.draft_top_k), case.number(case.options.page_size)
    if case.eagle and top_k is not None and page is not None and top_k > 1 and page > 1:
        yield {"top_k": top_k, "page": page, "backend": backend, "able": ", ".join(rule.words)}


def draft_tree_backend(case: Case, rule: Rule) -> Iterator[Values]:
    """A tree with an attention backend that knows chains only."""
    options = case.options
    top_k = case.number(options.draft_top_k)
    if not case.eagle or top_k is None or top_k <= 1:
        return
    for flags in (options.attention_backend, options.prefill_attention_backend, options.decode_attention_backend):
        if case.text(flags) in rule.words:
            yield {"top_k": top_k, "flag": case.flag(flags), "backend": case.text(flags)}
            return


def draft_tree_overlap(case: Case, rule: Rule) -> Iterator[Values]:
    """A tree with the overlapping scheduler of speculation's second version."""
    top_k = case.number(case.options.draft_top_k)
    if case.eagle and top_k is not None and top_k > 1 and case.is_on(case.variables.speculation_version):
        yield {"top_k": top_k, "variable": case.variable(case.variables.speculation_version)[0]}


def in_pipeline(case: Case, rule: Rule) -> Iterator[Values]:
    """Speculation in pipeline parallel."""
    if case.facts.speculative and case.facts.pipeline_parallel > 1:
        yield {"algorithm": case.facts.speculative, "pipeline": case.facts.pipeline_parallel}


def in_pipeline_outside_prefill(case: Case, rule: Rule) -> Iterator[Values]:
    """The same where prefill nodes may do it, or a variable allows it."""
    if case.facts.disaggregation != "prefill" and not case.is_on(case.variables.pipeline_speculation):
        yield from in_pipeline(case, rule)


def standalone_data_parallel(case: Case, rule: Rule) -> Iterator[Values]:
    """An algorithm that does not know attention in data parallel."""
    if case.facts.speculative.upper() in rule.words and case.facts.data_parallel_attention:
        yield {"algorithm": case.facts.speculative}


def draft_context(case: Case, rule: Rule) -> Iterator[Values]:
    """The draft is given the target's context, and its own may be shorter."""
    if not case.is_on(case.variables.longer_context):
        yield from _short_draft(case)


def draft_context_allowed(case: Case, rule: Rule) -> Iterator[Values]:
    """The same where it is allowed by the environment."""
    if case.is_on(case.variables.longer_context):
        yield from _short_draft(case)


def _short_draft(case: Case) -> Iterator[Values]:
    if not case.facts.speculative or case.draft is None or case.draft.config is None or case.config is None:
        return
    target = case.facts.context_length or case.context_of(case.config)
    draft = case.context_of(case.draft.config)
    if target is not None and draft is not None and target > draft:
        yield {"target": target, "draft": draft, "variable": case.variables.longer_context[0]}


def draft_hidden_size(case: Case, rule: Rule) -> Iterator[Values]:
    """A draft that reads the target's hidden states must be made for their size."""
    if not case.eagle or case.facts.speculative.upper() in rule.words or case.draft is None:
        return
    draft, target = case.draft.config, case.config
    if draft is None or target is None or "hidden_size" not in target.numbers:
        return
    made_for = draft.numbers.get("target_hidden_size", draft.numbers.get("hidden_size"))
    if made_for is not None and made_for != target.numbers["hidden_size"]:
        yield {"draft": int(made_for), "target": int(target.numbers["hidden_size"])}


def target_without_hooks(case: Case, rule: Rule) -> Iterator[Values]:
    """A target's class that is known not to hand out its hidden states, unless the installed source has the method."""
    config = case.config
    if not case.hooked or config is None:
        return
    patched = bool(case.seen.engine.class_words)
    for architecture in config.architectures:
        if architecture in rule.words and not patched:
            version = case.seen.engine.version or "this version"
            yield {"algorithm": case.facts.speculative, "architecture": architecture, "version": version}


def draft_options_unused(case: Case, rule: Rule) -> Iterator[Values]:
    """Options of a draft without an algorithm."""
    used = [flag for flag in case.options.draft_options if flag in case.given]
    if used and not case.facts.speculative:
        yield {"options": ", ".join(used)}


def requests_limited(case: Case, rule: Rule) -> Iterator[Values]:
    """Speculation limits the running requests unless told otherwise."""
    if case.facts.speculative and not case.has(case.options.max_running):
        yield {"limit": rule.number, "option": case.options.max_running[0]}
