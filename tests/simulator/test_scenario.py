"""The text of scenarios: what is understood, what is refused, and what applies to which start."""

import pytest

from supervisor.simulator.scenario import Kind, ScenarioError, claim_once, parse_scenario, parse_scenarios


def test_a_stall_names_phase_rank_and_moment():
    scenario = parse_scenario("stall:phase=verify-graph,rank=TP3,after=50%,busy=1")
    assert (scenario.kind, scenario.phase, scenario.rank) == (Kind.STALL, "verify-graph", "TP3")
    assert (scenario.after_fraction, scenario.after_s, scenario.busy) == (0.5, None, True)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5.0), ("250ms", 0.25), ("2m", 120.0), ("1h", 3600.0), ("7", 7.0), ("1.5s", 1.5)]
)
def test_moments_are_durations(text, seconds):
    assert parse_scenario(f"stall:phase=serving,after={text}").after_s == seconds


def test_a_bare_word_has_defaults():
    assert parse_scenario("crash").phase == "weights"
    assert parse_scenario("flood").phase == "serving"
    assert parse_scenario("orphans").copies == 2
    assert parse_scenario("zombie-200:how=dead").dead
    assert parse_scenario("stall:phase=healthy").phase == "serving"


def test_several_scenarios_fit_into_one_text():
    kinds = [scenario.kind for scenario in parse_scenarios(["slow:factor=8;flood:mb=1", " ", "hostile"])]
    assert kinds == [Kind.SLOW, Kind.FLOOD, Kind.HOSTILE]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("explode", "unknown kind 'explode'"),
        ("stall:phase", "'phase' is not key=value"),
        ("stall:colour=red", "unknown key"),
        ("slow:factor=fast", "could not convert"),
        ("orphans:count=many", "invalid literal"),
        ("zombie-200:how=undead", "how is dead or hang"),
        ("stall:after=soon", "could not convert"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_text(text, reason):
    with pytest.raises(ScenarioError) as refusal:
        parse_scenario(text)
    assert reason in str(refusal.value)
    assert repr(text) in str(refusal.value)


def test_once_applies_to_one_start_and_to_all_scenarios_of_its_file(tmp_path):
    path = tmp_path / "first"
    wanted = parse_scenarios([f"stall:phase=weights,once={path}", f"slow:factor=2,once={path}", "hostile"])
    assert claim_once(wanted) == wanted
    assert claim_once(wanted) == wanted[2:]
    assert path.exists()


def test_two_files_are_two_attempts(tmp_path):
    wanted = parse_scenarios([f"stall:once={tmp_path}/a", f"crash:once={tmp_path}/b"])
    (tmp_path / "a").touch()
    assert [scenario.kind for scenario in claim_once(wanted)] == [Kind.CRASH]
