"""A few lines that would come to gigabytes or hours are refused in one line, at once, and say where they stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.convert import convert
from supervisor.convert.draft import ConversionError
from supervisor.convert.files import BYTES_MAX, EXPANDED_MAX, FILES_MAX, WORD_MAX
from supervisor.convert.shell import Opaque, understood

LONG = "x" * 100_000


def refusal(path: Path, text: str) -> str:
    """Why the file cannot be converted."""
    path.write_text(text)
    with pytest.raises(ConversionError) as caught:
        convert(path)
    return str(caught.value)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "supervisord.conf"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return tmp_path / "u.service"


# --- what is written out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["${A} ", "${A}", "$A "])
def test_a_units_variable_that_is_named_again_and_again(unit: Path, word: str) -> None:
    why = refusal(unit, f"[Service]\nEnvironment=A={LONG}\nExecStart=/bin/x {word * 10_000}\n")
    assert why in (
        f"ExecStart: is longer than {WORD_MAX} characters when written out",
        f"ExecStart: with everything before it is longer than {EXPANDED_MAX} when written out",
    )


def test_a_specifier_that_is_named_again_and_again(tmp_path: Path) -> None:
    why = refusal(tmp_path / f"{'n' * 200}.service", f"[Service]\nExecStart=/bin/x {'%n' * 100_000}\n")
    assert why == "ExecStart: is longer than 131072 characters when written out"


@pytest.mark.parametrize("mark", ["%(program_name)999s", "%(program_name).999s", "%(ENV_A)s"])
def test_an_expansion_that_is_named_again_and_again(conf: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    monkeypatch.setenv("A", "x" * 1000)
    why = refusal(conf, f"[program:x]\ncommand=/bin/x {mark * 1000}\n")
    assert why == f"[program:x] command: is longer than {WORD_MAX} characters when written out"


def test_many_processes_that_each_have_a_long_environment(conf: Path) -> None:
    text = "[supervisord]\nenvironment=A=%s\n[program:x]\ncommand=/bin/x\nnumprocs=900\nprocess_name=%%(process_num)s\n"
    assert refusal(conf, text % LONG).startswith("[program:x] environment: with everything before it is longer than")


def test_a_long_name_without_an_end(conf: Path) -> None:
    why = refusal(conf, f"[program:x]\ncommand=/bin/x {'%(' * 50_000}\n")
    assert why == "[program:x] command: a name in it is longer than 256 characters"


def test_a_script_that_doubles_a_variable(tmp_path: Path) -> None:
    script = "A=xx; " + "A=$A$A; " * 60 + "exec /bin/x $A"
    found = understood(script, {}, "/")
    assert found == Opaque("one of its words is longer than any argument of a program may be")
    several = f"A={LONG}; " + " ".join(f"B{number}=$A;" for number in range(60)) + " exec /bin/x"
    assert understood(several, {}, "/") == Opaque("written out it is longer than any command may be")


# --- how many of them ------------------------------------------------------------------------------------------------


def test_more_programs_than_a_host_has_servers(conf: Path) -> None:
    text = "".join(f"[program:x{number}]\ncommand=/bin/x\n" for number in range(5000))
    assert refusal(conf, text) == "[program:x1000]: is one more than 1000 processes; convert them in parts"


def test_programs_of_many_processes_count_together(conf: Path) -> None:
    many = "command=/bin/x\nnumprocs=600\nprocess_name=%(program_name)s%(process_num)s\n"
    why = refusal(conf, f"[program:a]\n{many}[program:b]\n{many}")
    assert why == "[program:b]: is one more than 1000 processes; convert them in parts"


def test_one_file_that_is_named_again_and_again(conf: Path) -> None:
    (conf.parent / "one.conf").write_text("[program:x]\ncommand=/bin/x\n")
    assert refusal(conf, f"[include]\nfiles={'*.conf ' * 1001}\n") == "[include] files: more than 1000 patterns"
    for number in range(1, 11):
        (conf.parent / f"{number}.conf").write_text("[x]\n")
    why = refusal(conf, f"[include]\nfiles={'[0-9]*.conf ' * 101}\n")
    assert why.endswith(f"is one more than {FILES_MAX} files, more are not read")


def test_files_that_are_long_together(conf: Path) -> None:
    (conf.parent / "long.conf").write_text(f"#{'x' * (BYTES_MAX // 3)}\n")
    why = refusal(conf, f"[include]\nfiles={'long.conf ' * 4}\n")
    assert why == f"{conf.parent}/long.conf: with those before it is longer than {BYTES_MAX} bytes, more are not read"


def test_a_unit_with_more_drop_ins_than_anybody_reads(unit: Path) -> None:
    folder = unit.with_name("u.service.d")
    folder.mkdir()
    for number in range(FILES_MAX + 1):
        (folder / f"{number}.conf").touch()
    assert refusal(unit, "[Service]\nExecStart=/bin/x\n").endswith("files, more are not read")


# --- how long it takes -----------------------------------------------------------------------------------------------


def test_a_line_that_goes_on_a_million_times(unit: Path) -> None:
    unit.write_text("[Service]\nExecStart=/bin/x\n" + "\\\n" * 1_000_000)
    assert convert(unit).drafts[0].config.command == ("/bin/x",)


def test_a_time_span_that_can_be_read_in_countless_ways(unit: Path) -> None:
    digits = "1" * 200
    why = refusal(unit, f"[Service]\nExecStart=/bin/x\nRestart=always\nRestartSec={digits}!\n")
    assert why == f"RestartSec: {digits[:40]!r} is no time span"


# --- what is no file -------------------------------------------------------------------------------------------------


def test_a_pipe_that_nobody_writes_to(conf: Path) -> None:
    os.mkfifo(conf)
    with pytest.raises(ConversionError, match="is no regular file"):
        convert(conf)


def test_a_pipe_among_the_included_and_among_the_drop_ins(conf: Path, unit: Path) -> None:
    os.mkfifo(conf.parent / "pipe")
    assert refusal(conf, "[include]\nfiles=pipe\n").endswith("pipe: is no regular file")
    unit.with_name("u.service.d").mkdir()
    os.mkfifo(unit.with_name("u.service.d") / "a.conf")
    assert refusal(unit, "[Service]\nExecStart=/bin/x\n").endswith("a.conf: is no regular file")


def test_a_script_file_that_is_long_is_not_read_by_half(unit: Path) -> None:
    script = unit.with_name("serve.sh")
    script.write_text("#!/bin/bash\n" + "#\n" * 40_000 + "exec /bin/x\n")
    unit.write_text(f"[Service]\nExecStart=/bin/bash {script}\n")
    draft = convert(unit).drafts[0]
    assert draft.config.command == ("/bin/bash", str(script))
    assert any(f"{script} is longer than 65536 bytes" in lost for lost in draft.lost)


def test_a_pipe_that_is_a_units_environment_file(unit: Path) -> None:
    os.mkfifo(unit.with_name("env"))
    text = f"[Service]\nEnvironmentFile={unit.with_name('env')}\nExecStart=/bin/x ${{A}}\n"
    assert "EnvironmentFile= that can be read here" in refusal(unit, text)
