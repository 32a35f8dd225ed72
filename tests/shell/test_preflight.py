"""Before a start the daemon judges it: errors refuse it, `force` overrules them, warnings are told and hold up nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from supervisor.actions import CheckDevices
from supervisor.config import Config, GpuPlan, LimitsConfig, ServerConfig
from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.core.lint import Finding
from supervisor.core.settings import Settings
from supervisor.events import DevicesChecked
from supervisor.preflight import Severity
from supervisor.profile import facts, load_profile
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.host import Host
from supervisor.shell.hub import Hub
from supervisor.shell.portbook import PortBook
from supervisor.shell.preflight import Surroundings, devices_of, examine, findings_before_start, refusal, told
from supervisor.shell.premises import Premises
from tests.edge.inspect.places import model

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "SECRET_TOKEN": "hunter2"}
BLIND = GpusView("absent", 0.0, "no driver")
SERVE = ("/bin/sh", "-m", "sglang.launch_server", "--model-path")


class FreeDevices:
    """Nothing is in the way."""

    def leased(self, server: str) -> tuple[int, ...]:
        return ()

    def view(self) -> GpusView:
        return BLIND

    async def settled(self, config: ServerConfig, attempt: int, after: float, *, start: bool) -> DevicesChecked:
        return DevicesChecked(attempt, True)


def host() -> SimpleNamespace:
    return SimpleNamespace(
        devices=FreeDevices(),
        ports=PortBook(),
        log_dir=Path("/"),
        environment=ENVIRONMENT,
        findings={},
        fleet=FleetKeeper(Hub(), Config, tuple),
    )


def server(*command: str, **more: object) -> ServerConfig:
    return ServerConfig("kimi", command, **more)  # type: ignore[arg-type]


async def looked(
    config: ServerConfig, at: SimpleNamespace, *, start: bool = True, force: bool = False
) -> DevicesChecked:
    read = facts(load_profile(config.engine), config.command)
    premises = Premises(config, Settings(name=config.name), read, cast(Host, at))
    return await premises.look(CheckDevices(1, start, force))


async def test_a_start_that_must_fail_is_refused_with_the_finding_as_reason() -> None:
    at = host()
    found = await looked(server(*SERVE, "/no/such/model"), at)
    assert (found.clean, found.refuse) == (False, True)
    assert found.reason == "preflight: the model /no/such/model is not there; correct the path, or mount the disk"
    assert at.findings["kimi"][0].startswith("error model-missing: the model /no/such/model is not there; ")


async def test_force_overrules_the_preflight_and_still_tells_what_it_found() -> None:
    at = host()
    assert (await looked(server(*SERVE, "/no/such/model"), at, force=True)).clean is True
    assert at.findings["kimi"][0].startswith("error model-missing: ")


async def test_warnings_hold_up_nothing(tmp_path: Path) -> None:
    at, folder = host(), model(tmp_path / "m", "model.safetensors")
    assert (await looked(server(*SERVE, str(folder), "--log-level", "error"), at)).clean is True
    assert any(text.startswith("warning log-markers-hidden: ") for text in at.findings["kimi"])


async def test_a_later_good_look_takes_the_findings_back(tmp_path: Path) -> None:
    at = host()
    await looked(server(*SERVE, str(tmp_path / "m")), at)
    model(tmp_path / "m", "model.safetensors")
    assert (await looked(server(*SERVE, str(tmp_path / "m")), at)).clean is True
    assert not any(text.startswith("error") for text in at.findings["kimi"])


async def test_the_end_of_an_attempt_is_judged_by_nobody() -> None:
    at = host()
    assert (await looked(server(*SERVE, "/no/such/model"), at, start=False)).clean is True
    assert at.findings == {}


async def test_what_a_script_is_given_is_not_judged() -> None:
    bare, given = host(), host()
    assert (await looked(server("/bin/sh", "serve.sh"), bare)).clean is True
    assert (await looked(server("/bin/sh", "serve.sh", "--model-path", "/no/such/model"), given)).clean is True
    assert given.findings == bare.findings, "what is told is the host's"

    leased = host()
    wrapped = server("/bin/sh", "-c", "exec serve --tp 4", "--tp", "4", gpus=GpuPlan(indices=(0, 1, 2, 3)))
    assert (await looked(wrapped, leased)).clean is True
    assert leased.findings == bare.findings, "how many ranks it will have is not known"


# --- what is gathered ------------------------------------------------------------------------------------------------


async def test_secrets_of_the_environment_go_to_nobody() -> None:
    seen = await examine(server(*SERVE, "/m", environment={"API_KEY": "x"}), Surroundings(ENVIRONMENT), 30.0)
    assert set(seen.environment) == {"PATH"}
    assert seen.own_environment == ("API_KEY",)


async def test_an_env_file_counts_and_a_missing_one_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("HF_HUB_OFFLINE=1\n")
    config = server(*SERVE, "owner/name", env_file=str(tmp_path / "env"))
    found = await findings_before_start(config, {**ENVIRONMENT, "HF_HOME": str(tmp_path)}, BLIND)
    assert [finding.rule for finding in found if finding.severity is Severity.ERROR] == ["hub-offline"]
    missing = await findings_before_start(server(*SERVE, "/m", env_file="/no/env"), ENVIRONMENT, BLIND)
    assert "file-missing" in {finding.rule for finding in missing}


async def test_limits_of_the_configuration_are_those_of_the_server() -> None:
    config = server(*SERVE, "/m", limits=LimitsConfig(nofile=-1, memlock=4096))
    machine = (await examine(config, Surroundings(ENVIRONMENT), 30.0)).machine
    assert machine.open_files is not None
    assert machine.locked_memory is not None
    assert (machine.open_files.hard, machine.locked_memory.soft) == (-1, 4096)


async def test_leased_devices_are_held_against_the_ranks() -> None:
    config = server(*SERVE, "/m", "--tp", "8", gpus=GpuPlan(indices=(0, 1)))
    assert "devices-too-few" in {finding.rule for finding in await findings_before_start(config, ENVIRONMENT, BLIND)}


async def test_a_plan_that_only_counts_is_judged_by_its_lease(tmp_path: Path) -> None:
    config = server(*SERVE, "/m", gpus=GpuPlan(count=2), environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    other = await findings_before_start(config, ENVIRONMENT, BLIND, leased=(2, 3))
    assert "other-visible-devices" in {finding.rule for finding in other}
    same = await findings_before_start(config, ENVIRONMENT, BLIND, leased=(0, 1))
    assert "other-visible-devices" not in {finding.rule for finding in same}


def test_the_feeds_devices_tell_what_is_free() -> None:
    gpu = GpuView(0, "uuid", "H200", "free", total=100, used=30)
    dark = GpuView(1, "uuid", "H200", "lost")
    devices, driver = devices_of(GpusView("seeing", 0.0, "", driver="580.1", gpus=(gpu, dark)))
    assert devices is not None
    assert driver == "580.1"
    assert [(device.total_bytes, device.free_bytes) for device in devices] == [(100, 70), (None, None)]
    assert devices_of(BLIND) == (None, "")


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.NOTICE])
def test_what_is_not_certain_refuses_nothing(severity: Severity) -> None:
    assert refusal([Finding("rule", severity, "what", "why", "change", "source")]) == ""


def test_one_reason_is_told_in_full_and_the_others_by_name() -> None:
    errors = [Finding(name, Severity.ERROR, f"{name} is wrong", "why", "mend it", "source") for name in ("a", "b", "c")]
    assert refusal(errors) == "preflight: a is wrong; mend it (and b, c)"
    notice = Finding("n", Severity.NOTICE, "what", "why", "change", "source")
    assert told([*errors[:1], notice]) == ("error a: a is wrong; mend it",)
