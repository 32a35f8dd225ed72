"""Says which scheduler ranks a command line starts on this node, how they prefix lines and call themselves."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.simulator.dialect import Dialect
from supervisor.simulator.options import Options


class Rank(NamedTuple):
    """One scheduler process; `group` numbers the independent replicas of pure data parallelism."""

    number: int
    group: int
    device: int
    dp: int
    pp: int
    tp: int
    ep: int
    prefix: str
    leads_group: bool

    @property
    def title(self) -> str:
        return "sglang::scheduler" + self.prefix.replace(" ", "_")

    @property
    def name(self) -> str:
        """`DP0 TP3` for people; TP0 when the prefix is empty because there is only one rank."""
        return self.prefix.strip() or "TP0"

    def matches(self, wanted: str) -> bool:
        """`TP3`, `DP1TP3`, `3` (the number) or the empty word for any rank."""
        if wanted.isdecimal():
            return self.number == int(wanted)
        mine = {f"DP{self.dp}", f"PP{self.pp}", f"TP{self.tp}", f"EP{self.ep}"}
        return all(part in mine for part in _parts(wanted))


def _parts(wanted: str) -> list[str]:
    text = wanted.upper().replace("_", "").replace(" ", "")
    for word in ("DP", "PP", "TP", "EP"):
        text = text.replace(word, " " + word)
    return text.split()


def local_ranks(options: Options, dialect: Dialect) -> tuple[Rank, ...]:
    """Ranks of this node in the order in which the launcher starts them."""
    replicas = 1 if options.enable_dp_attention else options.dp
    world = options.tp * options.pp
    per_node = max(1, world // options.nnodes)
    first = per_node * options.node_rank if options.nnodes > 1 else 0
    places = [(replica, place) for replica in range(replicas) for place in range(first, first + per_node)]
    return tuple(_rank(options, dialect, number, *pair) for number, pair in enumerate(places))


def _rank(options: Options, dialect: Dialect, number: int, replica: int, place: int) -> Rank:
    pp, tp = divmod(place, options.tp)
    dp = replica
    if options.enable_dp_attention and options.dp > 1:
        dp = tp // max(1, options.tp // options.dp)
    ep = tp // max(1, options.tp // options.ep)
    places = {"DP": (options.dp, dp), "PP": (options.pp, pp), "TP": (options.tp, tp), "EP": (options.ep, ep)}
    shown = [f" {word}{places[word][1]}" for word in dialect.prefix_order if places[word][0] > 1]
    device = options.base_gpu_id + number
    return Rank(number, replica, device, dp, pp, tp, ep, "".join(shown), tp == 0)
