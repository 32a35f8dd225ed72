"""Bundles that an earlier daemon has died over: finished, told to their servers, and left alone on a dead disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.edge.evidence import Finished
from supervisor.events import EvidenceKept
from supervisor.shell.loop import ServerLoop
from supervisor.shell.unfinished import finished, tell


async def test_a_bundle_without_its_end_is_finished(tmp_path: Path) -> None:
    place = tmp_path / "kimi" / "000007"
    place.mkdir(parents=True)
    (place / "facts.json").write_text("{}")
    assert [(one.server, one.attempt, one.path) for one in await finished(tmp_path)] == [("kimi", 7, str(place))]
    assert await finished(tmp_path) == ()
    assert await finished(tmp_path / "nowhere") == ()


async def test_where_nobody_can_look_it_is_said_and_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evidence").write_text("a file")
    assert await finished(tmp_path / "evidence") == ()
    assert "cannot look for bundles" in capsys.readouterr().out


async def test_its_server_is_told_where_it_is_and_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []

    async def post(event: EvidenceKept) -> None:
        told.append(event)

    servers = {"kimi": cast(ServerLoop, SimpleNamespace(post=post))}
    found = (
        Finished("kimi", 7, "/evidence/kimi/000007", ("what is not listed: its daemon ended",)),
        Finished("kimi", 8, "/evidence/kimi/000008", problem="No space left on device"),
        Finished("gone", 1, "/evidence/gone/000001", ("what is not listed: its daemon ended",)),
    )
    await tell(found, servers.get)
    assert told == [EvidenceKept(7, "/evidence/kimi/000007", ("what is not listed: its daemon ended",), cut=True)]
    assert "cannot finish it: No space left on device" in capsys.readouterr().out
