"""`sglsup check`: what a person and a program get told about a start, and the exit status."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor import check
from supervisor.check import Judged, Verdict, page
from supervisor.core.lint import Finding
from supervisor.preflight import Severity
from tests.edge.inspect.places import install, model
from tests.nvml.fake import FakeNvml, client_environment

SGLANG = "\n".join(
    f'parser.add_argument("{option}")'
    for option in (
        "--model-path", "--port", "--host", "--tp-size", "--dp-size", "--enable-dp-attention", "--nnodes", "--context-length",
        "--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens",
        "--speculative-draft-model-path", "--served-model-name", *(f"--more-{number}" for number in range(50)),
    )
)  # fmt: skip
EAGLE = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter beside an installed SGLang, as far as its files go."""
    interpreter = install(tmp_path / "venv")
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    (packages / "engine").rename(packages / "sglang")
    (packages / "engine-0.5.9.dist-info").rename(packages / "sglang-0.5.9.dist-info")
    (packages / "sglang" / "srt").mkdir()
    (packages / "sglang" / "srt" / "server_args.py").write_text(SGLANG)
    return interpreter


@pytest.fixture
def kimi(tmp_path: Path) -> Path:
    return model(tmp_path / "kimi", "model.safetensors")


def command(python: Path, model: Path | str, *options: str) -> list[str]:
    return [str(python), "-m", "sglang.launch_server", "--model-path", str(model), "--port", free_port(), *options]


def free_port() -> str:
    return str(20000 + os.getpid() % 20000)  # of nobody, as a rule; a holder would be a finding of its own


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = check.main(["--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def rules(answer: dict[str, Any], severity: str = "error") -> list[str]:
    return [one["rule"] for server in answer["servers"] for one in server["findings"] if one["severity"] == severity]


def test_a_start_that_can_succeed(python: Path, kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = checked(capsys, "--", *command(python, kimi))
    assert (status, answer["errors"], rules(answer)) == (0, 0, [])
    (server,) = answer["servers"]
    assert (server["server"], server["engine"], server["version"], server["running"]) == (
        "kimi",
        "sglang",
        "0.5.9",
        False,
    )
    assert any(text.startswith("GPUs: ") for text in server["skipped"])


def test_the_restart_that_could_not_help(python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fourth night: a draft that is too short, and draft tokens that are clamped without a word."""
    target = model(
        tmp_path / "t", "model.safetensors", config={"model_type": "llama", "max_position_embeddings": 131072}
    )
    short = model(tmp_path / "d", "model.safetensors", config={"model_type": "llama", "max_position_embeddings": 4096})
    options = [*EAGLE, "--speculative-num-draft-tokens", "16", "--speculative-draft-model-path", str(short)]
    status, answer = checked(capsys, "--", *command(python, target, *options))
    assert status == 1
    assert rules(answer) == ["draft-context-short"]
    assert "draft-tokens-adjusted" in rules(answer, "warning")


def test_a_misspelt_option_is_told_by_the_installed_source(
    python: Path, kimi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, answer = checked(capsys, "--", *command(python, kimi, "--speculativ-algorithm", "EAGLE3"))
    assert (status, rules(answer)) == (1, ["unknown-option"])


def test_a_broken_model(python: Path, kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kimi / "model.safetensors").write_bytes(b"nothing")
    assert rules(checked(capsys, "--", *command(python, kimi))[1]) == ["shards-broken"]
    assert rules(checked(capsys, "--", *command(python, "/no/such/model"))[1]) == ["model-missing"]


def test_devices_on_the_command_line(python: Path, kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for devices in ("0,1", "0-1"):
        assert rules(checked(capsys, "--gpus", devices, "--", *command(python, kimi, "--tp-size", "4"))[1]) == [
            "devices-too-few"
        ]


def test_the_memory_of_the_very_devices(
    python: Path,
    kimi: Path,
    fake_nvml: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sparse file of 200 GiB is a whole shard to whoever reads header and size alone."""
    fake_nvml.set_count(2)
    for name, value in client_environment(fake_nvml).items():
        monkeypatch.setenv(name, value)
    huge(kimi / "model.safetensors", 200 << 30)
    _, one = checked(capsys, "--gpus", "0", "--", *command(python, kimi))
    assert rules(one) == ["weights-over-device"]
    assert not any(text.startswith("GPUs") for text in one["servers"][0]["skipped"])
    _, two = checked(capsys, "--gpus", "0,1", "--", *command(python, kimi, "--tp-size", "2"))
    assert rules(two) == []


def huge(path: Path, size: int) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)


def test_a_command_in_a_container_is_judged_by_its_options_alone(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = ["docker", "run", "image", *command(Path("python3"), "/models/inside", "--nnodes", "3", "--tp", "8")]
    _, answer = checked(capsys, "--", *inside)
    assert "nodes-divide" in rules(answer)
    assert "model-missing" not in rules(answer)
    assert any("another file system" in text for text in answer["servers"][0]["skipped"])


def test_a_script_hides_its_options_which_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    status, answer = checked(capsys, "--", str(script), "--model-path", "/no/such/model")
    assert (status, rules(answer)) == (0, [])
    assert any("does not start sglang itself" in text for text in answer["servers"][0]["skipped"])


# --- a configuration -------------------------------------------------------------------------------------------------


def configured(folder: Path, **servers: list[str]) -> str:
    tables = [f"[server.{name}]\ncommand = {json.dumps(words)}\n" for name, words in servers.items()]
    state = f'[daemon]\nstate_dir = "{folder}/state"\nlog_dir = "{folder}/log"\nsocket = "{folder}/s"\n'
    (folder / "supervisor.toml").write_text(state + "".join(tables))
    return str(folder / "supervisor.toml")


def test_two_servers_whose_derived_ports_meet(
    python: Path, kimi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def serving(port: int) -> list[str]:
        words = command(python, kimi, "--enable-dp-attention", "--dp-size", "2", "--tp-size", "2")
        return [*words, "--port", str(port)]

    file = configured(tmp_path, one=serving(21000), two=serving(21235))
    status, answer = checked(capsys, file)
    assert status == 1
    told = [one["what"] for one in answer["servers"][1]["findings"] if one["rule"] == "port-shared"]
    assert told == ["port 21235 (requests) is also wanted by server one (attention in data parallel)"]
    assert not any(one["rule"] == "port-shared" for one in answer["servers"][0]["findings"])


def test_only_the_servers_asked_for(
    python: Path, kimi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = configured(tmp_path, good=command(python, kimi), bad=command(python, "/no/model", "--port", "21001"))
    assert checked(capsys, file, "good")[0] == 0
    assert checked(capsys, file, "bad")[0] == 1
    assert check.main([file, "ugly"]) == 2
    assert "has no server ugly; it has good, bad" in capsys.readouterr().err


def test_an_env_file_that_is_missing(
    python: Path, kimi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(configured(tmp_path, kimi=command(python, kimi)))
    file.write_text(file.read_text() + f'env_file = "{tmp_path}/none.env"\n')
    assert rules(checked(capsys, str(file))[1]) == ["file-missing"]


def test_limits_of_the_configuration_count(
    python: Path, kimi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(configured(tmp_path, kimi=command(python, kimi)))
    text = file.read_text()
    file.write_text(text + "limits = {nofile = 1000}\n")
    assert "open-files-few" in rules(checked(capsys, str(file))[1], "warning")
    file.write_text(text + "limits = {nofile = 100000}\n")
    assert "open-files-few" not in rules(checked(capsys, str(file))[1], "warning")


# --- ports held by somebody ------------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Iterator[tuple[int, list[str]]]:
    """A process that listens, with its port and command line."""
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), words
        process.communicate("\n")


def test_a_port_in_other_hands(
    python: Path, kimi: Path, held: tuple[int, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, answer = checked(capsys, "--", *command(python, kimi, "--port", str(held[0])))
    assert (status, rules(answer)) == (1, ["port-held"])


def test_a_server_that_runs_already_holds_its_own_port(
    tmp_path: Path, held: tuple[int, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    port, words = held
    file = Path(configured(tmp_path, kimi=words))
    file.write_text(file.read_text() + f"port = {port}\n")
    status, answer = checked(capsys, str(file))
    assert (status, answer["servers"][0]["running"], rules(answer)) == (0, True, [])


# --- people, and wrong usage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [[], ["--"], ["file.toml", "--", "cmd"], ["--gpus", "x", "--", "cmd"], ["/no/such/file.toml"]]
)
def test_wrong_usage_and_an_unusable_file(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(arguments) == 2
    assert capsys.readouterr().err.startswith("sglsup check: ")


@pytest.mark.parametrize("text", ["", "# nothing\n", "[daemon]\nlisten = ''\n"])
def test_a_file_without_a_server_is_no_success(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A conversion that failed has left an empty file."""
    file = tmp_path / "e.toml"
    state = f'[daemon]\nstate_dir = "{tmp_path}"\nlog_dir = "{tmp_path}"\n'
    file.write_text(text.replace("[daemon]\n", state))
    assert check.main([str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"sglsup check: cannot check {file}: it has no [server.NAME], so nothing was looked at\n")


def test_a_page_for_three_in_the_morning() -> None:
    finding = Finding(
        "draft-context-short", Severity.ERROR, "it is short", "it is refused", "set it", "file.py:1", ">=0.5.1"
    )
    verdict = Verdict((Judged("kimi", "sglang", "0.5.9", False, (finding,), ("GPUs: none",)),), 1, 0, 0)
    assert page(verdict) == (
        "kimi   sglang 0.5.9\n"
        "  error    it is short\n"
        "           why     it is refused\n"
        "           change  set it\n"
        "           rule    draft-context-short (>=0.5.1): file.py:1\n"
        "  skipped  GPUs: none\n"
        "\n"
        "1 error in 1 server; the daemon refuses to start what has errors (sglctl start --force overrides)\n"
    )
    assert "\x1b[1;31m" in page(verdict, colour=True)


@pytest.mark.parametrize("colour", [False, True])
def test_a_page_fits_its_reader(colour: bool) -> None:
    long = " ".join(["word"] * 40)
    finding = Finding("rule", Severity.WARNING, long, long, long, long, ">=0.5.1")
    told = page(Verdict((Judged("kimi", "sglang", "0.5.9", False, (finding,), (long,)),), 0, 1, 0), colour, 80)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told).splitlines()
    assert 70 < max(map(len, plain)) <= 80
    assert plain[1].startswith("  warning  word ")
    assert plain[2].startswith(" " * 11 + "word ")
    assert any(line.startswith(" " * 11 + "why     word ") for line in plain)


def test_what_holds_for_several_servers_is_explained_once() -> None:
    limit = Finding("nofile", Severity.WARNING, "1024 files at most", "it opens more", "raise it", "limits", "")
    own = Finding("nofile", Severity.WARNING, "4096 files at most", "it opens more", "raise it", "limits", "")
    found = (("a", limit), ("b", limit), ("c", own))
    servers = [Judged(name, "sglang", "", False, (replace(one, server=name),), ()) for name, one in found]
    told = page(Verdict(tuple(servers), 0, 3, 0))
    assert told.count("it opens more") == 2
    assert "  warning  1024 files at most (see a)\n\nc " in told


def test_nothing_found_is_said() -> None:
    told = page(Verdict((Judged("kimi", "sglang", "", True, (), ()),), 0, 0, 0))
    assert told == "kimi   sglang, version unknown   (running now)\n  nothing found\n\nno findings in 1 server\n"
