"""Each rule of the preflight: a start it is about, one that it leaves alone, and the versions it holds for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor.core.story import LogStory
from supervisor.lines import LineCutter
from supervisor.preflight import (
    ConfigFacts,
    EngineFacts,
    FileFacts,
    FlagFacts,
    Inspected,
    LimitFacts,
    Looked,
    MachineFacts,
    ModelFacts,
    ModelKind,
    PortFacts,
    ProgramFacts,
    RopeFacts,
    Severity,
)
from supervisor.preflight.rules import MODEL, load_rules
from supervisor.profile import load_profile, profile_names
from tests.core.lint.start import GIB, MODEL_PATH, config, draft, findings, folder, gpus, severity, start

ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE
EAGLE = "--speculative-algorithm EAGLE3 "
CHAIN = EAGLE + "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
TREE = EAGLE + "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 "
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def looked(**facts: object) -> Inspected:
    return start(looked=Looked(**({"engine": EngineFacts(version="0.5.9")} | facts)))  # type: ignore[arg-type]


# --- speculation -----------------------------------------------------------------------------------------------------


def test_draft_tokens_are_clamped_up_and_down_when_top_k_is_1() -> None:
    many = start(CHAIN + "--speculative-num-draft-tokens 16")
    (found,) = findings(many, "draft-tokens-adjusted")
    assert found.severity is WARNING
    assert found.what == "--speculative-num-draft-tokens 16 becomes 4"
    assert "--speculative-num-steps 15 to get 16" in found.change
    assert severity(start(CHAIN + "--speculative-num-draft-tokens 2"), found.rule) is WARNING
    assert severity(start(CHAIN), found.rule) is None
    assert severity(start(TREE), found.rule) is None
    assert severity(start(CHAIN + "--speculative-num-draft-tokens 16", version="0.4.4"), found.rule) is None


def test_top_k_or_tokens_without_steps() -> None:
    rule, given = "draft-steps-missing", EAGLE + "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    (found,) = findings(start(given), rule)
    assert (found.severity, found.what.split(" without")[0]) == (
        ERROR,
        "--speculative-eagle-topk and --speculative-num-draft-tokens",
    )
    assert severity(start(EAGLE), rule) is None
    assert severity(start(given + " --speculative-adaptive", version="0.5.23"), rule) is None
    assert severity(start(given.replace("EAGLE3", "NGRAM")), rule) is None


@pytest.mark.parametrize(
    ("version", "rule", "grave"),
    [("0.5.9", "draft-top-k-missing", ERROR), ("0.5.1", "draft-top-k-missing-early", WARNING)],
)
def test_steps_without_top_k(version: str, rule: str, grave: Severity) -> None:
    assert severity(start(EAGLE + "--speculative-num-steps 3", version=version), rule) is grave
    assert severity(start(CHAIN, version=version), rule) is None


@pytest.mark.parametrize(
    ("version", "backend", "rule", "grave"),
    [
        ("0.4.6.post5", "triton", "draft-tree-reset", WARNING),
        ("0.5.9", "triton", "draft-tree-paged", ERROR),
        ("0.5.9", "fa3", "draft-tree-paged", None),
        ("0.5.23", "triton", "draft-tree-paged-later", None),
        ("0.5.23", "flashmla", "draft-tree-paged-later", ERROR),
    ],
)
def test_a_tree_over_pages(version: str, backend: str, rule: str, grave: Severity | None) -> None:
    options = f"{TREE} --page-size 16 --attention-backend {backend}"
    assert severity(start(options, version=version), rule) is grave
    assert severity(start(options.replace("--page-size 16", "--page-size 1"), version=version), rule) is None


def test_a_tree_over_pages_with_the_engines_own_backend_is_only_a_warning() -> None:
    assert severity(start(TREE + "--page-size 16"), "draft-tree-paged-unsure") is WARNING
    assert severity(start(CHAIN + "--page-size 16"), "draft-tree-paged-unsure") is None


def test_a_tree_on_a_backend_that_verifies_chains() -> None:
    rule = "draft-tree-backend"
    assert severity(start(TREE + "--decode-attention-backend trtllm_mha"), rule) is ERROR
    assert severity(start(CHAIN + "--attention-backend trtllm_mha"), rule) is None


def test_a_tree_with_speculations_second_version() -> None:
    rule, on = "draft-tree-overlap", {"SGLANG_ENABLE_SPEC_V2": "True"}
    assert severity(start(TREE, environment=on), rule) is ERROR
    assert severity(start(TREE, environment={"SGLANG_ENABLE_SPEC_V2": "0"}), rule) is None
    assert severity(start(TREE, environment=on, version="0.5.11"), rule) is None


def test_speculation_in_pipeline_parallel() -> None:
    assert severity(start(CHAIN + "--pp 2"), "speculation-in-pipeline") is ERROR
    assert severity(start(CHAIN), "speculation-in-pipeline") is None
    later, rule = "0.5.23", "speculation-in-pipeline-prefill"
    assert severity(start(CHAIN + "--pp 2", version=later), rule) is ERROR
    assert severity(start(CHAIN + "--pp 2 --disaggregation-mode prefill", version=later), rule) is None
    assert severity(start(CHAIN + "--pp 2", version=later, environment={"SGLANG_ENABLE_PP_SPEC": "1"}), rule) is None


def test_standalone_speculation_with_attention_in_data_parallel() -> None:
    rule, options = "standalone-data-parallel", "--speculative-algorithm STANDALONE --tp 4 --dp 4 "
    assert severity(start(options + "--enable-dp-attention"), rule) is ERROR
    assert severity(start(options), rule) is None


def test_a_draft_with_a_shorter_context_is_refused_half_an_hour_later() -> None:
    models = (folder(), draft(config=config(max_position_embeddings=4096)))
    (found,) = findings(
        start(CHAIN + "--speculative-draft-model-path /models/draft", models=models), "draft-context-short"
    )
    assert (found.severity, found.what) == (
        ERROR,
        "the draft model's context 4096 is shorter than the target's 131072",
    )
    assert found.change.startswith("set --context-length 4096, or use a draft with a longer context")


def test_the_check_and_the_diagnosis_of_a_short_draft_advise_the_same() -> None:
    models = (folder(), draft(config=config(max_position_embeddings=4096)))
    (found,) = findings(
        start(CHAIN + "--speculative-draft-model-path /models/draft", models=models), "draft-context-short"
    )
    story = LogStory(load_profile("sglang"))
    refused = (
        "ValueError: Warning: Target model's context_length (131072) is greater than the derived context_length (4096)."
        f" To allow overriding this maximum, set the env var {LONGER}=1"
    )
    story.read(LineCutter().feed(refused.encode() + b"\n"))
    told = story.conclude(exit_code=1).diagnosis.remedy.lower()
    for advice in (found.change, told):
        for word in ("--context-length 4096", "use a draft with a longer context", f"do not override it with {LONGER}"):
            assert word.lower() in advice.lower()


@pytest.mark.parametrize("engine", profile_names())
def test_no_check_advises_what_a_remedy_forbids(engine: str) -> None:
    """A variable that a draft must not be overridden with is nowhere set for a draft."""
    rules = load_rules(engine).rules
    assert rules
    for rule in rules:
        if rule.test.startswith("draft"):
            assert "{variable}=1" not in rule.change, rule.name


@pytest.mark.parametrize(
    ("version", "environment", "options", "expected"),
    [
        ("0.4.10.post2", {}, "", {"draft-context-short-early": WARNING}),
        ("0.5.1", {}, "", {"draft-context-short": ERROR}),
        ("0.5.23", {}, "", {"draft-context-short": ERROR}),
        ("0.5.24", {}, "", {"draft-context-short": WARNING}),  # not studied
        ("", {}, "", {"draft-context-short": WARNING, "draft-context-short-early": WARNING}),
        ("0.5.9", {LONGER: "1"}, "", {"draft-context-overwritten": WARNING}),
        ("0.5.9", {}, "--context-length 4096", {}),
        ("0.5.9", {}, "--json-model-override-args {}", {}),
        ("0.5.9", {}, "--config more.yaml", {"draft-context-short": WARNING}),
    ],
)
def test_what_a_short_draft_means_by_version(
    version: str, environment: dict[str, str], options: str, expected: dict[str, Severity]
) -> None:
    models = (folder(), draft(config=config(max_position_embeddings=4096)))
    given = start(CHAIN + options, models=models, version=version, environment=environment)
    assert {one.rule: one.severity for one in findings(given) if one.rule.startswith("draft-context")} == expected


@pytest.mark.parametrize(
    ("rope", "length", "short"),
    [
        (RopeFacts(32.0), 4096, False),  # stretched to 131072
        (RopeFacts(32.0, original=True), 131072, False),  # the length is the stretched one already
        (RopeFacts(32.0, original=True), 4096, True),
        (RopeFacts(8.0, kind="llama3"), 65536, True),
        (None, None, True),  # nothing said: a Llama has 2048
        (RopeFacts(64.0), None, False),  # and stretches it as any other length
    ],
)
def test_the_derived_context_is_the_engines_own(rope: RopeFacts | None, length: int | None, short: bool) -> None:
    numbers = {} if length is None else {"max_position_embeddings": float(length)}
    models = (folder(), draft(config=ConfigFacts(("LlamaForCausalLMEagle3",), "llama", numbers, rope)))
    assert (severity(start(CHAIN, models=models), "draft-context-short") is ERROR) is short


def test_a_context_that_a_class_decides_is_unknown_and_no_finding() -> None:
    models = (folder(), draft(config=ConfigFacts(("Odd",), "odd")))
    assert severity(start(CHAIN, models=models), "draft-context-short") is None


def test_a_context_longer_than_the_models() -> None:
    rule = "context-too-long"
    assert severity(start("--context-length 200000", models=[folder()]), rule) is ERROR
    assert severity(start("--context-length 131072", models=[folder()]), rule) is None
    assert severity(start("--context-length 200000", models=[folder()], environment={LONGER: "true"}), rule) is None


def test_a_draft_made_for_another_hidden_size() -> None:
    rule = "draft-hidden-size"
    other, made = config(hidden_size=2048), config(hidden_size=2048, target_hidden_size=8192)
    assert severity(start(CHAIN, models=[folder(), draft(config=other)]), rule) is WARNING
    assert severity(start(CHAIN, models=[folder(), draft(config=made)]), rule) is None


def test_a_target_that_hands_out_no_hidden_states() -> None:
    rule, kimi = "target-without-hooks", folder(config=ConfigFacts(("KimiK25ForConditionalGeneration",)))
    assert severity(start(CHAIN, models=[kimi]), rule) is ERROR
    assert severity(start(CHAIN, models=[kimi], version="0.5.10.post1"), rule) is None
    assert severity(start("", models=[kimi]), rule) is None
    assert severity(start(CHAIN.replace("EAGLE3", "NEXTN"), models=[kimi]), rule) is None  # reads the last layer alone
    patched = EngineFacts(version="0.5.9", class_words=("set_eagle3_layers_to_capture",))
    assert severity(start(CHAIN, models=[kimi], engine=patched), rule) is None


def test_options_of_a_draft_without_an_algorithm() -> None:
    assert severity(start("--speculative-num-steps 3"), "draft-options-unused") is WARNING
    assert severity(start(CHAIN), "draft-options-unused") is None


def test_speculation_limits_the_requests() -> None:
    assert severity(start(CHAIN), "requests-limited") is NOTICE
    assert severity(start(CHAIN + "--max-running-requests 256"), "requests-limited") is None


# --- how the work is divided -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "grave"),
    [
        ("--tp 8", None),
        ("--tp 16", ERROR),
        ("--tp 4 --pp 2", None),
        ("--tp 8 --pp 2", ERROR),
        ("--tp 16 --nnodes 2", None),
        ("--tp 8 --dp 2", ERROR),
        ("--tp 8 --dp 8 --enable-dp-attention", None),
        ("--tp 8 --base-gpu-id 1", ERROR),
        ("--tp 4 --gpu-id-step 2", None),
        ("--tp 16 --device cpu", None),
    ],
)
def test_ranks_against_leased_devices(options: str, grave: Severity | None) -> None:
    assert severity(start(options, leased=tuple(range(8))), "devices-too-few") is grave
    assert severity(start(options, leased_count=8), "devices-too-few") is grave
    assert severity(start(options, machine=MachineFacts(devices=gpus(8))), "devices-too-few") is grave
    assert severity(start(options, environment={"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}), "devices-too-few") is grave
    assert severity(start(options), "devices-too-few") is None  # nobody knows how many there are


def test_leased_devices_that_nobody_uses() -> None:
    assert severity(start("--tp 4", leased=tuple(range(8))), "devices-idle") is WARNING
    assert severity(start("--tp 8", leased=tuple(range(8))), "devices-idle") is None


def test_the_servers_own_variable_against_its_lease() -> None:
    rule, own = "other-visible-devices", {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert severity(start("--tp 2", environment=own, own=own, leased=(0, 1)), rule) is WARNING
    assert severity(start("--tp 2", environment=own, own=own, leased=(4, 5)), rule) is None
    assert (
        severity(start("--tp 2", environment=own, leased=(0, 1)), rule) is None
    )  # the daemon's, which the lease overrules
    assert severity(start("--tp 2", environment=own, own=own), rule) is None


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--tp 8 --nnodes 3", "nodes-divide"),
        ("--tp 8 --dp 3 --enable-dp-attention", "attention-groups-divide"),
        ("--tp 8 --dp 2 --nnodes 2", "replicas-over-nodes"),
    ],
)
def test_sizes_that_do_not_divide(options: str, rule: str) -> None:
    assert severity(start(options), rule) is ERROR
    assert severity(start("--tp 8 --dp 2 --nnodes 2 --enable-dp-attention"), rule) is None


def test_heads_that_do_not_divide() -> None:
    models, rule = [folder()], "heads-divide"
    assert severity(start("--tp 6", models=models), rule) is ERROR
    assert severity(start("--tp 8", models=models), rule) is None
    assert severity(start("--tp 6 --dp 3 --enable-dp-attention", models=models), rule) is None
    assert severity(start("--tp 6 --attn-cp-size 3", models=models), rule) is None
    odd = [folder(config=ConfigFacts(("OddForCausalLM",), "odd", {"num_attention_heads": 64}))]
    assert severity(start("--tp 6", models=odd), rule) is None
    assert severity(start("--tp 6", models=odd), "heads-divide-unsure") is WARNING
    assert severity(start("--tp 6", models=models), "heads-divide-unsure") is None


def test_quantization_blocks_that_do_not_divide() -> None:
    rule = "quantization-blocks"
    experts = ConfigFacts(("Qwen3MoeForCausalLM",), "", {"moe_intermediate_size": 1536}, None, "fp8", (128, 128))
    models = [folder(config=experts)]
    assert severity(start("--tp 8", models=models), rule) is WARNING  # 192 of 128
    assert severity(start("--tp 4", models=models), rule) is None
    assert severity(start("--tp 8 --ep 8", models=models), rule) is None
    assert severity(start("--tp 8", models=[folder(config=replace(experts, quantization=""))]), rule) is None


@pytest.mark.parametrize(
    ("options", "grave"),
    [
        ("--chunked-prefill-size 8200 --page-size 64", ERROR),
        ("--chunked-prefill-size 8192 --page-size 64", None),
        ("--chunked-prefill-size -1 --page-size 64", None),
        ("--chunked-prefill-size 8200 --page-size 64 --disaggregation-mode decode", None),
        ("--chunked-prefill-size 256 --page-size 64 --tp 8 --dp 8 --enable-dp-attention", ERROR),
    ],
)
def test_prefill_chunks_are_whole_pages(options: str, grave: Severity | None) -> None:
    assert severity(start(options), "prefill-pages") is grave


# --- the installation and its options --------------------------------------------------------------------------------

KNOWN = FlagFacts(("--help", "--model-path", "--tp-size", "--context-length", "--old"), {"--old": "use --new"}, True)


def installed(options: str, flags: FlagFacts | None = KNOWN, environment: dict[str, str] | None = None) -> Inspected:
    return start(options, engine=EngineFacts(version="0.5.9", flags=flags), environment=environment)


def test_an_option_that_the_installed_engine_does_not_know() -> None:
    (found,) = findings(installed("--contextlength 5"), "unknown-option")
    assert (found.severity, found.change) == (ERROR, "did you mean --context-length?")
    assert severity(installed("--tp 8 --context-length=5"), "unknown-option") is None  # the beginning of one will do
    assert severity(installed("--tp_size 8"), "unknown-option") is ERROR
    assert severity(installed("--no-such", None), "unknown-option") is None


def test_an_unknown_option_is_a_doubt_where_options_are_made_up_at_run_time() -> None:
    some = FlagFacts(KNOWN.known, complete=False)
    assert severity(installed("--no-such", some), "unknown-option") is None
    assert severity(installed("--no-such", some), "doubtful-option") is WARNING
    assert severity(installed("--no-such", environment={"SGLANG_PLUGINS": "ours"}), "doubtful-option") is WARNING


def test_an_option_that_will_go() -> None:
    (found,) = findings(installed("--old"), "deprecated-option")
    assert (found.severity, found.what) == (NOTICE, "--old will go: use --new")


@pytest.mark.parametrize(("options", "grave"), [("--tp eight", ERROR), ("--tp", ERROR), ("--tp 8", None)])
def test_numbers_are_numbers(options: str, grave: Severity | None) -> None:
    assert severity(start(options), "number-expected") is grave


def test_packages_older_than_the_engine_wants() -> None:
    def with_kernels(version: str) -> Inspected:
        pins = {"sgl-kernel": "0.3.21"}
        return start(engine=EngineFacts(version="0.5.9", distributions={"sgl-kernel": version}, pins=pins))

    assert severity(with_kernels("0.3.20"), "kernels-old") is WARNING
    assert severity(with_kernels("0.3.21.post1"), "kernels-old") is None


def test_a_driver_older_than_the_packages_cuda() -> None:
    def with_driver(driver: str) -> Inspected:
        engine = EngineFacts(version="0.5.9", distributions={"nvidia-cuda-runtime": "13.0.96"})
        return start(engine=engine, machine=MachineFacts(driver=driver))

    assert severity(with_driver("570.86.15"), "driver-old") is WARNING
    assert severity(with_driver("580.159.04"), "driver-old") is None
    assert severity(with_driver(""), "driver-old") is None


def test_packages_without_the_engine() -> None:
    assert severity(start(engine=EngineFacts(location="/venv/lib")), "engine-missing") is WARNING
    assert severity(start(engine=EngineFacts()), "engine-missing") is None  # no packages found: nothing is known


def test_a_colon_in_the_served_name() -> None:
    rule = "served-name-colon"
    assert severity(start("--served-model-name kimi:latest"), rule) is ERROR
    assert severity(start("--served-model-name kimi:latest", version="0.5.1"), rule) is None
    assert severity(start("--model-path s3://bucket/kimi"), rule) is None


def test_a_log_that_will_say_nothing() -> None:
    assert severity(start("--log-level warning"), "log-markers-hidden") is WARNING
    assert severity(start("--log-level INFO"), "log-markers-hidden") is None
    replaced = {"SGLANG_LOGGING_CONFIG_PATH": "/etc/log.json"}
    assert severity(start(environment=replaced), "log-format-replaced") is WARNING
    assert severity(start(environment=replaced, version="0.4.4"), "log-format-replaced") is None
    missing = looked(missing_files={"logging configuration": "/etc/log.json: No such file or directory"})
    assert severity(missing, "log-config-missing") is ERROR


def test_a_start_without_warm_up() -> None:
    assert severity(start("--skip-server-warmup"), "warmup-skipped") is WARNING
    assert severity(start("--skip-server-warmup"), "warmup-skipped-never-ready") is None
    assert severity(start("--skip-server-warmup", version="0.4.10.post2"), "warmup-skipped-never-ready") is ERROR


def test_a_watchdog_shorter_than_a_compilation() -> None:
    assert severity(start("--watchdog-timeout 30"), "watchdog-short") is WARNING
    assert severity(start("--watchdog-timeout 300"), "watchdog-short") is None


def test_variables_that_do_too_much_or_nothing() -> None:
    group = {"SGLANG_KILLPG_ON_SCHEDULER_EXCEPTION": "1"}
    assert severity(start(environment=group, version="0.5.13"), "group-kill") is WARNING
    assert severity(start(environment=group), "group-kill") is None
    assert severity(start(environment={"SGLANG_ENABLE_SPEC_V2": "1"}, version="0.5.14"), "spec-v2-ignored") is NOTICE


def test_a_program_or_directory_that_is_not_there() -> None:
    assert severity(looked(program=ProgramFacts(problem="/no/python: No such file")), "program-missing") is ERROR
    assert severity(looked(program=ProgramFacts(directory_problem="/no is no directory")), "directory-missing") is ERROR
    assert severity(looked(missing_files={"env_file": "cannot read it"}), "file-missing") is ERROR
    assert findings(looked(program=ProgramFacts("/usr/bin/python3"))) == []


# --- files -----------------------------------------------------------------------------------------------------------


def at(kind: ModelKind, **more: object) -> ModelFacts:
    return ModelFacts(MODEL, MODEL_PATH, kind, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (at(ModelKind.MISSING), "model-missing"),
        (at(ModelKind.FORBIDDEN), "model-unreadable"),
        (folder(unreadable=("model-00002-of-00002.safetensors",)), "model-unreadable"),
        (folder(config=None, config_problem="config.json: Expecting value"), "config-broken"),
        (folder(config=None), "config-missing"),
        (folder(index_problem="it has no weight_map"), "index-broken"),
        (folder(missing=("model-00003-of-00003.safetensors",)), "shards-missing"),
        (folder(files=(FileFacts("a.safetensors", 10, "its header is damaged"),)), "shards-broken"),
        (folder(files=()), "no-weights"),
        (folder(tokenizer=False), "tokenizer-missing"),
    ],
)
def test_a_model_that_cannot_be_loaded(model: ModelFacts, rule: str) -> None:
    assert severity(start(models=[model]), rule) is ERROR
    assert severity(start(models=[folder()]), rule) is None


def test_the_user_who_may_not_read_is_named() -> None:
    (found,) = findings(start(models=[at(ModelKind.FORBIDDEN)], user="sglang"), "model-unreadable")
    assert found.what == "sglang may not read /models/kimi of the model /models/kimi"


@pytest.mark.parametrize("rule", ["shards-missing", "no-weights"])
def test_weights_that_are_not_read_from_there_need_not_be_there(rule: str) -> None:
    model = folder(files=(), missing=("a.safetensors",) if rule == "shards-missing" else ())
    assert severity(start("--load-format dummy", models=[model]), rule) is None


def test_a_model_without_tokenizer_may_do_without() -> None:
    assert severity(start("--skip-tokenizer-init", models=[folder(tokenizer=False)]), "tokenizer-missing") is None


def test_shards_smaller_than_their_index_says() -> None:
    assert severity(start(models=[folder(index_bytes=16 * GIB)]), "shards-small") is WARNING
    assert severity(start(models=[folder(index_bytes=8 * GIB)]), "shards-small") is None


def test_a_download_that_was_not_finished() -> None:
    assert severity(start(models=[folder(unfinished=("a.incomplete",))]), "download-unfinished") is WARNING


def test_many_files_are_counted_not_listed() -> None:
    missing = tuple(f"model-{number:05}.safetensors" for number in range(163))
    (found,) = findings(start(models=[folder(files=(), missing=missing)]), "shards-missing")
    assert "163 of 163" in found.what
    assert found.what.endswith("model-00002.safetensors and 160 more")


def test_a_hubs_model_without_a_copy() -> None:
    model = at(ModelKind.HUB, cache="/hf/hub", cache_free_bytes=GIB)
    offline = {"HF_HUB_OFFLINE": "1"}
    assert severity(start(models=[model], environment=offline), "hub-offline") is ERROR
    assert severity(start(models=[model], environment=offline), "hub-download") is None
    assert severity(start(models=[model]), "hub-download") is WARNING
    assert severity(start(models=[model], environment={"SGLANG_USE_MODELSCOPE": "true"}), "hub-download") is None


def test_a_hubs_copy_with_gaps_is_completed_by_itself_unless_offline() -> None:
    copy = replace(folder(missing=("model-00002.safetensors",), tokenizer=False), kind=ModelKind.HUB)
    assert severity(start(models=[copy]), "shards-missing") is None
    assert severity(start(models=[copy]), "tokenizer-missing") is None
    assert severity(start(models=[copy], environment={"HF_HUB_OFFLINE": "1"}), "shards-missing") is ERROR


# --- memory ----------------------------------------------------------------------------------------------------------


def heavy(gib: int, **more: object) -> ModelFacts:
    return folder(files=(FileFacts("all.safetensors", gib * GIB, **more),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gib", "options", "grave"),
    [
        (1000, "--tp 4", ERROR),
        (1000, "--tp 8", None),
        (1000, "--tp 4 --cpu-offload-gb 200", None),
        (1000, "--tp 4 --quantization fp8", None),
        (1000, "--tp 4 --load-format dummy", None),
        (1000, "--tp 4 --device cpu", None),
    ],
)
def test_weights_against_all_memory_of_a_device(gib: int, options: str, grave: Severity | None) -> None:
    machine = MachineFacts(devices=gpus(8))
    assert severity(start(options, models=[heavy(gib)], machine=machine), "weights-over-device") is grave
    assert severity(start(options, models=[heavy(gib)]), "weights-over-device") is None


def test_wide_numbers_may_be_loaded_narrower() -> None:
    model = heavy(1000, wide_bytes=1000 * GIB)
    assert (
        severity(start("--tp 4", models=[model], machine=MachineFacts(devices=gpus(8))), "weights-over-device") is None
    )


def test_weights_and_draft_against_what_is_free_on_the_very_devices() -> None:
    devices = (*gpus(1), *(replace(gpu, index=1, free_bytes=20 * GIB) for gpu in gpus(1)))
    machine = MachineFacts(devices=devices)
    (found,) = findings(start("--tp 2", models=[heavy(40)], machine=machine), "weights-over-free")
    assert (found.severity, "GPU 1 has" in found.what) == (WARNING, True)
    assert severity(start("", models=[heavy(40)], machine=machine, leased=(0,)), "weights-over-free") is None
    assert severity(start("", models=[heavy(40)], machine=machine, leased=(1,)), "weights-over-free") is WARNING


def test_any_devices_are_the_freest() -> None:
    devices = (*(replace(gpu, free_bytes=GIB) for gpu in gpus(1)), replace(gpus(1)[0], index=1))
    one = start("", models=[heavy(40)], machine=MachineFacts(devices=devices), leased_count=1)
    assert severity(one, "weights-over-free") is None
    two = start("--tp 2", models=[heavy(40)], machine=MachineFacts(devices=devices), leased_count=2)
    assert severity(two, "weights-over-free") is WARNING


def test_weights_against_their_share_of_memory() -> None:
    machine = MachineFacts(devices=gpus(8))
    assert (
        severity(start("--mem-fraction-static 0.2", models=[heavy(40)], machine=machine), "weights-over-share")
        is WARNING
    )
    assert (
        severity(start("--mem-fraction-static 0.9", models=[heavy(40)], machine=machine), "weights-over-share") is None
    )


def test_the_hosts_cache_of_all_ranks_together() -> None:
    machine = MachineFacts(memory_bytes=1000 * GIB, memory_free_bytes=500 * GIB)
    options = "--tp 8 --enable-hierarchical-cache --hicache-size "
    assert severity(start(options + "200", machine=machine), "host-cache-over-memory") is ERROR
    assert severity(start(options + "100", machine=machine), "host-cache-over-memory") is None
    assert severity(start(options + "100", machine=machine), "host-cache-over-free") is WARNING
    assert severity(start(options + "40", machine=machine), "host-cache-over-free") is None
    assert severity(start("--tp 8 --hicache-size 200", machine=machine), "host-cache-over-memory") is None


# --- the host --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "machine", "rule", "grave"),
    [
        ("--tp 8", MachineFacts(shared_memory_bytes=64 << 20), "shared-memory-small", WARNING),
        ("", MachineFacts(shared_memory_bytes=64 << 20), "shared-memory-small", None),
        ("--tp 8", MachineFacts(shared_memory_bytes=64 * GIB), "shared-memory-small", None),
        ("", MachineFacts(temporary="/tmp", temporary_free_bytes=1 << 20), "temporary-space", WARNING),
        ("", MachineFacts(temporary="/tmp", temporary_free_bytes=GIB), "temporary-space", None),
        ("", MachineFacts(open_files=LimitFacts(1024, 4096)), "open-files-few", WARNING),
        ("", MachineFacts(open_files=LimitFacts(1024, -1)), "open-files-few", None),
        ("", MachineFacts(open_files=LimitFacts(1024, 524288)), "open-files-few", None),
        ("--nnodes 2", MachineFacts(locked_memory=LimitFacts(8 << 20, 8 << 20)), "locked-memory-small", WARNING),
        ("--nnodes 2", MachineFacts(locked_memory=LimitFacts(-1, -1)), "locked-memory-small", None),
        ("", MachineFacts(locked_memory=LimitFacts(8 << 20, 8 << 20)), "locked-memory-small", None),
        ("", MachineFacts(compiler="", devices=gpus(1)), "compiler-missing", WARNING),
        ("", MachineFacts(compiler="/usr/bin/nvcc", devices=gpus(1)), "compiler-missing", None),
        ("", MachineFacts(compiler=""), "compiler-missing", None),
        ("", MachineFacts(stack_reader=""), "stack-reader-missing", NOTICE),
        ("", MachineFacts(stack_reader="/venv/bin/py-spy"), "stack-reader-missing", None),
    ],
)
def test_the_host(options: str, machine: MachineFacts, rule: str, grave: Severity | None) -> None:
    assert severity(start(options, machine=machine), rule) is grave


@pytest.mark.parametrize(
    ("port", "rule"),
    [
        (PortFacts(30000, "requests", "port 30000 is held by pid 7", by_engine=True), "port-held-by-engine"),
        (PortFacts(30000, "requests", "port 30000 is held by pid 7"), "port-held"),
        (PortFacts(8998, "disaggregation bootstrap", "port 8998 is held by pid 7", by_engine=True), "port-held"),
        (PortFacts(30233, "requests", other_server="glm", other_purpose="attention in data parallel"), "port-shared"),
    ],
)
def test_ports_in_other_hands(port: PortFacts, rule: str) -> None:
    found = findings(start(ports=(port,)))
    assert [(one.rule, one.severity) for one in found] == [(rule, ERROR)]
