"""Which job systemd runs for a unit: read from its list, or unknown within a limit."""

import os
import stat
from pathlib import Path

import pytest

from supervisor.edge.unitjob import Unit, UnitJob, job_of, own_unit, parse_jobs

UNIT = "sglang-supervisor.service"


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/sglang-supervisor.service/daemon\n", Unit(UNIT)),
        ("0::/system.slice/sglang-supervisor.service\n", Unit(UNIT)),
        ("12:cpu:/\n1:name=systemd:/system.slice/sglang-supervisor.service\n0::/\n", Unit(UNIT)),
        ("0::/system.slice/system-a.slice/a@1.service/x.service\n", Unit("a@1.service")),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.service\n", Unit("run-1.service", True)),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", Unit("session-3.scope")),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", Unit("init.scope", True)),
        ("0::/\n", None),
        ("0::/kubepods/pod1/c1\n", None),
        ("", None),
    ],
)
def test_the_own_unit_is_the_first_below_the_slices(cgroup: str, unit: Unit | None) -> None:
    assert own_unit(cgroup) == unit


def test_the_own_unit_is_read_from_the_kernel() -> None:
    unit = own_unit()

    assert unit is None or unit.name.endswith((".service", ".scope"))


@pytest.mark.parametrize(
    ("listed", "job"),
    [
        ("12 sglang-supervisor.service restart running\n", UnitJob.RESTART),
        ("12 sglang-supervisor.service try-restart running\n", UnitJob.RESTART),
        ("12 sglang-supervisor.service stop running\n", UnitJob.STOP),
        ("12 sglang-supervisor.service reload running\n", UnitJob.NONE),
        ("12 other.service restart running\n13 sglang-supervisor.service stop waiting\n", UnitJob.STOP),
        ("12 other-sglang-supervisor.service restart running\n", UnitJob.NONE),
        ("", UnitJob.NONE),
        ("No jobs running.\n", UnitJob.NONE),
    ],
)
def test_a_list_of_jobs_is_read(listed: str, job: UnitJob) -> None:
    assert parse_jobs(listed, UNIT) is job


def program(place: Path, script: str) -> str:
    file = place / "systemctl"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


async def test_systemctl_is_asked_for_all_jobs(tmp_path: Path) -> None:
    asked = program(tmp_path, f'echo "$@" > {tmp_path}/words; echo "7 {UNIT} restart running"')

    assert await job_of(Unit(UNIT), program=asked) is UnitJob.RESTART
    assert (tmp_path / "words").read_text().split() == ["list-jobs", "--no-legend", "--no-pager", "--full"]


async def test_the_users_own_systemd_is_asked_for_its_units(tmp_path: Path) -> None:
    asked = program(tmp_path, f'test "$1" = --user && echo "7 {UNIT} stop running"')

    assert await job_of(Unit(UNIT, of_user=True), program=asked) is UnitJob.STOP


async def test_the_helper_cannot_speak_in_our_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    asked = program(tmp_path, f'test -z "$NOTIFY_SOCKET" && echo "7 {UNIT} stop running"')

    assert await job_of(Unit(UNIT), program=asked) is UnitJob.STOP
    assert os.environ["NOTIFY_SOCKET"] == "/nowhere"


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60"])
async def test_no_answer_is_unknown_within_the_limit(tmp_path: Path, script: str) -> None:
    assert await job_of(Unit(UNIT), program=program(tmp_path, script), limit_s=0.3) is UnitJob.UNKNOWN


async def test_a_missing_systemctl_is_unknown(tmp_path: Path) -> None:
    assert await job_of(Unit(UNIT), program=str(tmp_path / "none")) is UnitJob.UNKNOWN
