"""A file of the test, converted: what is written, what is told, and what the daemon reads from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from supervisor.config import Config, ServerConfig, load
from supervisor.convert import main


class Converted(NamedTuple):
    """`config` is the output as the daemon reads it."""

    status: int
    out: str
    told: list[str]
    config: Config

    @property
    def server(self) -> ServerConfig:
        (server,) = self.config.servers.values()
        return server

    def says(self, *parts: str) -> bool:
        """One line on stderr has all the parts."""
        return any(all(part in line for part in parts) for line in self.told)


Convert = Callable[..., Converted]


@pytest.fixture
def converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    """Writes FILE (and others beside it), converts it, loads what came out."""

    def convert(text: str, name: str = "supervisord.conf", **others: str) -> Converted:
        file = tmp_path / name
        file.write_text(text)
        for other, content in others.items():
            place = tmp_path / "conf.d" / f"{other}.conf"
            place.parent.mkdir(exist_ok=True)
            place.write_text(content)
        status = main([str(file)])
        shown = capsys.readouterr()
        return Converted(status, shown.out, shown.err.splitlines(), read(shown.out, tmp_path))

    return convert


Losing = Callable[..., None]
Refusing = Callable[[str, str], str]


@pytest.fixture
def loses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Losing:
    """Converts a file; `told` is not carried over, said on stderr and in a comment. Nothing is loaded afterwards."""

    def convert(text: str, told: str, name: str) -> None:
        file = tmp_path / name
        file.write_text(text)

        assert main([str(file)]) == 1
        shown = capsys.readouterr()
        assert any(told in line for line in shown.err.splitlines()), shown.err
        assert "# not carried over: " in shown.out
        assert told in " ".join(line.removeprefix("#").strip() for line in shown.out.splitlines())

    return convert


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refusing:
    """Why a file is not converted: the one line on stderr, behind the file's name."""

    def convert(text: str, name: str) -> str:
        file = tmp_path / name
        file.write_text(text)

        assert main([str(file)]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        before, _, why = shown.err.partition(f"sglsup convert: cannot convert {file}: ")
        assert (before, why[-1:]) == ("", "\n"), shown.err
        return why

    return convert


def read(text: str, folder: Path) -> Config:
    """The output as the daemon's main file, with directories that the test may use."""
    places = f'state_dir = "{folder}/state"\nlog_dir = "{folder}/log"\n'
    head, table, tail = text.partition("[daemon]\n")
    main_file = folder / "out" / "supervisor.toml"
    main_file.parent.mkdir(exist_ok=True)
    main_file.write_text(f"{head}{table}{places}{tail}" if table else f"[daemon]\n{places}\n{text}")
    return load(main_file)
