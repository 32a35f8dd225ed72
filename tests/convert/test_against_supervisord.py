"""The real supervisord reads the same processes from the same files, and refuses the same files."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.peers import place
from supervisor.convert.draft import ConversionError
from supervisor.convert.supervisord import convert_supervisord

PYTHON = place("supervisor==4.3.0") / "python"
FILES = 150
ENVIRONMENT = {"PATH": os.defpath, "HOST_KIND": "h200"}

# Runs in supervisord's own environment: reads each file as supervisord would and tells what it would run.
READER = r"""
import contextlib, io, json, shlex, signal, sys
from supervisor.options import ServerOptions

def told(path):
    options = ServerOptions()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            options.stderr = io.StringIO()
            options.realize(["-c", path])
    except (SystemExit, Exception) as error:
        return str(error) or "refused"
    try:  # a command that cannot be cut fails only when it is started
        return processes(options)
    except ValueError as error:
        return str(error)

def processes(options):
    return [
        {
            "group": group.name, "name": process.name, "command": shlex.split(process.command),
            "environment": process.environment, "directory": process.directory, "umask": 0o22 if process.umask is None else process.umask,
            "autostart": process.autostart, "signal": signal.Signals(process.stopsignal).name[3:],
            "stopwaitsecs": process.stopwaitsecs, "startretries": process.startretries,
            "priority": process.priority, "restarts": process.autorestart is not False and str(process.autorestart) != "False",
        }
        for group in options.process_group_configs for process in group.process_configs
    ]

print(json.dumps([told(path) for path in sys.argv[1:]]))
"""

CHOICES = {
    "command": ["/bin/x --port %(process_num)d", "x 'a b' \"c\" d\\ e ; comment", "x #no-comment", "x %(program_name)s %(group_name)s",
                "x %(here)s %(host_node_name)s", "x %(ENV_HOST_KIND)s", "x %(ENV_A)s", "x 100%%", "x %", "x 'a", "x %(nobody)s", "x\n  and y"],
    "process_name": ["%(program_name)s", "%(program_name)s_%(process_num)02d", "p%(process_num)d", "fixed"],
    "numprocs": ["1", "2", "3"],
    "numprocs_start": ["1", "8"],
    "environment": ["A=1", "A=1,B=2", 'A="x,y",B=\'z\'', "A=1,", "A", "A=/p:/q", 'A="%(process_num)s"', "A=1;B=2", "A=%(ENV_HOST_KIND)s", 'A="1"B=2', "A=x y"],
    "directory": ["/tmp", "/", "/%(program_name)s"],
    "umask": ["022", "77", "0o22", "8", "1777"],
    "autostart": ["true", "False", "1", "off", "maybe"],
    "autorestart": ["true", "false", "unexpected", "UNEXPECTED", "sometimes"],
    "stopsignal": ["TERM", "SIGINT", "2", "int", "USR1", "HUH"],
    "stopwaitsecs": ["5", "120", "+7", "x", "1_0"],
    "startretries": ["0", "12", " 3", "3.5"],
    "priority": ["1", "999", "-5", "1000"],
    "redirect_stderr": ["true", "no"],
    "stdout_logfile_maxbytes": ["1MB", "50mb", "7"],
}  # fmt: skip


def some_file(chance: random.Random) -> str:
    """Two programs, perhaps a group, with options out of what people write, and some that are wrong."""
    lines = ["[supervisord]", *(["environment=A=outer,C=3"] if chance.random() < 0.3 else [])]
    lines += ["[group:g]", "programs=one" + chance.choice(["", ",two", ", two"])] if chance.random() < 0.3 else []
    for name in ("one", "two"):
        lines.append(f"[program:{name}]")
        for option in ["command", *chance.sample(sorted(CHOICES), 3)]:
            mostly = CHOICES[option][: 4 if chance.random() < 0.8 else None]
            lines.append(
                f"{option}{chance.choice(['=', ' = ', ': '])}{chance.choice(mostly)}{chance.choice(['', '', ' ; said'])}"
            )
    return "\n".join(lines) + "\n"


def ours(path: Path) -> list[dict[str, Any]] | str:
    try:
        drafts = convert_supervisord(path, ENVIRONMENT).drafts
    except ConversionError as problem:
        return str(problem)
    return [
        {
            "name": config.name,
            "command": list(config.command),
            "environment": config.environment,
            "directory": config.directory,
            "umask": config.umask,
            "autostart": config.autostart,
            "signal": config.stop.signal or "TERM",  # every engine's, as supervisord's own
            "restarts": config.restart.budget > 0,
        }
        for config in (draft.config for draft in drafts)
    ]


def theirs(paths: list[Path]) -> list[list[dict[str, Any]] | str]:
    command = [PYTHON, "-c", READER, *map(str, paths)]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=paths[0].parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: list[list[dict[str, Any]] | str] = json.loads(done.stdout)
    return answer


@pytest.mark.skipif(not PYTHON.exists(), reason="the peer is not installed: python -m bench.peers")
def test_both_read_the_same_processes(tmp_path: Path) -> None:
    chance = random.Random(20260101)
    paths = []
    for number in range(FILES):
        path = tmp_path / f"{number}.conf"
        path.write_text(some_file(chance))
        paths.append(path)

    differences, accepted = [], 0
    for path, them in zip(paths, theirs(paths), strict=True):
        us = ours(path)
        accepted += isinstance(us, list)
        if isinstance(us, str) != isinstance(them, str):
            differences.append((path.read_text(), us, them))
        elif isinstance(us, list) and isinstance(them, list):
            differences += different(path.read_text(), us, them)

    assert not differences, "\n".join(f"{text}\nours:   {us}\ntheirs: {them}" for text, us, them in differences[:5])
    assert accepted > FILES // 3, "the files are too wrong to compare anything"


def different(text: str, us: list[dict[str, Any]], them: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Names may differ where the daemon would not take one twice; everything else is the same."""
    ordered = sorted(them, key=lambda one: (one["priority"], one["group"]))
    pairs = [({key: one[key] for key in mine if key != "name"}, {key: value for key, value in mine.items() if key != "name"})
             for mine, one in zip(us, ordered, strict=False)]  # fmt: skip
    found: list[tuple[str, Any, Any]] = [(text, mine, one) for one, mine in pairs if one != mine]
    return found if len(us) == len(them) else [*found, (text, us, them)]
