"""The further ports of a server, as the profile's rules and the command line have it."""

from __future__ import annotations

import pytest

from supervisor.ports import PortRule, PortUse, derived_ports
from supervisor.profile import facts, load_profile

ENGINE = ("python", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "30000")


def ports(*more: str) -> dict[int, str]:
    found = facts(load_profile("sglang"), (*ENGINE, *more)).ports
    return {use.port: use.purpose for use in found}


def test_a_plain_server_binds_its_own_port_alone() -> None:
    assert ports() == {}


def test_attention_in_data_parallel_binds_six_from_a_fixed_distance_on() -> None:
    assert set(ports("--dp", "2", "--enable-dp-attention")) == set(range(30233, 30239))


def test_they_follow_the_address_that_the_command_names() -> None:
    named = ports("--enable-dp-attention", "--dist-init-addr", "10.0.0.1:5000")
    assert set(named) == set(range(5000, 5006))
    assert set(ports("--dist-init-addr", "[::1]:5000")) == {5000}
    assert set(ports("--nccl-port=7000")) == {7000}


def test_further_nodes_bind_none_of_them() -> None:
    assert ports("--dist-init-addr", "10.0.0.1:5000", "--nnodes", "2", "--node-rank", "1") == {}


def test_a_prefill_server_binds_its_bootstrap_port() -> None:
    assert ports("--disaggregation-mode", "prefill") == {8998: "disaggregation bootstrap"}
    assert ports("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "9100") == {
        9100: "disaggregation bootstrap"
    }
    assert ports("--disaggregation-mode", "decode") == {}


@pytest.mark.parametrize(("own", "first"), [(65302, 65535), (65303, 65070), (0, None)])
def test_a_port_beyond_the_last_turns_round(own: int, first: int | None) -> None:
    found = derived_ports((PortRule("x", offset=233),), {}, own)
    assert [use.port for use in found] == ([first] if first else [])


def test_what_is_no_port_is_ignored_and_none_comes_twice() -> None:
    rules = (PortRule("a", flags=("--a",)), PortRule("b", flags=("--b",)), PortRule("c", flags=("--c",)))
    given = {"--a": "auto", "--b": "70", "--c": "70"}
    assert derived_ports(rules, given, 30000) == (PortUse(70, "c"),)
    assert derived_ports(rules, {"--a": "9" * 5000}, 30000) == ()
    assert derived_ports(rules, {"--a": "30000"}, 30000) == ()  # its own, checked anyway
