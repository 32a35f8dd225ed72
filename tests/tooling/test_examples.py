"""The examples for clusters can be read by what they are for, and run our own commands as these are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.cli.main import parser as sglctl
from supervisor.config import load
from supervisor.run import parser as sglsup_run

ETC = Path(__file__).resolve().parents[2] / "etc"
SLURM = ETC / "slurm" / "multi-node.sbatch"


def documents(path: str) -> list[Any]:
    return list(yaml.safe_load_all((ETC / path).read_text()))


def playbook() -> dict[str, Any]:
    ((play,),) = documents("ansible/multi-node.yml")
    found: dict[str, Any] = play
    return found


def commands() -> list[list[str]]:
    tasks = playbook()["tasks"]
    return [task["ansible.builtin.command"]["argv"] for task in tasks if "ansible.builtin.command" in task]


def taken_by_run(words: list[str]) -> Any:
    """What `sglsup run` makes of the words behind its name."""
    return sglsup_run().parse_args(words)


def test_the_set_of_pods_runs_one_member_each() -> None:
    pods, service = documents("kubernetes/leaderworkerset.yaml")
    template = pods["spec"]["leaderWorkerTemplate"]
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart", "members restart together"
    assert template["leaderTemplate"]["spec"] == template["workerTemplate"]["spec"]
    (container,) = template["leaderTemplate"]["spec"]["containers"]
    assert container["command"][0].endswith("/sglsup")
    assert container["command"][1] == "run"
    assert taken_by_run(container["command"][2:]).no_restart
    assert service["spec"]["selector"]["role"] == template["leaderTemplate"]["metadata"]["labels"]["role"]


def test_the_pods_are_probed_where_the_supervisor_answers() -> None:
    pods, _ = documents("kubernetes/leaderworkerset.yaml")
    (container,) = pods["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"/startupz", "/readyz", "/livez"}
    assert "--listen=0.0.0.0:9877" in container["command"]


def test_the_runtime_has_more_patience_than_the_supervisor() -> None:
    pods, _ = documents("kubernetes/leaderworkerset.yaml")
    spec = pods["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    assert "--grace=120s" in spec["containers"][0]["command"]
    assert spec["terminationGracePeriodSeconds"] > 120


def test_the_batch_script_is_valid_shell() -> None:
    done = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_batch_script_runs_one_member_per_node() -> None:
    text = SLURM.read_text().replace("\\\n", " ")
    assert "--kill-on-bad-exit=1" in text, "members end together"
    (line,) = re.findall(r'exec "\$SGLSUP" run (.*)', text)
    words = [word.strip('"') for word in line.split()]
    assert taken_by_run(words).no_restart


def test_the_batch_script_needs_a_model() -> None:
    done = subprocess.run(
        ["bash", str(SLURM)], capture_output=True, text=True, timeout=20, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode != 0
    assert "set MODEL to the path of the model" in done.stderr


def test_the_playbook_calls_sglctl_as_it_is() -> None:
    assert [words[1] for words in commands()] == ["reread", "update", "stop", "start", "wait"]
    for words in commands():
        assert words[0].endswith("/sglctl")
        sglctl().parse_args([str(word) for word in words[1:]])


def test_the_playbook_writes_a_table_that_is_read(tmp_path: Path) -> None:
    """With its variables filled in, the file of one host is a server's table."""
    (task,) = [task for task in playbook()["tasks"] if "ansible.builtin.copy" in task]
    text = re.sub(r"gpus = \[\{\{[^}]*\}\}\]", "gpus = [0, 1]", task["ansible.builtin.copy"]["content"])
    daemon = f'[daemon]\nstate_dir = "{tmp_path}/state"\nlog_dir = "{tmp_path}/log"\n'
    (tmp_path / "supervisor.toml").write_text(daemon + re.sub(r"\{\{[^}]*\}\}", "2", text))
    server = load(tmp_path / "supervisor.toml").servers["llm"]
    assert server.command[server.command.index("--node-rank") + 1] == "2"
    assert server.gpus.indices == (0, 1)
    assert server.deadlines["dist-init"].stall_s == 900


@pytest.mark.parametrize(
    "path", ["kubernetes/leaderworkerset.yaml", "slurm/multi-node.sbatch", "ansible/multi-node.yml"]
)
def test_every_example_says_what_it_is_for(path: str) -> None:
    assert "One server over" in (ETC / path).read_text()
