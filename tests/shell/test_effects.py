"""A server's hands: what is told of a spawn that takes long."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import anyio.to_thread
import pytest

from supervisor.actions import KeepEvidence, KillTree, Spawn
from supervisor.config import ServerConfig
from supervisor.core.gpus.views import GpusView
from supervisor.core.settings import Settings
from supervisor.events import AnyEvent, EvidenceKept, Spawned, SpawnFailed, TreeEmptied
from supervisor.profile import facts, load_profile
from supervisor.shell.effects import Effects
from supervisor.shell.host import Host
from supervisor.shell.hub import Hub
from supervisor.shell.portbook import PortBook
from supervisor.shell.writer import StateWriter
from tests.shell import made


class SlowNotes:
    """A state directory on a disk that does not answer before it is told to, and refuses then."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.cleared = threading.Event()

    def put(self, server: str, marker: str, spawned: Spawned, devices: tuple[int, ...]) -> None:
        self.asked.set()
        assert self.answers.wait(30)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/trees/kimi.json")

    def clear(self, server: str) -> None:
        self.cleared.set()

    def path(self, server: str) -> Path:
        return Path(f"/state/trees/{server}.json")


class Stage:
    """One server's hands on a host of which only the notes matter."""

    def __init__(self, directory: Path) -> None:
        self.notes = SlowNotes()
        self.told: list[AnyEvent] = []
        self.hub = Hub()
        self.meanwhile: Callable[[], None] = lambda: None  # is called when something is told
        self.lifecycle = "starting"
        self._directory = directory

    def hands(self, tasks: anyio.abc.TaskGroup, decision_limit_s: float = 0.0) -> Effects:
        profile = load_profile("sglang")
        config = ServerConfig("kimi", command=("/bin/true",))
        hooks = SimpleNamespace(of=lambda _: (), outputs=None)
        host = SimpleNamespace(
            trees=self.notes,
            writer=StateWriter(threads=1),
            cgroups=None,
            prober=None,
            records_exits=False,
            environment={},
            state_dir=self._directory,
            hooks=hooks,
            ports=PortBook(),
            fleet=None,
            devices=SimpleNamespace(leased=lambda _: (), view=lambda: GpusView("absent", 0.0, "")),
            evidence_dir=self._directory / "evidence",
            hub=self.hub,
            log_path=lambda server, attempt: self._directory / server / f"{attempt}.log",
        )
        known = facts(profile, config.command)
        return Effects(
            config,
            Settings(name="kimi"),
            profile,
            known,
            cast(Host, host),
            tasks,
            self._tell,
            lambda: made.snapshot("kimi", self.lifecycle),
            self._bug,
            decision_limit_s=decision_limit_s,
        )

    async def _tell(self, event: AnyEvent) -> None:
        self.told.append(event)
        self.meanwhile()

    def _bug(self, where: str, bug: Exception) -> None:
        raise AssertionError(where) from bug


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_a_tree_that_is_being_made_is_not_called_empty(stage: Stage) -> None:
    """Else the next attempt would begin beside it: the spawn of this one goes on, however long it takes."""
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            hands = stage.hands(tasks)
            hands.carry(Spawn(1))
            assert await anyio.to_thread.run_sync(stage.notes.asked.wait, 20)
            hands.carry(KillTree(1))
            await anyio.wait_all_tasks_blocked()
            assert stage.told == []
            stage.notes.answers.set()
    why = "cannot prepare the start (/state/trees/kimi.json): No space left on device"
    assert stage.told == [SpawnFailed(1, why, permanent=False)]
    assert await anyio.to_thread.run_sync(stage.notes.cleared.wait, 20), "what was refused is not written later"


async def test_a_tree_that_nobody_makes_is_empty(stage: Stage) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            stage.hands(tasks).carry(KillTree(1))
    assert stage.told == [TreeEmptied(1)]


async def test_evidence_is_being_kept_from_the_moment_it_is_asked_for_until_that_is_told(stage: Stage) -> None:
    """Whoever replaces the server waits for that: what is broken off is lost."""
    seen: list[bool] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            hands = stage.hands(tasks)
            stage.meanwhile = lambda: seen.append(hands.keeps_evidence)
            stage.meanwhile()
            hands.carry(KeepEvidence(1, "exited with status 2", 5.0))
            stage.meanwhile()
            await stage.hub.changed(0)
            stage.meanwhile()
    (kept,) = stage.told
    assert isinstance(kept, EvidenceKept)
    assert Path(kept.path, "manifest.json").is_file()
    assert seen == [False, True, True, False]


async def test_what_follows_an_end_is_decided_before_its_evidence_is_written(stage: Stage) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            stage.lifecycle = "reclaiming"
            stage.hands(tasks, decision_limit_s=60.0).carry(KeepEvidence(1, "exited with status 2", 5.0))
            await anyio.wait_all_tasks_blocked()
            assert not stage.told
            stage.lifecycle = "starting"
            stage.hub.publish()
    assert isinstance(stage.told[0], EvidenceKept)


async def test_evidence_does_not_wait_long_for_devices_that_somebody_has(stage: Stage) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            stage.lifecycle = "reclaiming"
            stage.hands(tasks, decision_limit_s=0.01).carry(KeepEvidence(1, "exited with status 2", 5.0))
    assert isinstance(stage.told[0], EvidenceKept)
