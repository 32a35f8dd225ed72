"""Every cause that the product can name has a runbook, and what a runbook tells to type or to look for exists."""

from __future__ import annotations

import re

import pytest

from supervisor import runbook as page
from supervisor.cli.main import VERBS
from supervisor.core.endcause import CANNOT_EXECUTE
from supervisor.main import COMMANDS, main
from supervisor.preflight import load_rules
from supervisor.profile import load_profile, profile_names
from supervisor.snapshot import DiagnosisView
from tests.docs.pages import DOCS

WRITTEN = page.runbooks()
TEXT = (DOCS / "runbooks.md").read_text()
RULES = {rule.name for name in profile_names() for rule in load_rules(name).rules}
LOOKED_UP = r"has no ([a-z-]+)"


def test_every_cause_has_one_and_nothing_else_has() -> None:
    causes = {cause.name for name in profile_names() for cause in load_profile(name).causes}
    assert set(WRITTEN) == causes | {CANNOT_EXECUTE}


@pytest.mark.parametrize("cause", WRITTEN)
def test_a_runbook_is_whole(cause: str) -> None:
    book = WRITTEN[cause]
    assert book.means.endswith(".")
    assert book.verify.endswith(".")
    assert book.act
    assert all(step[-1] in ".?)" for step in book.act)
    assert f"\n## {cause}\n" in TEXT


def test_the_command_that_why_names_prints_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = DiagnosisView("gpu-oom-weights").runbook.split()
    assert (program, main(words)) == ("sglsup", 0)
    told = capsys.readouterr().out
    assert told.startswith("## gpu-oom-weights\n")
    assert told in TEXT
    assert main(["runbook"]) == 0
    assert capsys.readouterr().out.split() == list(WRITTEN)


def test_on_a_terminal_it_is_wrapped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["runbook", "scheduler-hang"]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    (plain,) = re.findall(r"(?ms)^## scheduler-hang\n.*?(?=^## |\Z)", TEXT)
    assert told.split() == plain.split(), "the same words"


def test_a_cause_that_is_not_there_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook", "gpu-oom-wieghts"]) == 2
    assert 'did you mean "gpu-oom-weights"?' in capsys.readouterr().err


def test_what_is_to_be_typed_exists() -> None:
    verbs = set(re.findall(r"`sglctl ([a-z]+)", TEXT))
    assert verbs
    assert verbs <= set(VERBS)
    commands = set(re.findall(r"`sglsup ([a-z]+)", TEXT))
    assert commands <= set(COMMANDS)


def test_findings_that_it_speaks_of_exist() -> None:
    spoken = {name for book in WRITTEN.values() for name in re.findall(LOOKED_UP, book.verify)}
    assert len(spoken) >= 5
    assert spoken <= RULES


def test_it_says_what_the_supervisor_really_does() -> None:
    for name in WRITTEN:
        cause = load_profile("sglang").cause(name)
        said = TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        if cause is not None and not cause.failure:
            assert "Nothing: this is no failure" in said
        elif cause is not None:
            assert ("given up at once" in said) is (cause.restart == "no")
            rare = page.hopeless(name, [load_profile("sglang")]) and cause.restart != "no"
            assert ("`why` says that no restart can help" in said) is rare
            assert not rare or "been restarted" not in said, "it may as well be down"


def test_an_activation_peak_of_the_warm_up_is_one_that_no_restart_mends() -> None:
    profiles = [load_profile(name) for name in profile_names()]
    assert page.hopeless("gpu-oom-runtime", profiles)
    assert not page.hopeless("gpu-memory-occupied", profiles), "the same text, but elsewhere and with another class"
    assert not page.hopeless("external-termination", profiles)
