"""The rules at their borders: exactly enough is enough, and whatever a command says, judging it raises nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.lint import lint
from supervisor.core.lint.case import whole
from supervisor.preflight import (
    ConfigFacts,
    EngineFacts,
    FileFacts,
    Inspected,
    LimitFacts,
    Looked,
    MachineFacts,
    ModelFacts,
    ModelKind,
    Rule,
    Severity,
)
from supervisor.preflight.rules import MODEL
from tests.core.lint.start import (
    GIB,
    MODEL_PATH,
    PROFILE,
    RULES,
    config,
    draft,
    findings,
    folder,
    gpus,
    names,
    severity,
    start,
)

CHAIN = "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
CHAIN += "--speculative-num-draft-tokens 4 "
CACHE = "--tp 2 --enable-hierarchical-cache --hicache-size 1"  # GB a rank


def of(rule: str) -> Rule:
    return next(one for one in RULES.rules if one.name == rule)


def mib(rule: str) -> int:
    return of(rule).number << 20


def on(
    options: str = "", *models: ModelFacts, environment: dict[str, str] | None = None, **machine: object
) -> Inspected:
    facts = MachineFacts(**machine)  # type: ignore[arg-type]
    return start(options, models=models, machine=facts, environment=environment)


def driver_wanted() -> int:
    return int(of("driver-old").words[0].rpartition("=")[2])


def with_driver(version: int) -> Inspected:
    distribution, cuda, _ = of("driver-old").words[0].split("=")
    engine = EngineFacts(version="0.5.9", distributions={distribution: f"{cuda}.0"})
    return start(engine=engine, machine=MachineFacts(driver=f"{version}.10"))


def with_kernels(release: int) -> Inspected:
    name = of("kernels-old").words[0]
    engine = EngineFacts(version="0.5.9", distributions={name: f"0.3.{release}"}, pins={name: "0.3.21"})
    return start(engine=engine)


def weighing(*sizes: int, index: int | None = None) -> ModelFacts:
    return folder(files=tuple(FileFacts("a.safetensors", size) for size in sizes), index_bytes=index)


def with_memory(total: int, free: int | None = None) -> tuple[object, ...]:
    return tuple(msgspec.structs.replace(gpu, total_bytes=total, free_bytes=free) for gpu in gpus(1))


Make = Callable[[int], Inspected]
ENOUGH: dict[str, tuple[int, Make]] = {
    "watchdog-short": (of("watchdog-short").number, lambda seconds: start(f"--watchdog-timeout {seconds}")),
    "shared-memory-small": (mib("shared-memory-small"), lambda there: on("--tp 2", shared_memory_bytes=there)),
    "temporary-space": (mib("temporary-space"), lambda free: on(temporary="/t", temporary_free_bytes=free)),
    "open-files-few": (of("open-files-few").number, lambda hard: on(open_files=LimitFacts(1, hard))),
    "locked-memory-small": (
        mib("locked-memory-small"),
        lambda soft: on("--nnodes 2", locked_memory=LimitFacts(soft, -1)),
    ),
    "driver-old": (driver_wanted(), with_driver),
    "kernels-old": (21, with_kernels),
    "shards-small": (of("shards-small").number, lambda size: start(models=[weighing(size, index=100)])),
    "weights-over-share": (
        2000,
        lambda total: on("--mem-fraction-static 0.5", weighing(1000), devices=with_memory(total)),
    ),
    "host-cache-over-memory": (2 * 10**9, lambda memory: on(CACHE, memory_bytes=memory, memory_free_bytes=memory)),
    "context-too-long": (
        4096,
        lambda longest: start("--context-length 4096", models=[folder(config=config(max_position_embeddings=longest))]),
    ),
    "draft-context-short": (
        131072,
        lambda longest: start(CHAIN, models=[folder(), draft(config=config(max_position_embeddings=longest))]),
    ),
    "devices-too-few": (8, lambda count: start("--tp 8", leased_count=count)),
    "nodes-divide": (4, lambda ranks: start(f"--tp {ranks} --nnodes 2")),
    "attention-groups-divide": (4, lambda ranks: start(f"--tp {ranks} --dp 2 --enable-dp-attention")),
    "draft-tokens-adjusted": (
        4,
        lambda tokens: start(CHAIN.replace("tokens 4", f"tokens {tokens}")),
    ),
}


@pytest.mark.parametrize("rule", ENOUGH)
def test_exactly_enough_is_enough_and_one_less_is_not(rule: str) -> None:
    enough, make = ENOUGH[rule]
    assert severity(make(enough), rule) is None
    assert severity(make(enough - 1), rule) is of(rule).severity


# --- the memory of devices and host ----------------------------------------------------------------------------------


def free_needed(options: str, *models: ModelFacts) -> int:
    """How much must be free on the one device before nothing is found any more."""
    low, high = 0, 1 << 50
    while low < high:
        middle = (low + high) // 2
        found = severity(on(options, *models, devices=with_memory(1 << 50, middle)), "weights-over-free")
        low, high = (middle + 1, high) if found else (low, middle)
    return low


def test_a_draft_needs_its_own_share_of_what_is_free() -> None:
    alone = free_needed("", weighing(40 * GIB))
    assert alone > 40 * GIB, "something besides the weights is needed, too"
    both = free_needed("", weighing(40 * GIB), draft(files=(FileFacts("d.safetensors", 6 * GIB),)))
    assert both - alone == 6 * GIB


def test_weights_are_shared_by_the_ranks_of_tensor_and_pipeline() -> None:
    for options, parts in (("--tp 4", 4), ("--pp 2", 2), ("--tp 4 --pp 2", 8)):
        machine = {"devices": gpus(8, total_gib=50, free_gib=50)}
        (found,) = findings(on(options, weighing(400 * parts * GIB), **machine), "weights-over-device")
        assert f"{parts}" in f"{found.what} {found.why}"
        assert names(on(options, weighing(4 * parts * GIB), **machine)) == set()


def test_nearly_all_of_a_device_is_not_yet_more_than_it_has() -> None:
    """Parts of a checkpoint may not be loaded."""
    full = on("", weighing(100 * GIB), devices=with_memory(100 * GIB))
    assert severity(full, "weights-over-device") is None
    twice = on("", weighing(200 * GIB), devices=with_memory(100 * GIB))
    assert severity(twice, "weights-over-device") is Severity.ERROR


def test_a_hosts_cache_that_would_take_what_ranks_leave_to_others() -> None:
    cache = "--tp 1 --enable-hierarchical-cache --hicache-size 100"
    for free, grave in ((100 * 10**9, Severity.WARNING), (200 * 10**9, None)):
        machine = {"memory_bytes": 1000 * GIB, "memory_free_bytes": free}
        assert severity(on(cache, **machine), "host-cache-over-free") is grave
    assert severity(on(cache, memory_free_bytes=1), "host-cache-over-free") is None, "nobody knows how much there is"
    small = on(cache, memory_bytes=50 * 10**9, memory_free_bytes=40 * 10**9)
    assert names(small) == {"host-cache-over-memory"}, "told once"
    assert names(on(cache.replace("100", "0"), memory_bytes=1, memory_free_bytes=1)) == set()
    assert names(on("--hicache-size 100", memory_bytes=1, memory_free_bytes=1)) == set(), "it is not switched on"


def test_the_devices_that_are_meant_are_those_that_are_counted() -> None:
    """By lease, by the environment's numbers, from the first one on and by steps; GPU 1 alone is full."""
    devices = tuple(msgspec.structs.replace(gpu, free_bytes=(1 if gpu.index == 1 else 140) * GIB) for gpu in gpus(4))
    model = weighing(40 * GIB)

    def found(options: str, **more: object) -> bool:
        given = start(options, models=[model], machine=MachineFacts(devices=devices), **more)  # type: ignore[arg-type]
        return severity(given, "weights-over-free") is not None

    assert not found("--tp 1")
    assert found("--tp 2")
    assert found("--tp 1 --base-gpu-id 1")
    assert not found("--tp 2 --base-gpu-id 2")
    assert not found("--tp 2 --gpu-id-step 2")
    assert found("--tp 2 --gpu-id-step 0"), "no step is the usual one"
    assert not found("--tp 2", environment={"CUDA_VISIBLE_DEVICES": "3, 2,1"})
    assert found("--tp 2", environment={"CUDA_VISIBLE_DEVICES": "GPU-8a,GPU-8b"}), "whose numbers nobody knows"
    assert found("--tp 2", environment={"CUDA_VISIBLE_DEVICES": "3,2"}, leased=(0, 1)), "the lease overrules it"
    assert not found("--tp 3", leased_count=3)
    assert found("--tp 4", leased_count=4)


# --- what is told once, and what is nobody's business ----------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        folder(role="tokenizer", config=None, files=(), missing=("a.safetensors",), index_problem="none"),
        folder(config=None, files=(), other_formats=True),
        ModelFacts(MODEL, MODEL_PATH, ModelKind.REMOTE),
        ModelFacts(MODEL, MODEL_PATH, ModelKind.FILE),
        folder(files=(FileFacts("a", 5), FileFacts("b", 5)), index_bytes=10),
    ],
)
def test_what_cannot_be_wrong_is_no_finding(model: ModelFacts) -> None:
    assert names(start(models=[model])) == set()


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (folder(files=(), missing=("a.safetensors",)), "shards-missing"),
        (folder(files=(), index_problem="it has no weight_map"), "index-broken"),
        (folder(files=(), config=None, unreadable=("config.json",)), "model-unreadable"),
        (folder(files=(FileFacts("a", 5, "cut off"),), index_bytes=10), "shards-broken"),
        (folder(files=(FileFacts("a", 5),), missing=("b",), index_bytes=10), "shards-missing"),
        (folder(config=None, config_problem="none"), "config-broken"),
    ],
)
def test_one_damage_is_told_once(model: ModelFacts, rule: str) -> None:
    assert names(start(models=[model])) == {rule}


def test_of_three_files_none_is_only_counted() -> None:
    for count, more in ((3, "a2"), (4, "and 1 more")):
        (found,) = findings(start(models=[folder(unfinished=tuple(f"a{at}" for at in range(count)))]))
        assert more in found.what
        assert ("more" in found.what) is (count > 3)


def test_without_devices_nothing_is_asked_of_them() -> None:
    """A server of the processor alone: no compiler of kernels, no kernels of another age, no devices to share."""
    name = of("kernels-old").words[0]
    engine = EngineFacts(version="0.5.9", distributions={name: "0.1"}, pins={name: "0.2"})
    machine = MachineFacts(compiler="", devices=gpus(1))
    for options, told in (("", {"kernels-old", "compiler-missing"}), ("--device cpu", set())):
        looked = Looked(engine=engine, machine=machine)
        assert names(start(options, looked=looked)) == told
    idle = start("--device cpu", leased=(0, 1))
    assert "devices-idle" not in names(idle)


def test_a_chain_is_no_tree() -> None:
    assert names(start(CHAIN + "--page-size 16 --attention-backend triton --max-running-requests 8")) == set()
    second = start(CHAIN + "--max-running-requests 8", environment={of("spec-v2-ignored").words[0]: "1"})
    assert names(second) == set()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--disaggregation-mode prefill", "disaggregation"),
        ("--disaggregation-mode decode", "disaggregation"),
        ("--nnodes 2", "several nodes"),
        ("--enable-hierarchical-cache", "a cache on the host"),
    ],
)
def test_who_needs_locked_memory_is_told_why(options: str, reason: str) -> None:
    (found,) = findings(on(options, locked_memory=LimitFacts(1, -1)), "locked-memory-small")
    assert reason in f"{found.what} {found.why}"


# --- how sure ---------------------------------------------------------------------------------------------------------


def test_a_doubt_makes_an_error_a_warning_and_nothing_else_another() -> None:
    for rule, options in (("served-name-colon", "--served-model-name a:b"), ("requests-limited", CHAIN)):
        (sure,), (unsure,) = (findings(start(options, version=version), rule) for version in ("0.5.9", "0.6.0"))
        assert sure.severity is of(rule).severity
        expected = Severity.WARNING if sure.severity is Severity.ERROR else sure.severity
        assert unsure.severity is expected


def test_a_finding_is_no_longer_than_a_screen() -> None:
    (found,) = findings(start(f"--served-model-name {'a' * 5000}:b"), "served-name-colon")
    assert "aaaa" in found.what
    assert len(found.what) < 1000


# --- whatever a command says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("+7", 7),
        ("-7", -7),
        ("0", 0),
        ("", None),
        ("-", None),
        ("7.5", None),
        ("٧", None),
        ("9" * 5000, None),
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole(text) == number


FLAGS = sorted(
    {
        flag
        for part in (RULES.options, PROFILE.command)
        for value in msgspec.structs.asdict(part).values()
        if isinstance(value, tuple)
        for flag in value
        if isinstance(flag, str) and flag.startswith("-")
    }
)
VALUES = (
    "",
    "0",
    "1",
    "2",
    "3",
    "16",
    "-1",
    "131073",
    "0.5",
    "9" * 5000,
    "x",
    "EAGLE3",
    "STANDALONE",
    "prefill",
    "cpu",
)
VARIABLES = sorted({name for group in msgspec.structs.asdict(RULES.variables).values() for name in group})
RICH = MachineFacts(
    memory_bytes=10**12,
    memory_free_bytes=10**11,
    shared_memory_bytes=1,
    open_files=LimitFacts(1, 1),
    locked_memory=LimitFacts(1, 1),
    devices=gpus(2),
)


@given(
    st.lists(st.tuples(st.sampled_from(FLAGS), st.sampled_from(VALUES)), max_size=8),
    st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(("", "0", "1", "1,0", "9" * 5000, "x")), max_size=3),
)
def test_whatever_a_command_says_it_is_judged(options: list[tuple[str, str]], environment: dict[str, str]) -> None:
    words = " ".join(f"{flag} {value}" for flag, value in options)
    models = (
        folder(
            config=ConfigFacts(("A",), "llama", {"num_attention_heads": 6, "intermediate_size": 9}, None, "fp8", (2, 2))
        ),
        draft(config=config(max_position_embeddings=1, hidden_size=2)),
    )
    for finding in lint(start(words, models=models, machine=RICH, environment=environment), RULES):
        assert finding.what
        assert "{" not in finding.what
