"""The child that looks: program, directory, files, host; as another user, within a limit, whatever happens to it."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

from supervisor.edge.inspect.ask import inspect
from supervisor.edge.inspect.look import look
from supervisor.preflight import ModelKind, Request
from tests.edge.inspect.places import model, request

LIMIT_S = 30.0
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_a_program_that_can_be_started() -> None:
    assert look(Request("/bin/sh")).program.problem == ""
    assert look(Request("sh")).program.path.endswith("/sh")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("/no/such/program", "/no/such/program: No such file or directory"),
        ("no-such-program", "no-such-program is on no folder of PATH"),
        ("/etc", "/etc is a directory"),
        ("/etc/passwd", f"/etc/passwd may not be executed by user {getpass.getuser()}"),
    ],
)
def test_a_program_that_cannot_be_started(program: str, problem: str) -> None:
    assert look(Request(program)).program.problem == problem


def test_a_program_relative_to_the_directory(tmp_path: Path) -> None:
    shutil.copy("/bin/sh", tmp_path / "run")
    assert look(Request("./run", directory=str(tmp_path))).program.problem == ""
    assert look(Request("./run", directory="/")).program.problem != ""


def test_a_directory_that_is_none() -> None:
    assert look(Request("/bin/sh", directory="/etc/passwd")).program.directory_problem == "/etc/passwd is no directory"


def test_a_directory_that_is_not_there() -> None:
    problem = look(Request("/bin/sh", directory="/no/such")).program.directory_problem
    assert problem == "/no/such: No such file or directory"


async def test_names_that_are_no_text_are_told_with_question_marks(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "model.safetensors", config={"architectures": ["A\ud800"]})
    (folder / os.fsdecode(b"\xff.incomplete")).touch()
    looked = await inspect(request(str(folder)), LIMIT_S)
    (found,) = looked.models
    assert found.config is not None
    assert (found.unfinished, found.config.architectures) == (("?.incomplete",), ("A?",))


@ROOT_ONLY
@pytest.mark.parametrize(
    ("place", "problem"),
    [("", "{0} may not be entered by user nobody"), ("/below", "{0}/below: Permission denied for user nobody")],
)
async def test_whose_right_to_a_directory_is_missing_is_said(place: str, problem: str) -> None:
    """What lies below one that may not be passed cannot be seen: that is not that it is none."""
    with tempfile.TemporaryDirectory() as own:  # nobody may pass the folders of tmp_path
        Path(own, "below").mkdir()
        seen = await inspect(Request("/bin/sh", directory=f"{own}{place}", user="nobody"), 20.0)
    assert seen.program.directory_problem == problem.format(own)


def test_a_further_file_that_is_missing() -> None:
    files = {"logging configuration": "/no/log.json", "other": "/etc/passwd"}
    assert look(Request("/bin/sh", files=files)).missing_files == {
        "logging configuration": "/no/log.json: No such file or directory"
    }


def test_the_host_tells_its_sizes_and_limits(tmp_path: Path) -> None:
    (tmp_path / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "nvcc").chmod(0o755)
    environment = {"PATH": str(tmp_path), "TMPDIR": "/proc"}
    machine = look(
        Request("/bin/sh", environment=environment, compilers=("nvcc",), stack_reader="no-such-reader")
    ).machine
    assert machine.memory_bytes is not None
    assert machine.memory_free_bytes is not None
    assert machine.memory_bytes > machine.memory_free_bytes > 0
    assert (machine.temporary, machine.temporary_free_bytes) == ("/proc", 0)
    assert machine.open_files is not None
    assert machine.compiler == str(tmp_path / "nvcc")
    assert machine.stack_reader == ""


# --- through the child -----------------------------------------------------------------------------------------------


async def test_the_child_answers_what_a_look_would(tmp_path: Path) -> None:
    asked = request(str(model(tmp_path / "m", "model.safetensors")))
    answer = await inspect(asked, LIMIT_S)
    assert answer.models == look(asked).models
    assert answer.program == look(asked).program


@ROOT_ONLY
async def test_the_child_sees_what_the_servers_user_sees(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_name
    open_place = Path(os.path.realpath("/tmp")) / f"sglsup-test-{os.getpid()}"
    try:
        folder = model(open_place, "a.safetensors", "b.safetensors")
        open_place.chmod(0o755)
        (folder / "b.safetensors").chmod(0o600)
        (found,) = (await inspect(request(str(folder), user=nobody), LIMIT_S)).models
        assert found.unreadable == ("b.safetensors",)
        open_place.chmod(0o700)
        (found,) = (await inspect(request(str(folder), user=nobody), LIMIT_S)).models
        assert found.kind is ModelKind.FORBIDDEN
    finally:
        shutil.rmtree(open_place)


async def test_an_unknown_user_is_said_and_nothing_is_looked_at(tmp_path: Path) -> None:
    answer = await inspect(request(str(tmp_path), user="no-such-user"), LIMIT_S)
    assert answer.models == ()
    assert answer.skipped[0].startswith("everything on disk: cannot become user no-such-user")


async def test_a_look_that_hangs_costs_the_limit_and_is_said(tmp_path: Path) -> None:
    """A pipe without a writer, in the place of a file: opening it never returns, as on a dead network disk."""
    folder = model(tmp_path / "m", "model.safetensors")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    answer = await inspect(request(str(folder)), 1.0)
    assert answer.models == ()
    assert answer.skipped == ("everything on disk: no answer within 1 s",)


async def test_files_of_the_present_directory_are_not_ours_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('not ours')\n")
    monkeypatch.chdir(tmp_path)
    assert (await inspect(Request("/bin/sh"), LIMIT_S)).skipped == ()
