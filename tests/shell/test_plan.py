"""What a process is started with: the configuration's words, the host's directories, the leased devices."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from supervisor.config import EnvironmentRefusedError, LimitsConfig, ServerConfig
from supervisor.edge.process import Limit
from supervisor.shell.host import Host
from supervisor.shell.plan import not_prepared, planned


def host(place: Path, *, records_exits: bool = False) -> Host:
    return cast(
        Host,
        SimpleNamespace(
            environment={"PATH": "/bin", "NOTIFY_SOCKET": "/run/notify"},
            state_dir=place / "state",
            trees=SimpleNamespace(exit_path=lambda server: place / "state" / f"{server}.exit"),
            records_exits=records_exits,
            log_path=lambda server, attempt: place / "log" / server / f"{attempt:06d}.log",
        ),
    )


def test_a_plan_is_the_configuration_on_this_host(tmp_path: Path) -> None:
    config = ServerConfig(
        "kimi", command=("/bin/true", "--tp", "2"), directory="/models", nice=5, limits=LimitsConfig(nofile=4096)
    )
    plan = planned(config, host(tmp_path), 7, (2, 3))
    assert (plan.server, plan.attempt, plan.command) == ("kimi", 7, ("/bin/true", "--tp", "2"))
    assert (plan.directory, plan.nice, plan.limits) == ("/models", 5, (Limit("nofile", 4096, 4096),))
    assert plan.log_path == str(tmp_path / "log/kimi/000007.log")
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "NOTIFY_SOCKET" not in plan.environment


def test_no_two_plans_have_one_marker(tmp_path: Path) -> None:
    config = ServerConfig("kimi", command=("/bin/true",))
    assert planned(config, host(tmp_path), 1, ()).marker != planned(config, host(tmp_path), 1, ()).marker


@pytest.mark.parametrize(("records_exits", "path"), [(False, ""), (True, "state/kimi.exit")])
def test_an_exit_is_written_down_where_the_kernel_does_not_tell_it(
    tmp_path: Path, records_exits: bool, path: str
) -> None:
    plan = planned(ServerConfig("kimi", command=("/bin/true",)), host(tmp_path, records_exits=records_exits), 1, ())
    assert plan.record_path == (str(tmp_path / path) if path else "")


def test_current_log_names_the_newest_attempt(tmp_path: Path) -> None:
    config = ServerConfig("kimi", command=("/bin/true",))
    for attempt in (1, 2):
        planned(config, host(tmp_path), attempt, ())
    folder = tmp_path / "log/kimi"
    assert (os.readlink(folder / "current.log"), os.listdir(folder)) == ("000002.log", ["current.log"])


def test_a_user_that_does_not_exist_is_for_people_to_correct(tmp_path: Path) -> None:
    config = ServerConfig("kimi", command=("/bin/true",), user="nobody-has-this-name")
    with pytest.raises(EnvironmentRefusedError) as refused:
        planned(config, host(tmp_path), 1, ())
    failed = not_prepared(1, refused.value)
    assert failed.permanent
    assert failed.reason == "cannot become user nobody-has-this-name: there is no such user"


def test_a_disk_that_refuses_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file where a folder is wanted")
    with pytest.raises(OSError, match="log") as problem:
        planned(ServerConfig("kimi", command=("/bin/true",)), host(tmp_path), 1, ())
    failed = not_prepared(3, problem.value)
    assert (failed.attempt, failed.permanent) == (3, False)
    assert failed.reason == f"cannot prepare the start ({tmp_path}/log/kimi): Not a directory"


def test_a_problem_of_no_file_names_none() -> None:
    problem = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    assert not_prepared(1, problem).reason == "cannot prepare the start: Resource temporarily unavailable"
