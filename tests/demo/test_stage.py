"""The demo's configuration is one that the daemon takes, on free ports, in a directory of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.config.checks import SOCKET_PATH_BYTES
from supervisor.demo.stage import DRAFTED, PLAIN, STALL_PHASE, STALL_S, make_stage


def test_everything_is_inside_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stage = make_stage(15.0)
    config = load(stage.config)
    assert stage.directory.parent == tmp_path
    for place in (config.daemon.socket, config.daemon.state_dir, config.daemon.log_dir):
        assert Path(place).is_relative_to(stage.directory)
    assert config.daemon.listen == "", "no TCP port of ours is opened"
    assert stage.directory.stat().st_mode & 0o777 == 0o700


def test_one_server_is_plain_and_the_other_stalls_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    servers = load(make_stage(15.0).config).servers
    assert set(servers) == {PLAIN, DRAFTED}
    assert servers[PLAIN].effective_port != servers[DRAFTED].effective_port
    assert not any("stall" in word for word in servers[PLAIN].command)
    assert any(f"stall:phase={STALL_PHASE}" in word and "once=" in word for word in servers[DRAFTED].command)
    assert servers[DRAFTED].deadlines[STALL_PHASE].stall_s == STALL_S


def test_a_temporary_directory_too_long_for_a_socket_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    stage = make_stage(15.0)
    try:
        assert stage.directory.parent == Path("/tmp")
        assert len(str(stage.socket)) <= SOCKET_PATH_BYTES
    finally:
        shutil.rmtree(stage.directory)
