"""An env_file is read as systemd reads its EnvironmentFile, and a line that is none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import EnvironmentRefusedError, read_env_file


def test_names_and_values(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text('# comment\n; comment\n\nA=1\nexport B = x y \nC=\'quoted "it"\'\nD=""\nE=a=b\nF=\'open\n')

    assert read_env_file(str(file)) == {"A": "1", "B": "x y", "C": 'quoted "it"', "D": "", "E": "a=b", "F": "'open"}


@pytest.mark.parametrize("line", ["nonsense", "=1", "A-B=1", "A B=1"])
def test_a_line_that_sets_nothing_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "env"
    file.write_text(f"A=1\n{line}\n")

    with pytest.raises(EnvironmentRefusedError, match="line 2 is not NAME=VALUE"):
        read_env_file(str(file))


@pytest.mark.parametrize("content", [None, b"A=\xff\n"])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "env"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(EnvironmentRefusedError, match="cannot read the env_file"):
        read_env_file(str(file))
