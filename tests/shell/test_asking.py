"""Whether one server is ready is asked at its port, and whose the answer would be is looked at first."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.actions import Probe
from supervisor.config import ReadinessConfig, ServerConfig
from supervisor.core.settings import Settings
from supervisor.edge.probe import Prober
from supervisor.edge.process import Tree
from supervisor.events import Listener, Probed, ProbeOutcome
from supervisor.profile import facts, load_profile
from supervisor.shell.asking import Asker

PROFILE = load_profile("sglang")


class Asked:
    """A prober that notes what it was asked for, and says yes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def probe(self, action: Probe, *arguments: Any) -> Probed:
        self.calls.append(arguments)
        return Probed(action.attempt, ProbeOutcome.OK, listener=arguments[-1])


def asker(prober: Asked, port: int, path: str | None = None) -> Asker:
    config = ServerConfig("kimi", command=("serve",), readiness=ReadinessConfig(path=path))
    known = facts(PROFILE, config.command)
    return Asker(config, Settings(name="kimi", port=port), PROFILE, known, cast(Prober, prober))


def tree() -> Tree:
    """Of our own process."""

    async def members() -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=os.getpid())]

    return cast(Tree, SimpleNamespace(pid=os.getpid(), cgroup=None, members=members))


@pytest.fixture
def listening() -> Any:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


async def test_without_a_port_nothing_is_known() -> None:
    prober = Asked()
    assert (await asker(prober, 0).ask(Probe(1, 1.0), tree())).outcome is ProbeOutcome.UNKNOWN
    assert prober.calls == []


async def test_where_nobody_listens_no_connection_is_tried() -> None:
    with socket.socket() as closed:  # bound, so that nobody else gets the port; it does not listen
        closed.bind(("127.0.0.1", 0))
        prober = Asked()
        probed = await asker(prober, closed.getsockname()[1]).ask(Probe(1, 1.0, identify=True), tree())
    assert (probed.outcome, probed.listener, prober.calls) == (ProbeOutcome.REFUSED, Listener.NONE, [])


async def test_whose_the_listener_is_goes_with_the_answer(listening: int) -> None:
    prober = Asked()
    probed = await asker(prober, listening, "/ready").ask(Probe(1, 1.0, identify=True), tree())
    assert probed.listener is Listener.OURS
    assert prober.calls[0][1:3] == (listening, "/ready")


async def test_the_path_is_the_profiles_unless_the_file_names_one(listening: int) -> None:
    prober = Asked()
    probed = await asker(prober, listening).ask(Probe(1, 1.0), tree())
    assert probed.listener is Listener.UNKNOWN, "nobody has asked whose it is"
    assert prober.calls[0][2] == PROFILE.readiness.path
