"""Which ranks a command line starts, and how they prefix their lines in each generation."""

import pytest

from supervisor.simulator.dialect import DIALECTS
from supervisor.simulator.layout import local_ranks
from supervisor.simulator.options import Options


def ranks(dialect="0.5.9", **options):
    return local_ranks(Options(**options), DIALECTS[dialect])


def test_one_rank_shows_nothing():
    (rank,) = ranks()
    assert (rank.prefix, rank.title, rank.name) == ("", "sglang::scheduler", "TP0")


def test_tensor_parallel_ranks_have_a_device_each():
    assert [(rank.prefix, rank.device) for rank in ranks(tp=3, base_gpu_id=4)] == [
        (" TP0", 4),
        (" TP1", 5),
        (" TP2", 6),
    ]


@pytest.mark.parametrize(("dialect", "last"), [("0.5.3", " TP1 EP1 PP1"), ("0.5.9", " PP1 TP1 EP1")])
def test_the_order_of_the_prefix_changed(dialect, last):
    assert ranks(dialect, tp=2, pp=2, ep=2)[-1].prefix == last


def test_pure_data_parallelism_makes_independent_groups():
    found = ranks(dp=2, tp=2)
    assert [(rank.prefix, rank.group, rank.leads_group) for rank in found] == [
        (" DP0 TP0", 0, True),
        (" DP0 TP1", 0, False),
        (" DP1 TP0", 1, True),
        (" DP1 TP1", 1, False),
    ]
    assert found[2].title == "sglang::scheduler_DP1_TP0"


def test_data_parallel_attention_is_one_group():
    found = ranks(dp=2, tp=4, enable_dp_attention=True)
    assert [rank.prefix for rank in found] == [" DP0 TP0", " DP0 TP1", " DP1 TP2", " DP1 TP3"]
    assert {rank.group for rank in found} == {0}


def test_a_node_starts_its_own_share():
    assert [rank.tp for rank in ranks(tp=8, nnodes=2, node_rank=1)] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [("", 4), ("TP1", 2), ("DP1", 2), ("DP1TP1", 1), ("DP1 TP1", 1), ("dp1_tp1", 1), ("3", 1), ("TP7", 0)],
)
def test_ranks_are_found_by_name_or_number(wanted, count):
    assert sum(rank.matches(wanted) for rank in ranks(dp=2, tp=2)) == count
