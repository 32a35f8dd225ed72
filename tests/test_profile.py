"""Profiles: strict, checked, and the only place where flags and phases of an engine are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest

from supervisor.profile import (
    Include,
    Profile,
    ProfileError,
    check,
    engine_of,
    facts,
    load_profile,
    profile_names,
    recognises,
)
from supervisor.profile.place import folders

SGLANG = load_profile("sglang")


def test_both_engines_load_and_are_kept() -> None:
    assert profile_names() == ("sglang", "vllm")
    assert load_profile("vllm").name == "vllm"
    assert load_profile("sglang") is SGLANG


def test_the_configured_host_says_more_than_the_command() -> None:
    command = ["python", "-m", "sglang.launch_server", "--host", "10.0.0.7"]
    assert facts(SGLANG, command).host == "10.0.0.7"
    assert facts(SGLANG, command, "10.0.0.8").host == "10.0.0.8"
    assert facts(SGLANG, ["start.sh"], "10.0.0.8").host == "10.0.0.8"


def test_an_unknown_engine_is_told_with_its_path() -> None:
    with pytest.raises(ProfileError, match=r"cannot load the profile of engine 'nope': neither .* has nope\.toml"):
        load_profile("nope")


@pytest.mark.parametrize("name", ["../vllm", "", "/etc/passwd", "a b"])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(ProfileError, match="cannot load the profile"):
        load_profile(name)


def test_a_hosts_own_profile_stands_in_the_place_of_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = next(folder for folder in folders() if (folder / "vllm.toml").is_file()) / "vllm.toml"
    (tmp_path / "vllm.toml").write_bytes(packaged.read_bytes().replace(b"grace_s = 60.0", b"grace_s = 61.0"))
    (tmp_path / "third.toml").write_bytes(packaged.read_bytes().replace(b'name = "vllm"', b'name = "third"', 1))
    monkeypatch.setenv("SGLSUP_PROFILES", str(tmp_path))
    assert profile_names() == ("sglang", "third", "vllm")
    assert load_profile.__wrapped__("vllm").stop.grace_s == 61.0
    assert load_profile.__wrapped__("third").name == "third"
    assert load_profile.__wrapped__("sglang").name == "sglang"
    (tmp_path / "third.toml").write_text("stages = 3")
    with pytest.raises(ProfileError, match=r"third\.toml"):
        load_profile.__wrapped__("third")


def test_an_unknown_key_is_refused_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `stal_s`"):
        msgspec.toml.decode('[[signatures]]\nname = "x"\ncause = "y"\nstal_s = 1', type=Include)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": ({"name": "r", "enter": "nowhere"},)}, "unknown phase 'nowhere'"),
        ({"rules": ({"name": "r", "pattern": "("},)}, "broken pattern"),
        ({"rules": ({"name": "r", "pattern": r"(a)\1"},)}, "linear time"),
        ({"rules": ({"name": "r", "pattern": "(?P<x>a)(?P=x)"},)}, "linear time"),
        ({"rules": ({"name": "r", "pattern": "a++"},)}, "linear time"),
        ({"rules": ({"name": "r", "pattern": "(?>a)"},)}, "linear time"),
        ({"stop": {"signal": "SIGTERM"}}, "no signal 'SIGTERM'"),
        ({"signatures": ({"name": "s", "cause": "nothing"},)}, "unknown cause 'nothing'"),
        ({"signatures": ({"name": "s", "cause": "healthy", "pattern": ".*x"},)}, "begins with a wildcard"),
        ({"signatures": ({"name": "s", "cause": "healthy", "pattern": "(?is).*?x"},)}, "begins with a wildcard"),
        ({"signatures": ({"name": "s", "cause": "healthy", "where": ("raw",), "pattern": "x"},)}, "has no needles"),
        ({"signatures": ({"name": "s", "cause": "healthy", "beyond": "t"},)}, "unknown signature 't'"),
        (
            {"causes": ({"name": "c", "restart": "no", "remedy": "lower {memory_share}"},), "signatures": ()},
            "memory_share",
        ),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    broken = msgspec.convert(msgspec.to_builtins(SGLANG) | change, type=Profile)
    with pytest.raises(ProfileError, match=re.escape(message)):
        check(broken)


def test_readiness_outlasts_the_engines_own_probe() -> None:
    assert SGLANG.readiness.timeout_s > 25
    assert (SGLANG.readiness.path, SGLANG.readiness.identity_path) == ("/health", "/model_info")


def test_every_phase_has_deadlines_in_order_but_the_last() -> None:
    *starting, healthy = SGLANG.phases
    assert healthy.stall_s == healthy.limit_s == 0
    for phase in starting:
        assert 0 < phase.floor_s <= phase.stall_s <= phase.limit_s
        assert phase.stage in SGLANG.stages
    assert {phase.stage for phase in SGLANG.phases} == set(SGLANG.stages)


def test_a_phase_is_found_under_both_names() -> None:
    assert SGLANG.phase("verify-graph") is SGLANG.phase("target-graph")
    assert SGLANG.stage_of("draft-extend-graph") == "graph-capture"
    with pytest.raises(KeyError):
        SGLANG.phase("")


@pytest.mark.parametrize(
    ("title", "role", "rank"),
    [
        ("sglang::scheduler", "scheduler", ""),
        ("sglang::scheduler_TP3", "scheduler", "_TP3"),
        ("sglang::scheduler_DP1_PP0_TP3_EP3", "scheduler", "_DP1_PP0_TP3_EP3"),
        ("sglang::detokenizer", "detokenizer", None),
        ("sglang::data_parallel_controller", "controller", None),
    ],
)
def test_process_titles_tell_role_and_rank(title: str, role: str, rank: str | None) -> None:
    rule = next(rule for rule in SGLANG.roles if re.search(rule.title, title))
    found = re.search(rule.title, title)
    assert found is not None
    assert (rule.role, found.groupdict().get("rank")) == (role, rank)


def test_facts_of_a_command() -> None:
    command = (
        "/opt/sglang/bin/python -m sglang.launch_server --model-path /models/kimi --tp 8 --dp-size=2 --port=31000 "
        "--host 0.0.0.0 --served-model-name kimi --speculative-algorithm EAGLE3 --speculative-draft-model-path /m/d "
        "--enable-dp-attention --nnodes 2 --node-rank 1 --context-length 32768 --skip-server-warmup"
    )
    found = facts(SGLANG, shlex.split(command))
    assert (found.port, found.host, found.model_path, found.served_name) == (31000, "0.0.0.0", "/models/kimi", "kimi")
    assert (found.tensor_parallel, found.data_parallel, found.nodes, found.node_rank) == (8, 2, 2, 1)
    assert (found.speculative, found.draft_model, found.context_length) == ("EAGLE3", "/m/d", 32768)
    assert (found.data_parallel_attention, found.skip_warmup, found.no_graphs, found.recognised) == (
        True,
        True,
        False,
        True,
    )


def test_facts_never_refuse() -> None:
    found = facts(SGLANG, ["sleep", "--port", "--tp", "many", "--", "--host"])
    assert (found.port, found.tensor_parallel, found.recognised) == (30000, 1, False)
    assert facts(SGLANG, []).port == 30000
    assert facts(SGLANG, ["--port", "1", "--port", "2"]).port == 2
    assert facts(SGLANG, ["--tp_size", "4"]).tensor_parallel == 4


def test_what_no_server_can_have_is_not_read() -> None:
    """The engine will refuse it; whoever reads it before divides by it, or asks the kernel for it."""
    odd = ["--tp", "0", "--pp", "0", "--dp", "0", "--nnodes", "0", "--port", "65536", "--context-length", "9" * 5000]
    assert facts(SGLANG, odd) == facts(SGLANG, [])
    assert facts(SGLANG, ["--port", "65535"]).port == 65535


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("python -m sglang.launch_server --tp 2", True),
        ("numactl -N 0 python3 -m sglang.launch_server", True),
        ("/venv/bin/sglang serve --tp 2", True),
        ("sglang bench", False),
        ("python -m http.server", False),
    ],
)
def test_a_command_is_recognised_behind_wrappers(command: str, known: bool) -> None:
    assert recognises(SGLANG, shlex.split(command)) is known


def test_shared_remedies_speak_in_each_engines_words() -> None:
    """Values that only a log knows stay open."""
    pools = [
        next(one for one in load_profile(name).causes if one.name == "gpu-oom-kv-pool") for name in profile_names()
    ]
    assert [word in one.remedy for one, word in zip(pools, ("--mem-fraction", "--gpu-memory-utilization"), strict=True)]
    for name in profile_names():
        profile = load_profile(name)
        assert not [one.name for one in (*profile.causes, *profile.signatures) if "{" in one.remedy]
        assert len({cause.name for cause in profile.causes}) == len(profile.causes)


def test_flags_of_the_other_engine() -> None:
    found = facts(load_profile("vllm"), shlex.split("vllm serve m --tensor-parallel-size 4 --port 9"))
    assert (found.tensor_parallel, found.port, found.recognised) == (4, 9, True)


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("python -m sglang.launch_server --tp 2", "sglang"),
        ("/opt/vllm/bin/vllm serve m", "vllm"),
        ("numactl -N 0 python3 -m vllm.entrypoints.openai.api_server", "vllm"),
        ("start.sh", "sglang"),
    ],
)
def test_the_engine_of_a_command(command: str, engine: str) -> None:
    assert engine_of(shlex.split(command), "sglang") == engine


@pytest.mark.parametrize(
    ("command", "model"),
    [
        ("vllm serve /models/m --port 9", "/models/m"),
        ("/opt/vllm/bin/vllm serve --port 9 --model /models/m", "/models/m"),
        ("numactl -N 0 vllm serve org/m", "org/m"),
        ("python -m vllm.entrypoints.openai.api_server --port 9", ""),
        ("vllm serve", ""),
        ("start.sh /models/m", ""),
    ],
)
def test_a_model_without_a_flag(command: str, model: str) -> None:
    assert facts(load_profile("vllm"), shlex.split(command)).model_path == model
    assert facts(SGLANG, shlex.split("sglang serve /models/m")).model_path == ""
