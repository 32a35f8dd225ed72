"""The real systemd starts a converted unit's command with the same words, directory and environment as we read from it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.convert import convert
from tests.systemd.machine import Machine, until, why_not

PROBE = "/usr/local/bin/probe"
SCRIPT = """#!/usr/bin/python3
import json, os, sys
names = [name for name in os.environ if name.startswith("T_")]
told = {"words": sys.argv[1:], "environment": {name: os.environ[name] for name in names}, "directory": os.getcwd()}
with open("/run/probe-" + os.environ["T_UNIT"], "w") as file:
    json.dump(told, file)
"""
UNITS = {
    "quotes": r"""ExecStart=/usr/local/bin/probe 'a b' "c d" e'f g'h "it's" '"' \x41\t\101 \q "a\"b" '' plain""",
    "variables": """Environment="T_A=x y" T_B=1 'T_C=$T_B'
Environment=T_D="in quotes"
ExecStart=/usr/local/bin/probe $T_A ${T_A} pre${T_B}post $$T_B pre$T_B "${T_A}" $T_C""",
    "taken-back": """Environment=T_A=1
Environment=
Environment=T_B=2
ExecStart=/usr/local/bin/probe wrong
ExecStart=
ExecStart=/usr/local/bin/probe right""",
    "continued": """ExecStart=/usr/local/bin/probe one \\
# a comment in between
  two \\
  three%%
WorkingDirectory=/usr""",
    "no-expansion": """Environment=T_A=1
ExecStart=:/usr/local/bin/probe $T_A ${T_A}""",
    "named": "ExecStart=@/usr/local/bin/probe other-name a b",
    "specifiers": "ExecStart=/usr/local/bin/probe %n %N %p",
    "shell": "ExecStart=/bin/sh -c 'cd /usr; export T_X=1; exec /usr/local/bin/probe \"$T_X\" z'",
}


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.skipif(why_not() != "", reason=why_not() or "-")
def test_systemd_starts_what_we_have_read(tmp_path: Path) -> None:
    units = {
        f"{name}.service": f"[Service]\nType=oneshot\nEnvironment=T_UNIT={name}\n{text}\n"
        for name, text in UNITS.items()
    }
    units["taken-back.service"] = units["taken-back.service"].replace("T_B=2", "T_B=2 T_UNIT=taken-back")
    with Machine({PROBE: SCRIPT} | {f"/etc/systemd/system/{name}": text for name, text in units.items()}) as machine:
        machine.path(PROBE).chmod(0o755)
        for name, text in units.items():
            file = tmp_path / name
            file.write_text(text)
            (draft,) = convert(file).drafts
            machine.run("systemctl", "start", name)
            told = Path(machine.path(f"/run/probe-{name.removesuffix('.service')}"))
            until(
                told.exists,
                20,
                f"{name} runs",
                lambda name=name: machine.run("systemctl", "status", "-n", "5", name).stdout,
            )
            theirs = json.loads(told.read_text())

            ours = draft.config
            assert list(ours.command[1:]) == theirs["words"], name
            assert {key: value for key, value in ours.environment.items() if key.startswith("T_")} == theirs[
                "environment"
            ], name
            assert (ours.directory or os.sep) == theirs["directory"], name
