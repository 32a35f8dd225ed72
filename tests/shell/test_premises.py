"""What a start wants of the host besides devices: free ports, by whoever they are held, and room for its log."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from supervisor.actions import CheckDevices
from supervisor.config import Config, GpuPlan, ServerConfig
from supervisor.core.fleet.needs import Admission, Go, Refuse, Wait
from supervisor.core.gpus.views import GpusView
from supervisor.core.settings import Settings
from supervisor.events import DevicesChecked
from supervisor.ports import PortUse
from supervisor.profile import CommandFacts
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.host import Host
from supervisor.shell.hub import Hub
from supervisor.shell.portbook import PortBook
from supervisor.shell.premises import RECENT_S, Premises
from tests.shell.made import snapshot

START, END = CheckDevices(1, start=True), CheckDevices(1, start=False)
FULL = "/proc"  # a file system without a free byte, on every machine


class FakeDevices:
    """Answers what the test says, and remembers from when on looks were to count."""

    def __init__(self, answer: DevicesChecked) -> None:
        self.answer = answer
        self.asked: list[float] = []
        self.given_back: list[str] = []
        self.lease: tuple[int, ...] = ()

    def release_lease(self, server: str) -> None:
        self.given_back.append(server)

    async def settled(self, config: ServerConfig, attempt: int, after: float, *, start: bool) -> DevicesChecked:
        self.asked.append(after)
        return self.answer

    def view(self) -> GpusView:
        return GpusView("absent", 0.0, "")

    def leased(self, name: str) -> tuple[int, ...]:
        return self.lease


class Place:
    """A host with free devices, whose log directory is `log_dir`."""

    command = ("/bin/true",)
    directory = "/"

    def __init__(self, log_dir: str = "/", answer: DevicesChecked | None = None) -> None:
        self.devices = FakeDevices(answer or DevicesChecked(1, True))
        self.released: list[str] = []
        self.lifecycle = "reclaiming"
        self.fleet = FleetKeeper(Hub(), Config, lambda: [snapshot("kimi", self.lifecycle)])
        self.host = SimpleNamespace(
            devices=self.devices,
            ports=PortBook(),
            log_dir=Path(log_dir),
            fleet=self.fleet,
            release=self.released.append,
            findings={},
            environment={"PATH": "/usr/bin:/bin"},
        )

    def premises(
        self,
        port: int = 0,
        *further: PortUse,
        name: str = "kimi",
        gpus: tuple[int, ...] = (),
        recent_s: float = RECENT_S,
    ) -> Premises:
        config = ServerConfig(name, self.command, gpus=GpuPlan(indices=gpus), directory=self.directory)
        facts = CommandFacts(port, "127.0.0.1", ports=further)
        return Premises(config, Settings(name=name, port=port), facts, cast(Host, self.host), recent_s)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


async def test_what_the_devices_say_comes_first(taken: int) -> None:
    dirty = DevicesChecked(1, False, "GPU 0: held")
    assert await Place(answer=dirty).premises(taken).look(START) == dirty


async def test_who_holds_the_port_is_named(taken: int) -> None:
    found = await Place().premises(taken).look(START)
    assert found.clean is False
    assert found.reason.startswith(f"port {taken} is held by pid {os.getpid()} (")
    assert found.ports == (found.reason,)


async def test_who_waits_for_a_port_leaves_its_devices_to_others(taken: int) -> None:
    place = Place()
    assert (await place.premises(taken).look(START)).clean is False
    assert place.devices.given_back == ["kimi"]
    assert (await place.premises(0).look(START)).clean is True
    assert place.devices.given_back == ["kimi"]


async def test_a_further_port_is_named_with_its_purpose(taken: int) -> None:
    found = await Place().premises(0, PortUse(taken, "NCCL")).look(START)
    assert found.reason.endswith(" (needed for NCCL)")


async def test_an_end_wants_no_port_and_no_room(taken: int) -> None:
    assert (await Place(FULL).premises(taken).look(END)).clean is True


async def test_two_servers_of_ours_do_not_start_for_one_port() -> None:
    place = Place()
    assert (await place.premises(30999).look(START)).clean is True
    found = await place.premises(30999, name="glm").look(START)
    assert found.ports == ("port 30999 (requests) belongs to server kimi",)
    place.host.ports.release("kimi")
    assert (await place.premises(30999, name="glm").look(START)).clean is True


async def test_a_server_that_was_taken_over_keeps_its_ports() -> None:
    place = Place()
    place.premises(30999).hold()
    assert (await place.premises(30999, name="glm").look(START)).ports == (
        "port 30999 (requests) belongs to server kimi",
    )


async def test_a_full_disk_is_waited_for_and_counts_against_nobody() -> None:
    found = await Place(FULL).premises().look(START)
    assert (found.clean, found.waiting) == (False, True)
    assert found.reason == "/proc is full: 0 B are left of its file system"


async def test_a_disk_that_does_not_exist_is_unknown_and_holds_up_nothing() -> None:
    assert (await Place("/no/such/place").premises().look(START)).clean is True


async def test_unknown_stays_unknown() -> None:
    blind = DevicesChecked(1, None, "the GPU feed is blind")
    found = await Place(answer=blind).premises().look(START)
    assert found.clean is None
    assert found.reason.startswith("the GPU feed is blind")


async def test_what_no_program_can_start_with_is_found_though_the_command_is_no_engine(tmp_path: Path) -> None:
    """Of a script options and model are not known; where it starts and whether it can be started are."""
    place = Place()
    place.directory = str(tmp_path / "gone")
    found = await place.premises().look(START)
    assert (found.clean, found.refuse) == (False, True)
    assert found.reason.startswith(
        f"preflight: the directory to start in cannot be used: {tmp_path}/gone: No such file"
    )
    assert (await place.premises().look(msgspec.structs.replace(START, force=True))).clean


@pytest.mark.parametrize(("recent_s", "passes"), [(RECENT_S, True), (0.0, False)])
async def test_a_restart_soon_after_goes_by_the_last_preflight(tmp_path: Path, recent_s: float, passes: bool) -> None:
    place = Place()
    place.directory = str(tmp_path / "there")
    (tmp_path / "there").mkdir()
    premises = place.premises(recent_s=recent_s)
    assert (await premises.look(START)).clean
    (tmp_path / "there").rmdir()
    assert (await premises.look(START)).clean is passes


async def test_other_devices_than_the_last_preflight_saw_are_looked_at(tmp_path: Path) -> None:
    place = Place()
    place.directory = str(tmp_path / "there")
    (tmp_path / "there").mkdir()
    premises = place.premises()
    assert (await premises.look(START)).clean
    (tmp_path / "there").rmdir()
    place.devices.lease = (3,)
    assert (await premises.look(START)).refuse


async def test_a_preflight_that_refused_is_not_gone_by(tmp_path: Path) -> None:
    place = Place()
    place.directory = str(tmp_path / "there")
    premises = place.premises()
    assert (await premises.look(START)).refuse
    (tmp_path / "there").mkdir()
    assert (await premises.look(START)).clean


async def test_only_looks_from_the_beginning_of_a_wait_on_count() -> None:
    place = Place(answer=DevicesChecked(1, False, "held"))
    premises = place.premises()
    await premises.look(START)
    await premises.look(START)
    place.devices.answer = DevicesChecked(1, True)
    await premises.look(START)
    await premises.look(START)
    first, second, third, fourth = place.devices.asked
    assert first == second == third < fourth


class Turns:
    """A fleet that answers what the test says."""

    def __init__(self, *answers: Admission, after_look: Admission | None = None) -> None:
        self.answers = list(answers)
        self.after_look = after_look or Go()
        self.told: list[bool] = []
        self.still_claims = True

    async def admitted(self, name: str) -> Admission:
        return self.answers.pop(0)

    def claims(self, name: str) -> bool:
        return self.still_claims

    def looked(self, name: str, *, free: bool) -> Admission:
        self.told.append(free)
        return self.after_look if free else Go()


def in_turn(turns: Turns, answer: DevicesChecked | None = None) -> tuple[Place, Premises]:
    place = Place(answer=answer)
    place.host.fleet = turns
    return place, place.premises()


async def test_who_waits_for_its_turn_looks_at_nothing_and_holds_nothing() -> None:
    place, premises = in_turn(Turns(Wait("waits for a start slot"), Go()))
    found = await premises.look(START)
    assert (found.clean, found.waiting, found.reason) == (False, True, "waits for a start slot")
    assert found.again_s is not None
    assert found.again_s < 1, "the wait was within the look"
    assert place.released == ["kimi"]
    assert (await premises.look(START)).clean is True


async def test_what_is_not_proven_free_is_kept_during_the_wait() -> None:
    """The memory of its last attempt is not back yet: others would only get devices that are dirty."""
    place, premises = in_turn(Turns(Wait("waits for a start slot")), DevicesChecked(1, False, "GPU 0: held"))
    assert (await premises.look(START)).waiting
    assert place.released == []


async def test_a_look_that_ends_when_its_server_has_started_gives_nothing_back(taken: int) -> None:
    """Nobody has waited for it any longer: what the server runs on now would be others'."""
    place, premises = in_turn(turns := Turns(Wait("nobody wants it started any more")))
    turns.still_claims = False
    assert (await premises.look(START)).waiting
    assert place.released == []
    late = Place()
    late.lifecycle = "starting"
    assert (await late.premises(taken, name="kimi").look(START)).clean is False
    assert late.devices.given_back == []


async def test_a_start_that_can_never_have_its_turn_is_refused() -> None:
    place, premises = in_turn(Turns(Refuse("not started: it requires kimi, which is fatal")))
    found = await premises.look(START)
    assert (found.clean, found.refuse) == (False, True)
    assert place.devices.asked == []


async def test_the_fleet_is_told_what_a_look_has_found() -> None:
    turns = Turns(Go(), Go())
    place, premises = in_turn(turns, DevicesChecked(1, False, "GPU 0: held"))
    await premises.look(START)
    place.devices.answer = DevicesChecked(1, True)
    assert (await premises.look(START)).clean is True
    premises.hook_says_no()
    assert turns.told == [False, True, False]


async def test_a_slot_that_is_gone_after_the_look_is_waited_for() -> None:
    place, premises = in_turn(Turns(Go(), after_look=Wait("waits for a start slot: glm is starting")))
    found = await premises.look(START)
    assert (found.waiting, found.reason) == (True, "waits for a start slot: glm is starting")
    assert place.released == ["kimi"]


async def test_an_end_needs_no_turn() -> None:
    _, premises = in_turn(Turns())
    assert (await premises.look(END)).clean is True
