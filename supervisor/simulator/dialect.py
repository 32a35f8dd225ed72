"""Knows how three generations of SGLang differ in wording, order, ranks that print, and exits.

The groups are those of the catalogue of real releases: G1 = 0.4.6.post5-0.5.3, G2 = 0.5.4.post3-0.5.9,
G5 = 0.5.21-0.5.23. Each row says where the real thing was seen.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Who(Enum):
    """Which ranks of a group print a line."""

    ALL = "all ranks"
    FIRST = "rank 0 of the tensor-parallel group"


class DeathWatch(Enum):
    """How the launcher learns that a scheduler died while it waits for all of them."""

    PIPE_OF_RANK_0 = "blocking recv on one pipe after the other (engine.py:886@0.5.9)"
    POLL_EVERY_5_S = "polls is_alive() of every rank (engine.py:2006@0.5.23)"


class Dialect(NamedTuple):
    """One generation."""

    version: str
    group: str
    target_lines: Who  # "Init torch distributed", "Load weight", "Memory pool end", target capture
    registering: Who  # "Registering N cuda graph addresses"
    draft_before_pool: bool  # from 0.5.14: draft weights, then pools, then all captures
    new_wording: bool  # from 0.5.14: "Capture target decode CUDA graph begin. backend=..."
    parallel_init: bool  # from 0.5.21: "Init parallel begin." once, before models exist
    newline_bar: bool  # up to 0.5.9 every update of the loading bar ends with a line feed
    elapsed_in_load: bool  # from 0.5.9: "Load weight end. elapsed="
    serve_warning: bool  # warns that `sglang serve` is preferred
    args_as_dict: bool  # from 0.5.19 server_args= is a dict
    stamped_arg_warnings: bool  # from 0.5.11 argument warnings carry a timestamp
    batch_comma: bool  # "Prefill batch," from 0.5.4, "Prefill batch." before
    model_info_path: str
    has_ready: bool  # /ready from 0.5.20
    prefix_order: tuple[str, ...]
    death_watch: DeathWatch
    watches_serving: bool  # SubprocessWatchdog from 0.5.10
    clean_exit: bool  # drains to exit 0 from 0.5.20; SIGKILLs itself before
    announces_kill: bool  # "kill_process_tree called" from 0.5.13
    startup_timings: bool  # "Engine startup timings (s)" from 0.5.17
    exit_line: str  # drain line; lower-case "remaining" up to 0.5.2


_OLD_ORDER = ("DP", "TP", "EP", "PP")
_NEW_ORDER = ("DP", "PP", "TP", "EP")
_REMAINING = "Gracefully exiting... Remaining number of requests {count}. Remaining requests remaining_rids={rids}."

G1 = Dialect(
    version="0.5.3", group="G1", target_lines=Who.FIRST, registering=Who.ALL, draft_before_pool=False,
    new_wording=False, parallel_init=False, newline_bar=True, elapsed_in_load=False, serve_warning=False,
    args_as_dict=False, stamped_arg_warnings=False, batch_comma=False, model_info_path="/get_model_info",
    has_ready=False, prefix_order=_OLD_ORDER, death_watch=DeathWatch.PIPE_OF_RANK_0, watches_serving=False,
    clean_exit=False, announces_kill=False, startup_timings=False, exit_line=_REMAINING,
)  # fmt: skip
G2 = G1._replace(
    version="0.5.9", group="G2", target_lines=Who.ALL, registering=Who.FIRST, elapsed_in_load=True,
    batch_comma=True, model_info_path="/model_info", prefix_order=_NEW_ORDER,
)  # fmt: skip
G5 = G2._replace(
    version="0.5.23", group="G5", draft_before_pool=True, new_wording=True, parallel_init=True, newline_bar=False,
    serve_warning=True, args_as_dict=True, stamped_arg_warnings=True, has_ready=True,
    death_watch=DeathWatch.POLL_EVERY_5_S, watches_serving=True, clean_exit=True, announces_kill=True,
    startup_timings=True,
)  # fmt: skip

DIALECTS = {dialect.version: dialect for dialect in (G1, G2, G5)}
