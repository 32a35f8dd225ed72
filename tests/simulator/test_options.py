"""The command line of the fake engine: the engine's own options, the simulator's, and the environment."""

import pytest

from supervisor.simulator.options import parse_options
from supervisor.simulator.scenario import Kind

TP_NAMES = ("--tp", "--tp-size", "--tensor-parallel-size")


@pytest.mark.parametrize("name", TP_NAMES)
def test_every_name_of_an_option_is_known(name):
    assert parse_options([name, "8"], {}).tp == 8


def test_unknown_options_are_tolerated_with_their_values():
    command = ["--model-path", "/models/kimi", "--kv-cache-dtype", "fp8_e5m2", "--trust-remote-code", "--tp", "4"]
    command += ["--cuda-graph-bs", "1", "2", "4", "--port=31000", "--reasoning-parser=kimi_k2"]
    options = parse_options(command, {})
    assert (options.model_path, options.tp, options.port) == ("/models/kimi", 4, 31000)


def test_options_are_not_abbreviated():
    assert parse_options(["--speculative-num-step", "9"], {}).speculative_num_steps == 3


def test_the_environment_gives_defaults_and_the_command_line_wins():
    environment = {
        "SGLSUP_SIM_SPEED": "50",
        "SGLSUP_SIM_DIALECT": "0.5.3",
        "SGLSUP_SIM_SCENARIO": "hostile;slow:factor=2",
    }
    options = parse_options([], environment)
    assert (options.speed, options.dialect) == (50.0, "0.5.3")
    assert [scenario.kind for scenario in options.scenarios] == [Kind.HOSTILE, Kind.SLOW]
    options = parse_options(["--speed", "7", "--dialect", "0.5.23", "--scenario", "ignore-term"], environment)
    assert (options.speed, options.dialect) == (7.0, "0.5.23")
    assert [scenario.kind for scenario in options.scenarios] == [Kind.IGNORE_TERM]


def test_topk_1_clamps_the_draft_tokens():
    command = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "1", "--speculative-eagle-topk", "1"]
    options = parse_options([*command, "--speculative-num-draft-tokens", "16"], {})
    assert options.draft_tokens_clamped
    assert options.draft_tokens == 2


def test_topk_above_1_does_not():
    command = [
        "--speculative-algorithm",
        "EAGLE",
        "--speculative-eagle-topk",
        "4",
        "--speculative-num-draft-tokens",
        "16",
    ]
    options = parse_options(command, {})
    assert not options.draft_tokens_clamped
    assert options.draft_tokens == 16


@pytest.mark.parametrize(("name", "speculates"), [("EAGLE", True), ("eagle3", True), ("NEXTN", True), ("", False)])
def test_algorithms_that_load_a_draft(name, speculates):
    assert parse_options(["--speculative-algorithm", name] if name else [], {}).speculative is speculates


def test_single_steps_may_take_other_times():
    options = parse_options(["--phase-seconds", "weights=3,warmup=0.5"], {})
    assert (options.seconds("weights"), options.seconds("warmup"), options.seconds("dist-init")) == (3.0, 0.5, 6.0)


@pytest.mark.parametrize("environment", [{"SGLSUP_SIM_DIALECT": "9.9"}, {"SGLSUP_SIM_SPEED": "0"}])
def test_a_wrong_default_is_refused(environment):
    with pytest.raises(SystemExit, match="nothing was started"):
        parse_options([], environment)


def test_an_unknown_step_is_refused():
    with pytest.raises(SystemExit, match="known steps are"):
        parse_options(["--phase-seconds", "wieghts=3"], {})
