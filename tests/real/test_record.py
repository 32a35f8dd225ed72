"""The recordings of the real SGLang hold what other tests take them for, and nothing of the machine they come from."""

import json
import re
from pathlib import Path

import pytest

from tests.real.record import SCENARIOS, TARGET, neutral
from tests.real.setup_sglang_cpu import Install


def timeline(name: str) -> list[str]:
    return [event["what"] for event in json.loads((TARGET / f"{name}.json").read_text())]


def log(name: str) -> str:
    return (TARGET / f"{name}.log").read_text()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_start_is_refused_then_warming_then_healthy(name: str) -> None:
    assert timeline(name)[1:4] == ["/health ConnectionRefusedError", "/health 503", "/health 200"]
    assert "The server is fired up and ready to roll!" in log(name)


def test_a_drained_parent_exits_with_zero() -> None:
    assert timeline("healthy-start-tp1")[-2:] == ["SIGTERM to the parent", "exit 0"]


def test_a_parent_without_its_scheduler_kills_itself() -> None:
    # Minus nine looks like the kernel's OOM kill and is SGLang's own way to end.
    assert timeline("killed-scheduler-tp1")[-2:] == ["SIGKILL to the scheduler", "exit -9"]
    assert "crashed with exit code -9" in log("killed-scheduler-tp1")


def test_both_ranks_of_two_speak() -> None:
    assert {"TP0", "TP1"} <= set(re.findall(r"^\[[-0-9: ]+ (TP\d)\]", log("healthy-start-tp2"), re.MULTILINE))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recording_names_no_folder_of_its_machine(name: str) -> None:
    folders = set(re.findall(r"(?<![\w.:/])/(?:home|root|work|tmp|opt|usr|venv|models)\b[\w./-]*", log(name)))

    assert {folder for folder in folders if not folder.startswith(("/venv/", "/models/tiny", "/usr/"))} == set()


def test_the_longest_path_is_replaced_first() -> None:
    install = Install(Path("/somewhere/real"))
    line = b"model_path='/somewhere/real/model' /somewhere/real/venv/lib/x.py /somewhere/real/lock"

    assert neutral(line, install) == b"model_path='/models/tiny' /venv/lib/x.py /cache/lock"
