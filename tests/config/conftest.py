"""Configuration files of a test, with directories that exist."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.config import Config, ConfigError, load

Written = Callable[..., Path]
Problems = Callable[..., tuple[str, ...]]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes the main file (with a daemon table unless the text has one) and conf.d files."""

    def write(text: str, **others: str) -> Path:
        main = tmp_path / "supervisor.toml"
        head = "" if "[daemon]" in text else f'[daemon]\nstate_dir = "{tmp_path}/state"\nlog_dir = "{tmp_path}/log"\n'
        ports = itertools.count(40000)
        main.write_text(head + _with_ports(text, ports))
        (tmp_path / "conf.d").mkdir(exist_ok=True)
        for name, other in others.items():
            (tmp_path / "conf.d" / f"{name}.toml").write_text(_with_ports(other, ports))
        return main

    return write


def _with_ports(text: str, ports: Iterator[int]) -> str:
    """The tests' shortest command, with a port for each server that has it: two cannot have the engine's own."""
    return re.sub(r'command = \["e"\]', lambda _: f'command = ["e", "--port", "{next(ports)}"]', text)


@pytest.fixture
def loaded(written: Written) -> Callable[..., Config]:
    return lambda text, **others: load(written(text, **others))


@pytest.fixture
def problems(written: Written) -> Problems:
    """What load says about a file, without "cannot use FILE: "."""

    def collect(text: str, **others: str) -> tuple[str, ...]:
        path = written(text, **others)
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert all("\n" not in problem for problem in caught.value.problems)
        assert str(caught.value) == "\n".join(caught.value.problems)
        return tuple(problem.removeprefix(f"cannot use {path}: ") for problem in caught.value.problems)

    return collect
