"""Who asked is recorded with what /proc says about him, and never at the price of the answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor.api.access import Peer
from supervisor.api.callers import describe

ASLEEP = "print('up', flush=True); input()"


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Iterator[int]:
    """The pid of a process that has these words in its environment."""
    environment = {"PATH": os.environ["PATH"], **request.param}
    process = subprocess.Popen(
        [sys.executable, "-c", ASLEEP], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.communicate(b"\n", timeout=10)


def peer(pid: int) -> Peer:
    return Peer(pid, 1000, frozenset())


@pytest.mark.parametrize("caller", [{"SSH_CONNECTION": "10.0.0.5 40000 10.0.0.1 22"}], indirect=True)
async def test_the_ssh_clients_address_is_told_as_its_own_word(caller: int) -> None:
    program = os.path.basename(os.path.realpath(sys.executable))[:15]
    told = await describe(peer(caller))
    assert told.startswith(f"uid 1000 pid {caller} ({program[:6]}")
    assert told.endswith("), by its own word over ssh from 10.0.0.5")


@pytest.mark.parametrize("caller", [{"SSH_CONNECTION": "\x1b[2J\n" + "9" * 500}], indirect=True)
async def test_nobody_writes_control_characters_or_novels_into_the_record(caller: int) -> None:
    told = await describe(peer(caller))
    assert told.isprintable()
    assert len(told) < 200


@pytest.mark.parametrize("caller", [{}], indirect=True)
async def test_a_parents_session_counts(caller: int) -> None:
    """Its nearest ancestor with an address is this test's: whatever it has, it is not made up."""
    own = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    told = await describe(peer(caller))
    assert not own or told.endswith(f"from {own}")


async def test_a_caller_that_is_gone_is_a_number() -> None:
    assert await describe(peer(2**22 + 1)) == f"uid 1000 pid {2**22 + 1}"
