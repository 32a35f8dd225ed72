"""GPUs as the control API tells them, and the release of one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from supervisor.api.access import Access
from supervisor.core.gpus.views import GpuView
from supervisor.events import Holder
from tests.api.conftest import connected
from tests.api.fake import FakeControl, served, served_on_tcp

GIB = 1 << 30
KIMI = Holder(0, 90 * GIB, 4243, "sglang", "engine::scheduler_TP0", "server", "kimi")
ALICE = Holder(0, 2 * GIB, 77, "alice", "python train.py", "foreign")
LEASED = GpuView(
    0, "GPU-a", "NVIDIA H200", "leased", server="kimi", total=140 * GIB, used=93 * GIB, reserved=GIB // 2, baseline=0,
    holders=(KIMI, ALICE), last_xid=13, last_xid_text="Xid 13: graphics engine exception", last_xid_at=150.0,
    temperature_c=61,
)  # fmt: skip
OUT = GpuView(1, "GPU-b", "NVIDIA H200", "quarantined", reason="Xid 79", quarantined_since_wall_s=1764419000.0)


async def test_memory_is_told_by_owner_and_adds_up(client: httpx.AsyncClient, control: FakeControl) -> None:
    control.put_gpus(LEASED, OUT)
    answer = (await client.get("/v1/gpus")).json()
    assert (answer["sight"], answer["driver"], answer["looked_s"]) == ("seeing", "580.159.04", 1.0)
    first, second = answer["gpus"]
    memory = first["memory"]
    assert (memory["server"], memory["foreign"], memory["unattributed"]) == (90 * GIB, 2 * GIB, 0)
    assert sum(memory[kind] for kind in ("baseline", "server", "foreign", "unattributed", "overhead")) == memory["used"]
    assert [holder["pid"] for holder in first["holders"]] == [4243, 77]
    assert (first["last_xid"]["xid"], first["last_xid"]["seconds"]) == (13, 10.0)
    assert (second["state"], second["reason"]) == ("quarantined", "Xid 79")
    assert second["quarantined_since"].startswith("2025-11-29T")
    assert (second["memory"]["used"], second["last_xid"]) == (None, None)


async def test_a_machine_without_gpus_says_why(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/gpus")).json()
    assert (answer["sight"], answer["reason"], answer["gpus"], answer["looked_s"]) == (
        "absent",
        "NVML finds no GPU",
        [],
        None,
    )


async def test_a_release_is_done_once(client: httpx.AsyncClient, control: FakeControl) -> None:
    control.put_gpus(LEASED, OUT)
    assert (await client.post("/v1/gpus/1/release")).status_code == 200
    assert (await client.get("/v1/gpus")).json()["gpus"][1]["state"] == "free"
    again = await client.post("/v1/gpus/1/release")
    assert (again.status_code, again.json()["error"]) == (409, "cannot release GPU 1: it is not quarantined")


@pytest.mark.parametrize("index", ["7", "-1", "x", "1x", "99999999999999999999", "%D9%A1"])
async def test_an_unknown_gpu_is_not_found(client: httpx.AsyncClient, control: FakeControl, index: str) -> None:
    control.put_gpus(LEASED, OUT)
    assert (await client.post(f"/v1/gpus/{index}/release")).status_code == 404


async def test_a_release_needs_an_admin(control: FakeControl, tmp_path: Path) -> None:
    control.put_gpus(OUT)
    nobody = Access(admin_uids=frozenset(), operator_gids=frozenset())
    async with served(control, tmp_path, nobody) as path, connected(path) as client:
        assert (await client.post("/v1/gpus/1/release")).status_code == 403
    assert control.view.gpus == (OUT,)


async def test_tcp_shows_gpus_and_changes_none(control: FakeControl) -> None:
    control.put_gpus(OUT)
    async with served_on_tcp(control) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/v1/gpus")).status_code == 200
        assert (await client.post("/v1/gpus/1/release")).status_code == 404
