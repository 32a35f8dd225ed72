"""The tests that rules name. A test is told the case and its rule, and yields the values of each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from supervisor.core.lint import command, files, host, memory, parallel, speculation
from supervisor.core.lint.case import Case, Values
from supervisor.preflight import Rule

Test: TypeAlias = Callable[[Case, Rule], Iterator[Values]]

OF_ANY_COMMAND: dict[str, Test] = {
    # what is started
    "program": command.program,
    "directory": command.directory,
    "engine-not-installed": command.engine_not_installed,
    "missing-file": command.missing_file,
    "variable-set": command.variable_set,
    "package-versions": command.package_versions,
    # how the work is divided
    "other-visible-devices": parallel.other_visible_devices,
    # the host
    "shared-memory": host.shared_memory,
    "temporary-space": host.temporary_space,
    "open-files": host.open_files,
    "locked-memory": host.locked_memory,
    "compiler": host.compiler,
    "stack-reader": host.stack_reader,
    "driver": host.driver,
    "port-held-by-engine": host.port_held_by_engine,
    "port-held": host.port_held,
    "port-shared": host.port_shared,
}
# They judge options, or what options name: of a command that does not start the engine itself nobody knows them.
OF_OPTIONS: dict[str, Test] = {
    # what is started
    "whole-numbers": command.whole_numbers,
    "unknown-option": command.unknown_option,
    "doubtful-option": command.doubtful_option,
    "deprecated-option": command.deprecated_option,
    "colon-in-name": command.colon_in_name,
    "log-level": command.log_level,
    "log-format": command.log_format,
    "warmup-skipped": command.warmup_skipped,
    "watchdog": command.watchdog,
    # speculation
    "draft-tokens": speculation.draft_tokens,
    "draft-steps-missing": speculation.draft_steps_missing,
    "draft-top-k-missing": speculation.draft_top_k_missing,
    "draft-tree-paged": speculation.draft_tree_paged,
    "draft-tree-paged-unsure": speculation.draft_tree_paged_unsure,
    "draft-tree-backend": speculation.draft_tree_backend,
    "draft-tree-overlap": speculation.draft_tree_overlap,
    "speculation-in-pipeline": speculation.in_pipeline,
    "speculation-in-pipeline-prefill": speculation.in_pipeline_outside_prefill,
    "standalone-data-parallel": speculation.standalone_data_parallel,
    "draft-context": speculation.draft_context,
    "draft-context-allowed": speculation.draft_context_allowed,
    "draft-hidden-size": speculation.draft_hidden_size,
    "target-without-hooks": speculation.target_without_hooks,
    "draft-options-unused": speculation.draft_options_unused,
    "requests-limited": speculation.requests_limited,
    # how the work is divided
    "ranks-over-devices": parallel.ranks_over_devices,
    "idle-devices": parallel.idle_devices,
    "nodes": parallel.nodes,
    "attention-groups": parallel.attention_groups,
    "replicas-over-nodes": parallel.replicas_over_nodes,
    "heads": parallel.heads,
    "quantization-block": parallel.quantization_block,
    "prefill-pages": parallel.prefill_pages,
    "context-length": parallel.context_length,
    # files
    "model-missing": files.model_missing,
    "model-forbidden": files.model_forbidden,
    "config-broken": files.config_broken,
    "config-missing": files.config_missing,
    "index-broken": files.index_broken,
    "shards-missing": files.shards_missing,
    "shards-broken": files.shards_broken,
    "shards-small": files.shards_small,
    "no-weights": files.no_weights,
    "unfinished": files.unfinished,
    "tokenizer": files.tokenizer,
    "hub-offline": files.hub_offline,
    "hub-download": files.hub_download,
    # memory
    "weights-over-device": memory.weights_over_device,
    "weights-over-free": memory.weights_over_free,
    "weights-over-share": memory.weights_over_share,
    "host-cache-over-memory": memory.host_cache_over_memory,
    "host-cache-over-free": memory.host_cache_over_free,
}
TESTS: dict[str, Test] = OF_ANY_COMMAND | OF_OPTIONS
