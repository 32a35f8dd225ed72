"""gpus and gpu release: the table, the reasons below it, nothing that moves a cursor."""

from __future__ import annotations

import json

from msgspec.structs import replace

from supervisor.core.gpus.views import GpuView
from supervisor.events import Holder
from tests.api.fake import FakeControl
from tests.api.test_gpus import LEASED, OUT
from tests.cli.conftest import Sglctl

HOSTILE = "\x1b[2J\u202eevil\r\n\x9b1m"


async def test_a_line_a_gpu_and_what_is_to_be_said_below(sglctl: Sglctl, control: FakeControl) -> None:
    control.put_gpus(LEASED, OUT)
    outcome = await sglctl("gpus")
    assert outcome.out == (
        "GPU  NAME  STATE           SERVER'S  OTHERS'  NOBODY'S        OF  XID  TEMP\n"
        "0    H200  leased to kimi   96.6 GB   2.1 GB         0  150.3 GB   13  61 C\n"
        "1    H200  quarantined            0        0         0         -    -     -\n"
        "GPU 0: 2.1 GB held by pid 77 of alice (python train.py)\n"
        "GPU 0: Xid 13: graphics engine exception, 10 s ago\n"
        "GPU 1: quarantined since 2025-11-29 12:23:20Z: Xid 79\n"
    )
    assert outcome.code == 0


async def test_a_server_on_a_gpu_that_it_has_not_leased_is_told(sglctl: Sglctl, control: FakeControl) -> None:
    lodger = Holder(0, 64 * 10**9, 78, "sglang", "python", "server", "llama")
    told = "64.0 GB held by server llama, whose gpus in the configuration do not name it"
    control.put_gpus(replace(LEASED, holders=(*LEASED.holders, lodger)), replace(OUT, holders=(lodger,)))
    lines = (await sglctl("gpus")).out.splitlines()
    assert [line for line in lines if "llama" in line] == [f"GPU 0: {told}", f"GPU 1: {told}"]
    assert not any("held by server kimi" in line for line in lines)


async def test_a_machine_without_gpus_is_said_in_one_line(sglctl: Sglctl) -> None:
    assert (await sglctl("gpus")).out == "GPUs: absent: NVML finds no GPU\n"


async def test_a_blind_feed_shows_what_was_seen_last(sglctl: Sglctl, control: FakeControl) -> None:
    control.put_gpus(replace(LEASED, state="unknown", server=""), sight="blind", reason="a driver call hangs")
    lines = (await sglctl("gpus")).out.splitlines()
    assert lines[0] == "GPUs: blind for 1 m: a driver call hangs"
    assert lines[2].startswith("0    H200  unknown")


async def test_pids_that_are_not_ours_are_said(sglctl: Sglctl, control: FakeControl) -> None:
    control.put_gpus(LEASED, pids_trusted=False)
    assert (
        "the driver's pids are not ours (a container): memory is told apart by lease alone"
        in (await sglctl("gpus")).out.splitlines()
    )


async def test_what_cannot_be_read_is_named(sglctl: Sglctl, control: FakeControl) -> None:
    control.put_gpus(GpuView(0, "", "", "free", problems=("power: Unknown Error",), used=5_000_000, total=10**9))
    lines = (await sglctl("gpus")).out.splitlines()
    assert lines[-1] == "GPU 0: cannot be read: power: Unknown Error"
    assert "1.0 GB" in lines[1]


async def test_json_is_the_apis_answer(sglctl: Sglctl, control: FakeControl) -> None:
    control.put_gpus(OUT)
    assert json.loads((await sglctl("gpus", "--json")).out)["gpus"][0]["reason"] == "Xid 79"


async def test_release(sglctl: Sglctl, control: FakeControl) -> None:
    control.put_gpus(LEASED, OUT)
    outcome = await sglctl("gpu", "release", "1")
    assert (outcome.code, outcome.out) == (0, "GPU 1: released\n")
    again = await sglctl("gpu", "release", "1")
    assert (again.code, again.err) == (1, "error: cannot release GPU 1: it is not quarantined\n")


async def test_release_of_what_is_no_gpu(sglctl: Sglctl, control: FakeControl) -> None:
    control.put_gpus(OUT)
    for word in ("7", "x", "../servers/kimi/stop?", "1/2"):
        outcome = await sglctl("gpu", "release", word)
        assert (outcome.code, outcome.out) == (4, ""), word
    assert control.requests == []
    assert (await sglctl("gpu", "burn", "1")).code == 2


async def test_nothing_from_outside_moves_the_cursor(sglctl: Sglctl, control: FakeControl) -> None:
    holder = Holder(0, 10**9, 7, HOSTILE, HOSTILE, "foreign")
    control.put_gpus(
        GpuView(0, "", HOSTILE, "in-use", holders=(holder,), reason=HOSTILE, problems=(HOSTILE,)), reason=HOSTILE
    )
    outcome = await sglctl("gpus")
    assert not set(outcome.out) & set("\x1b\u202e\r\x9b")
    assert len(outcome.out.splitlines()) == 5
