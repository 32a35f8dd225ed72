"""The rules at their borders: exactly enough is enough, and whatever a command says, judging it raises nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.lint import lint
from supervisor.core.lint.case import given as given_of
from supervisor.core.lint.case import whole
from supervisor.core.lint.versions import within
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
from supervisor.preflight.rules import MODEL, load_rules
from supervisor.units import format_bytes
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
        (folder(files=(FileFacts("a", 5, "cut off"), FileFacts("b")), index_bytes=10), "shards-broken"),
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


# --- what the words say ----------------------------------------------------------------------------------------------


def told(seen: Inspected, rule: str) -> str:
    (found,) = findings(seen, rule)
    return f"{found.what}; {found.why}; {found.change}"


def test_the_border_that_is_told_is_the_one_that_counts() -> None:
    assert format_bytes(mib("shared-memory-small")) in told(on("--tp 2", shared_memory_bytes=1), "shared-memory-small")
    watchdog = told(start("--watchdog-timeout 1"), "watchdog-short")
    assert f"{of('watchdog-short').number}" in watchdog
    assert severity(start("--watchdog-timeout 0"), "watchdog-short") is None, "it is switched off"


def test_of_unequal_devices_the_smallest_is_told() -> None:
    devices = (*with_memory(90 * GIB, 90 * GIB), msgspec.structs.replace(gpus(2)[1], total_bytes=200 * GIB))
    assert format_bytes(90 * GIB) in told(on("--tp 2", weighing(400 * GIB), devices=devices), "weights-over-device")
    share = on("--tp 2 --mem-fraction-static 0.5", weighing(180 * GIB), devices=devices)
    assert format_bytes(45 * GIB) in told(share, "weights-over-share")
    assert severity(on("--mem-fraction-static 0.5.1", weighing(1 << 50), devices=devices), "weights-over-share") is None


def test_a_single_file_of_wide_numbers_makes_the_whole_model_one() -> None:
    files = (FileFacts("a", 900 * GIB), FileFacts("b", GIB, wide_bytes=GIB))
    assert severity(on("", folder(files=files), devices=gpus(1)), "weights-over-device") is None


def test_missing_shards_are_counted_among_all() -> None:
    assert "1 of 3" in told(start(models=[folder(missing=("c.safetensors",))]), "shards-missing")


def test_how_the_ranks_come_about_is_told() -> None:
    for options, words in (
        ("--tp 16", "tensor parallel 16"),
        ("--tp 8 --pp 2", "tensor parallel 8 x pipeline parallel 2"),
        ("--tp 8 --dp 2", "tensor parallel 8 x data parallel 2"),
        ("--dp 9", "data parallel 9"),
        ("--base-gpu-id 8", "tensor parallel 1"),
        ("--tp 32 --nnodes 2", "tensor parallel 32 over 2 nodes"),
        ("--tp 16 --dp 8 --enable-dp-attention", "tensor parallel 16"),
    ):
        text = told(start(options, leased_count=8), "devices-too-few")
        assert words in text
        assert ("nodes" in text) is ("nodes" in words)
        assert ("pipeline" in text) is ("pipeline" in words)
        assert ("data parallel" in text) is ("data parallel" in words)


def test_an_option_without_its_number_got_nothing() -> None:
    assert "got nothing" in told(start("--page-size"), "number-expected")
    assert "got many" in told(start("--page-size many"), "number-expected")


@pytest.mark.parametrize(
    ("purpose", "rule"), [("env_file", "file-missing"), ("logging configuration", "log-config-missing")]
)
def test_each_missing_file_is_told_by_its_own_rule(purpose: str, rule: str) -> None:
    looked = Looked(missing_files={purpose: "no such file"}, engine=EngineFacts(version="0.5.9"))
    assert names(start(looked=looked)) == {rule}


def test_a_hubs_model_is_fetched_or_forbidden_never_both() -> None:
    model = ModelFacts(MODEL, MODEL_PATH, ModelKind.HUB, cache="/hf/hub")
    assert names(start(models=[model])) == {"hub-download"}
    assert names(start(models=[model], environment={"HF_HUB_OFFLINE": "1"})) == {"hub-offline"}


def test_what_a_model_lacks_is_told_of_an_engine_that_nobody_knows_options_of() -> None:
    found = lint(start(models=[folder(tokenizer=False)]), load_rules("nobody"))
    assert [one.rule for one in found] == ["tokenizer-missing"]


def test_a_hub_that_must_not_be_asked_is_told_with_the_variable_and_one_that_may_with_its_room() -> None:
    model = ModelFacts(MODEL, MODEL_PATH, ModelKind.HUB, cache="/hf/hub", cache_free_bytes=5 * GIB)
    assert "TRANSFORMERS_OFFLINE forbids" in told(
        start(models=[model], environment={"TRANSFORMERS_OFFLINE": "1"}), "hub-offline"
    )
    assert f"{format_bytes(5 * GIB)} are free there" in told(start(models=[model]), "hub-download")
    unknown = msgspec.structs.replace(model, cache_free_bytes=None)
    assert "free" not in told(start(models=[unknown]), "hub-download")


def test_leased_devices_are_told_by_number_or_by_count() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "4,5"}
    rule = "other-visible-devices"
    assert "gpus are 0, 1" in told(start("--tp 2", environment=own, own=own, leased=(0, 1)), rule)
    assert "gpus are any 2" in told(start("--tp 2", environment=own, own=own, leased_count=2), rule)


def test_a_chunk_that_is_shared_is_told_with_its_whole() -> None:
    alone = told(start("--chunked-prefill-size 100 --page-size 64"), "prefill-pages")
    assert "chunk of 100 tokens is no" in alone
    shared = "--chunked-prefill-size 256 --page-size 64 --tp 8 --dp 8 --enable-dp-attention"
    assert "chunk of 32 tokens (256 shared by 8) is no" in told(start(shared), "prefill-pages")


# --- the least that is wrong -----------------------------------------------------------------------------------------


def test_two_are_enough_to_differ() -> None:
    """Two ranks, two nodes, two tokens, two pages: the least that can be divided wrongly."""
    odd = folder(config=config(num_attention_heads=7))
    assert severity(start("--tp 2", models=[odd]), "heads-divide") is Severity.ERROR
    assert severity(start("--tp 1", models=[odd]), "heads-divide") is None
    assert severity(start("--tp 2 --dp 2 --nnodes 2"), "replicas-over-nodes") is Severity.ERROR
    for one in ("--tp 2 --nnodes 2", "--tp 2 --dp 2"):
        assert severity(start(one), "replicas-over-nodes") is None
    assert severity(start("--tp 3 --dp 2"), "attention-groups-divide") is None, "whole replicas divide no rank"
    tree = CHAIN.replace("topk 1", "topk 2") + "--page-size 2 --attention-backend triton"
    assert severity(start(tree), "draft-tree-paged") is Severity.ERROR
    assert severity(start(tree), "draft-tree-backend") is None
    assert severity(start(tree), "draft-tree-paged-unsure") is None, "the backend is chosen"
    assert severity(start(tree.replace("triton", "trtllm_mha")), "draft-tree-backend") is Severity.ERROR
    version = {"SGLANG_ENABLE_SPEC_V2": "1"}
    assert "topk 2 with SGLANG_ENABLE_SPEC_V2 on" in told(start(tree, environment=version), "draft-tree-overlap")


def test_sizes_of_nothing_divide_nothing() -> None:
    for options in ("--chunked-prefill-size 64 --page-size 0", "--chunked-prefill-size 0 --page-size 64"):
        assert severity(start(options), "prefill-pages") is None


def test_a_matrix_that_nobody_divides_has_its_blocks_as_they_are() -> None:
    numbers = {"intermediate_size": 1000}
    blocks = folder(config=ConfigFacts(("A",), "llama", numbers, None, "fp8", (128, 128)))
    assert severity(start("--tp 1", models=[blocks]), "quantization-blocks") is None
    assert severity(start("--tp 2", models=[blocks]), "quantization-blocks") is Severity.WARNING
    for rows, columns, grave in ((64, 128, None), (128, 64, Severity.WARNING)):  # 192 rows a rank
        uneven = ConfigFacts(("A",), "llama", {"intermediate_size": 384}, None, "fp8", (rows, columns))
        assert severity(start("--tp 2", models=[folder(config=uneven)]), "quantization-blocks") is grave


def test_a_draft_that_does_not_tell_its_size_is_no_finding() -> None:
    silent = draft(config=config(max_position_embeddings=131072))
    for model in (silent, draft(config=None)):
        assert severity(start(CHAIN, models=[folder(), model]), "draft-hidden-size") is None
    assert severity(start(CHAIN, models=[folder(config=None), silent]), "draft-hidden-size") is None


@pytest.mark.parametrize(
    ("wanted", "inside"),
    [(">0.5.9", False), (">=0.5.9", True), ("==0.5.9", True), ("==0.5.8", False), ("<=0.5.9", True), ("<0.5.9", False)],
)
def test_a_version_at_the_end_of_a_range(wanted: str, inside: bool) -> None:
    assert within("0.5.9", wanted) is inside
    assert within("0.5.9.0", wanted) is inside


@pytest.mark.parametrize("wanted", [">=main", "main", "=>0.5", ">=0.5,,<0.6"])
def test_a_range_that_is_none_is_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match="cannot read the range of versions"):
        within("0.5.9", wanted)


def test_short_options_and_values_with_dashes() -> None:
    assert given_of(["-tp", "8", "-a_b", "x-y", "--c_d", "-1.5", "-"]) == {
        "-tp": "8",
        "-a_b": "x-y",
        "--c-d": "-1.5",
    }


# --- how sure ---------------------------------------------------------------------------------------------------------


def test_a_doubt_makes_an_error_a_warning_and_nothing_else_another() -> None:
    for rule, options in (("served-name-colon", "--served-model-name a:b"), ("requests-limited", CHAIN)):
        (sure,), (unsure,) = (findings(start(options, version=version), rule) for version in ("0.5.9", "0.6.0"))
        assert sure.severity is of(rule).severity
        assert unsure.why.startswith(f"{sure.why} ("), "the doubt comes behind what is sure"
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
