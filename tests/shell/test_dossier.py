"""What the daemon knows of an attempt, as it goes into the bundle: complete, masked, and split by rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.actions import KeepEvidence
from supervisor.config import ServerConfig
from supervisor.core.gpus.views import GpusView
from supervisor.edge.evidence import keep
from supervisor.events import Probed, ProbeOutcome
from supervisor.profile import load_profile
from supervisor.shell.dossier import LINES_PER_RANK, PROBES_KEPT, Dossier, engine_version, split_by_rank
from tests.edge.conftest import until
from tests.shell.made import snapshot

PROFILE = load_profile("sglang")
ASKED = KeepEvidence(3, "stalled in verify-graph", 10.0)
COMMAND = ("/venv/bin/python", "-m", "sglang.launch_server", "--tp", "2", "--api-key", "sesame-1", "--x=1")
SEEING = GpusView("seeing", 0.0, "", driver="580.159.04")


def dossier() -> Dossier:
    made = Dossier(ServerConfig(name="kimi", command=COMMAND), PROFILE)
    made.began({"HF_TOKEN": "hf_secret", "HF_HOME": "/models", "NOTHING_KEY": ""})
    return made


async def kept_files(made: Dossier, place: Path, log: str) -> dict[str, str]:
    path = place / "000003.log"
    path.write_text(log)
    facts = made.facts(ASKED, snapshot("kimi"), (), str(path), SEEING)
    kept = await keep(ASKED, str(place / "kimi/000003"), facts)
    return {one.name: one.read_text() for one in Path(kept.path).iterdir()}


async def test_the_bundle_has_everything_that_is_promised(tmp_path: Path) -> None:
    files = await kept_files(dossier(), tmp_path, "[2026-02-26 18:27:00 TP0] Load weight begin.\n")
    assert set(files) >= {
        "manifest.json", "facts.json", "timeline.json", "votes.json", "probes.json", "gpus.json", "environment.json",
        "command.json", "versions.json", "log-tail.txt", "log-TP0.txt", "processes.txt", "machine.txt",
    }  # fmt: skip
    assert json.loads(files["facts.json"])["reason"] == ASKED.reason
    assert json.loads(files["facts.json"])["snapshot"]["name"] == "kimi"
    assert json.loads(files["gpus.json"])["sight"] == "seeing"
    versions = json.loads(files["versions.json"])
    assert versions["driver"] == "580.159.04"
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["engine"] == "sglang"
    command = json.loads(files["command.json"])
    assert command["command"][-2:] == ["***", "--x=1"]
    assert len(command["config_hash"]) == 16


async def test_no_file_has_a_secret_of_the_command_or_the_environment(tmp_path: Path) -> None:
    log = "[2026-02-26 18:27:00] server_args={'api_key': 'sesame-1'}\nHF_TOKEN is hf_secret\n"
    files = await kept_files(dossier(), tmp_path, log)
    for name, text in files.items():
        assert "sesame-1" not in text, name
        assert "hf_secret" not in text, name
    assert json.loads(files["environment.json"]) == {"HF_TOKEN": "***", "HF_HOME": "/models", "NOTHING_KEY": ""}
    assert "HF_TOKEN is ***" in files["log-tail.txt"]


async def test_only_the_last_probes_of_this_attempt_are_kept(tmp_path: Path) -> None:
    made = dossier()
    made.probed(Probed(2, ProbeOutcome.OK))
    made.began({})
    for number in range(PROBES_KEPT + 5):
        made.probed(Probed(3, ProbeOutcome.UNAVAILABLE, 503, latency_s=number))
    probes = json.loads((await kept_files(made, tmp_path, ""))["probes.json"])
    assert [one["probed"]["latency_s"] for one in probes] == list(range(5, PROBES_KEPT + 5))
    assert all(one["wall"] > 1.7e9 for one in probes)


async def test_a_log_that_is_gone_is_missed_and_costs_nothing_else(tmp_path: Path) -> None:
    facts = dossier().facts(ASKED, snapshot("kimi"), (), str(tmp_path / "gone.log"), SEEING)
    kept = await keep(ASKED, str(tmp_path / "kimi/000003"), facts)
    assert "log-tail.txt: No such file or directory" in kept.missing
    assert "log of each rank: No such file or directory" in kept.missing
    assert Path(kept.path, "facts.json").exists()


async def test_an_adopted_attempt_has_its_environment_read_back(tmp_path: Path) -> None:
    made = Dossier(ServerConfig(name="kimi", command=COMMAND), PROFILE)
    process = subprocess.Popen(["sleep", "1000"], env={"HF_TOKEN": "hf_secret", "HF_HOME": "/models"})
    try:
        await until(Path(f"/proc/{process.pid}/environ").read_bytes)  # the kernel fills it in at the end of the exec
        made.recall(process.pid, {})
    finally:
        process.kill()
        process.wait()
    files = await kept_files(made, tmp_path, "hf_secret\n")
    assert json.loads(files["environment.json"]) == {"HF_TOKEN": "***", "HF_HOME": "/models"}
    assert files["log-tail.txt"] == "***\n"


async def test_an_adopted_attempt_that_is_gone_is_told_from_the_configuration(tmp_path: Path) -> None:
    made = Dossier(ServerConfig(name="kimi", command=COMMAND, environment={"MY_KEY": "hidden-1"}), PROFILE)
    made.recall(2**22 + 1, {"HF_TOKEN": "hf_secret"})
    environment = json.loads((await kept_files(made, tmp_path, ""))["environment.json"])
    assert environment["MY_KEY"] == environment["HF_TOKEN"] == "***"


# --- ranks ---------------------------------------------------------------------------------------------------------


def test_each_rank_gets_its_lines_and_the_launcher_the_rest() -> None:
    text = (
        b"plain start\n"
        b"[2026-02-26 18:27:00 TP0] Load weight begin.\n"
        b"[2026-02-26 18:27:01 DP1 TP1] Load weight begin.\n"
        b"Traceback (most recent call last):\n"
        b"[2026-02-26 18:27:02] Uvicorn running\n"
        b"  0%|   | 0/13 [00:00<?, ?it/s][2026-02-26 18:27:03 TP0] Capture begin"
    )
    found = split_by_rank(PROFILE, text)
    assert found["log-TP0.txt"] == ("[2026-02-26 18:27:00] Load weight begin.\n[2026-02-26 18:27:03] Capture begin\n")
    assert found["log-DP1-TP1.txt"] == (
        "[2026-02-26 18:27:01] Load weight begin.\nTraceback (most recent call last):\n"
    )
    assert found["log-launcher.txt"].startswith("plain start\n[2026-02-26 18:27:02] Uvicorn running\n")
    assert set(found) == {"log-TP0.txt", "log-DP1-TP1.txt", "log-launcher.txt"}


def test_a_tail_that_begins_in_a_line_leaves_that_line_out() -> None:
    text = b"P0] half a line\n[2026-02-26 18:27:01 TP1] whole\n"
    assert split_by_rank(PROFILE, text, whole=False) == {"log-TP1.txt": "[2026-02-26 18:27:01] whole\n"}


def test_only_the_last_lines_are_kept_and_no_number_of_ranks_is_too_large() -> None:
    lines = [f"[2026-02-26 18:27:00 TP{n % 500}] line {n}" for n in range(500)]
    lines += [f"[2026-02-26 18:27:00 TP0] line {n}" for n in range(1000)]
    found = split_by_rank(PROFILE, "\n".join(lines).encode())
    assert len(found) <= 128
    kept = found["log-TP0.txt"].splitlines()
    assert len(kept) == LINES_PER_RANK
    assert kept[-1].endswith("line 999")


@pytest.mark.parametrize("dialect", ["0.5.3", "0.5.9", "0.5.23"])
def test_the_log_of_every_generation_is_split(dialect: str) -> None:
    command = [sys.executable, "-m", "supervisor.simulator", "render", "--dialect", dialect, "--tp", "2"]
    log = subprocess.run([*command, "--speed", "1000"], capture_output=True, check=True).stdout
    found = split_by_rank(PROFILE, log)
    assert {"log-launcher.txt", "log-TP0.txt", "log-TP1.txt"} <= set(found)


# --- versions ------------------------------------------------------------------------------------------------------


def test_the_engines_version_lies_beside_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.12/site-packages/sglang-0.5.15.post1.dist-info").mkdir(parents=True)
    assert engine_version((f"{tmp_path}/bin/python", "-m", "x"), "sglang") == "0.5.15.post1"
    assert engine_version((f"{tmp_path}/bin/python",), "other") == ""
    assert engine_version(("python", "-m", "x"), "sglang") == ""
    assert engine_version((), "sglang") == ""
