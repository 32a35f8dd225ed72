"""What an installation tells without being started: version, pins, options, a class's methods."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from supervisor.edge.inspect.look import look
from supervisor.edge.inspect.options import read_options
from supervisor.preflight import EngineFacts, FlagFacts
from tests.edge.inspect.places import OPTIONS, install, model, request


def seen(program: Path | str, **more: object) -> EngineFacts:
    return look(request(program=str(program), **more)).engine


def test_version_pins_and_options_are_read_and_nothing_is_started(tmp_path: Path) -> None:
    found = seen(install(tmp_path))
    assert (found.version, found.distributions, found.pins) == (
        "0.5.9",
        {"kernel-pack": "1.2.2"},
        {"kernel-pack": "1.2.3"},
    )
    assert found.flags is not None
    assert found.flags.complete
    assert "--option-59" in found.flags.known
    assert found.location.endswith("site-packages/engine")


def test_the_methods_of_the_models_class(tmp_path: Path) -> None:
    python, folder = install(tmp_path / "venv"), model(tmp_path / "m", "model.safetensors")
    assert look(request(str(folder), str(python))).engine.class_words == ("hand_out",)
    other = model(tmp_path / "o", "model.safetensors", config={"architectures": ["Other"]})
    assert look(request(str(other), str(python))).engine.class_words is None


def test_a_program_is_found_by_its_first_line(tmp_path: Path) -> None:
    python, script = install(tmp_path / "venv"), tmp_path / "serve"
    script.write_text(f"#!{python}\nimport engine\n")
    script.chmod(0o755)
    assert seen(script, by_module=False).version == "0.5.9"
    script.write_text("#!/usr/bin/env python-engine\n")
    (tmp_path / "venv" / "bin" / "python-engine").symlink_to(python)
    path = f"{tmp_path / 'venv' / 'bin'}"
    assert seen(script, by_module=False, environment={"PATH": path}).version == "0.5.9"


def test_a_bare_name_is_looked_up_on_the_servers_path(tmp_path: Path) -> None:
    install(tmp_path)
    assert seen("python", environment={"PATH": str(tmp_path / "bin")}).version == "0.5.9"


def test_sources_that_are_linked_to(tmp_path: Path) -> None:
    python = install(tmp_path / "venv")
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    (tmp_path / "src").mkdir()
    (packages / "engine").rename(tmp_path / "src" / "engine")
    (packages / "__editable__.engine.pth").write_text(f"{tmp_path / 'src'}\n")
    assert seen(python).location == str(tmp_path / "src" / "engine")


def test_pythonpath_comes_first(tmp_path: Path) -> None:
    install(tmp_path / "a", "0.5.9")
    python = install(tmp_path / "b", "0.5.1")
    first = str(tmp_path / "a" / "lib" / "python3.11" / "site-packages")
    assert seen(python, environment={"PYTHONPATH": first}).version == "0.5.9"


def test_packages_without_the_engine(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("")
    found = seen(tmp_path / "bin" / "python")
    assert found.version == ""
    assert found.location.endswith("site-packages")


def test_what_was_not_found_is_said(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("")
    looked = look(request(program=str(tmp_path / "bin" / "python")))
    assert looked.skipped == (f"the installed engine: no packages found for {tmp_path / 'bin' / 'python'}",)
    python = install(tmp_path / "venv", source="")
    assert look(request(program=str(python))).skipped[0].startswith("the options of engine: its source does not tell")


def test_in_another_file_system_nothing_is_looked_at(tmp_path: Path) -> None:
    looked = look(request("/no/such/model", elsewhere=True))
    assert (looked.models, looked.engine) == ((), EngineFacts())
    assert "another file system" in looked.skipped[0]


# --- options ---------------------------------------------------------------------------------------------------------


def options(source: str) -> FlagFacts:
    found = read_options([OPTIONS.encode(), source.encode()])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ('p.add_argument("--tp-size", "--tp", "-t", type=int)', {"--tp-size", "--tp", "-t"}),
        ('p.add_argument("--on", action=argparse.BooleanOptionalAction)', {"--on", "--no-on"}),
        ('class C:\n    model_path: A[str, "help"] = ""', {"--model-path"}),
        ('class C:\n    x: Annotated[int, Arg(help="h", aliases=["--y"])] = 1', {"--x", "--y"}),
        ('class C:\n    x: A[int, Arg(cli_name="--other-name")] = 1', {"--other-name"}),
    ],
)
def test_the_ways_to_declare_an_option(source: str, known: set[str]) -> None:
    found = options(source)
    assert known <= set(found.known)
    assert found.complete


@pytest.mark.parametrize(
    "source", ["class C:\n    x: A[int, Arg(no_cli=True)] = 1", "class C:\n    x: dict[str, int] = {}", "x: int = 1"]
)
def test_fields_that_are_no_options(source: str) -> None:
    assert "--x" not in options(source).known


@pytest.mark.parametrize(
    "source", ["p.add_argument(name)", 'p.add_argument(f"--{name}")', "p.add_argument(this is no python"]
)
def test_options_that_are_made_up_at_run_time_leave_a_doubt(source: str) -> None:
    assert not options(source).complete


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ('p.add_argument("--x", action=DeprecatedStoreTrueAction, new_flag="--y")', "use --y instead"),
        ('p.add_argument("--x", action=DeprecatedAction, help="Gone.")', "it will be removed"),
        ('p.add_argument("--x", help="(Deprecated)  use\\n--y")', "(Deprecated) use --y"),
        (
            'class C:\n    x: A[int, Arg(action=DeprecatedAlias, action_kwargs={"new_flag": "--y"})] = 1',
            "use --y instead",
        ),
    ],
)
def test_what_an_option_says_about_its_end(source: str, note: str) -> None:
    assert options(source).deprecated == {"--x": note}


def test_too_few_options_are_not_all_of_them() -> None:
    assert read_options([b'p.add_argument("--only")']) is None


def test_our_own_interpreter_is_read_like_any_other() -> None:
    found = seen(sys.executable, package="pytest", distributions=(), environment={"PATH": os.environ["PATH"]})
    assert found.version == pytest.__version__
