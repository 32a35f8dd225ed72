"""`make install` puts everything where systemd and people look, and never over an operator's file."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.systemd.machine import ROOT


def make(target: str, place: Path, *variables: str, limit_s: float = 60.0) -> str:
    command = ["make", "--no-print-directory", target, f"DESTDIR={place}", *variables]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_lie_below_the_prefix(tmp_path: Path) -> None:
    make("files", tmp_path, "PREFIX=/opt/sup")

    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "opt/sup/lib/systemd/system/sglang-supervisor.service",
        "opt/sup/lib/systemd/system/sglang-supervisor.socket",
        "opt/sup/lib/sysusers.d/sglang-supervisor.conf",
        "opt/sup/lib/tmpfiles.d/sglang-supervisor.conf",
        "opt/sup/share/bash-completion/completions/sglctl",
        "opt/sup/share/bash-completion/completions/sglsup",
        "opt/sup/share/fish/vendor_completions.d/sglctl.fish",
        "opt/sup/share/fish/vendor_completions.d/sglsup.fish",
        "opt/sup/share/man/man1/sglctl.1",
        "opt/sup/share/man/man1/sglsup.1",
        "opt/sup/share/man/man5/sglang-supervisor.toml.5",
        "opt/sup/share/zsh/site-functions/_sglctl",
        "opt/sup/share/zsh/site-functions/_sglsup",
        "etc/sglang-supervisor/supervisor.toml",
        "etc/sglang-supervisor/supervisor.toml.example",
    }
    assert (tmp_path / "etc/sglang-supervisor/conf.d").is_dir()


def test_the_unit_starts_what_was_installed(tmp_path: Path) -> None:
    make("files", tmp_path, "PREFIX=/opt/sup", "SYSCONFDIR=/opt/etc")

    unit = (tmp_path / "opt/sup/lib/systemd/system/sglang-supervisor.service").read_text()
    assert "ExecStart=/opt/sup/bin/sglsup daemon -c /opt/etc/sglang-supervisor/supervisor.toml\n" in unit
    assert "/usr/local" not in unit


def test_a_configuration_that_is_there_stays(tmp_path: Path) -> None:
    mine = tmp_path / "etc/sglang-supervisor/supervisor.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text("# mine\n")

    make("files", tmp_path)

    assert mine.read_text() == "# mine\n"
    assert "[daemon]" in mine.with_name("supervisor.toml.example").read_text()


def test_the_configuration_may_hold_secrets(tmp_path: Path) -> None:
    make("files", tmp_path)

    assert (tmp_path / "etc/sglang-supervisor/supervisor.toml").stat().st_mode & 0o777 == 0o640


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_program_is_installed_into_an_environment_of_its_own_and_again_over_it(tmp_path: Path) -> None:
    for _ in range(2):
        make("install", tmp_path, "PREFIX=/usr", limit_s=280)
    program = tmp_path / "usr/lib/sglang-supervisor"

    assert (program / "bin/sglsup").read_text().startswith("#!/usr/lib/sglang-supervisor/bin/python")
    assert os.readlink(tmp_path / "usr/bin/sglctl") == "../lib/sglang-supervisor/bin/sglctl"
    done = subprocess.run([program / "bin/python", program / "bin/sglsup", "version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(program.parent.glob("sglang-supervisor.*"))
    staged = [path for path in (program / "bin").iterdir() if path.is_file() and str(tmp_path).encode() in read(path)]
    assert staged == []


def read(path: Path) -> bytes:
    return b"" if path.is_symlink() else path.read_bytes()
