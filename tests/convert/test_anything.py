"""Whatever a file holds: one line and status 2, or a file that the daemon reads. Never a traceback."""

from __future__ import annotations

import string
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.convert import convert
from supervisor.convert.draft import Conversion, ConversionError
from supervisor.convert.page import page, told
from tests.convert.conftest import read

_OPTIONS = [
    "command",
    "process_name",
    "numprocs",
    "numprocs_start",
    "priority",
    "autostart",
    "autorestart",
    "startsecs",
    "startretries",
    "stopsignal",
    "stopwaitsecs",
    "stopasgroup",
    "killasgroup",
    "user",
    "directory",
    "umask",
    "environment",
    "redirect_stderr",
    "stdout_logfile",
    "stdout_logfile_maxbytes",
    "stdout_logfile_backups",
    "stderr_logfile",
    "exitcodes",
    "serverurl",
    "stdout_syslog",
    "files",
    "programs",
    "minfds",
    "chmod",
    "chown",
    "file",
]
_SETTINGS = [
    "ExecStart",
    "ExecStartPre",
    "Environment",
    "EnvironmentFile",
    "User",
    "Group",
    "WorkingDirectory",
    "UMask",
    "Nice",
    "OOMScoreAdjust",
    "LimitNOFILE",
    "LimitMEMLOCK",
    "TimeoutStopSec",
    "Restart",
    "RestartSec",
    "KillSignal",
    "StartLimitBurst",
    "StartLimitIntervalSec",
    "MemoryMax",
    "Type",
]
_SECTIONS = [
    "supervisord",
    "program:a",
    "program:b",
    "group:g",
    "include",
    "unix_http_server",
    "inet_http_server",
    "eventlistener:e",
    "x",
    "program:",
]
_LIKELY = st.sampled_from(
    [
        "1", "0", "-1", "99999999999999", "true", "no", "unexpected", "TERM", "SIGINT", "9", "022", "10MB", "a,b", "A=1,B='2 3'",
        "%(program_name)s", "%(process_num)02d", "%(ENV_PATH)s", "%(here)s/x", "%", "%%", "%(x", "bash -c 'cd /x; exec y'",
        'bash -c "source /v/bin/activate && python -m sglang.launch_server --tp 2 --port 3"', "python -m sglang.launch_server",
        "vllm serve m --port 7", 'CUDA_VISIBLE_DEVICES="0,1"', "$X ${X} $$", "2min 30s", "infinity", "/a:/b", "-/etc/x", "'", '"',
        "\\", "a ; b", "@/bin/a b c", "-+/bin/a", "%i %n", "Ä\u2028", "\x7f\x01",
    ]
)  # fmt: skip
_VALUE = st.one_of(
    _LIKELY,
    _LIKELY,
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20),
    st.text(string.printable, max_size=12),
)
_INI = st.lists(st.tuples(st.sampled_from(_OPTIONS), _VALUE), max_size=6)
_FILES = st.lists(st.tuples(st.sampled_from(_SECTIONS), _INI), min_size=1, max_size=5)
_UNITS = st.lists(st.tuples(st.sampled_from(_SETTINGS), _VALUE), max_size=8)


def outcome(text: str, name: str) -> None:
    """It is refused in one line, or what is written reads back as what was meant."""
    with tempfile.TemporaryDirectory(prefix="cv-") as folder:
        file = Path(folder, name)
        file.write_text(text, encoding="utf-8", errors="replace")
        conversion = _converted(file)
        if isinstance(conversion, str):
            assert len(conversion.splitlines()) == 1, conversion
            return
        assert all(line.isprintable() for line in told(conversion))
        configs = [draft.config for draft in conversion.drafts if not draft.unusable]
        if all(config.user is None and config.group is None for config in configs):  # users are this host's affair
            assert list(read(page(conversion), Path(folder)).servers.values()) == configs


def _converted(file: Path) -> Conversion | str:
    try:
        return convert(file)
    except ConversionError as problem:
        return str(problem)


@settings(max_examples=50, deadline=None)
@given(_FILES)
def test_any_supervisord_file(sections: list[tuple[str, list[tuple[str, str]]]]) -> None:
    text = "[supervisord]\n" + "".join(
        f"[{name}]\n" + "".join(f"{option}={value}\n" for option, value in options) for name, options in sections
    )
    outcome(text, "supervisord.conf")


@settings(max_examples=50, deadline=None)
@given(_UNITS)
def test_any_unit(assignments: list[tuple[str, str]]) -> None:
    body = "".join(f"{key}={value}\n" for key, value in assignments)
    outcome(f"[Unit]\n[Service]\nExecStart=/bin/engine --port 1\n{body}", "x.service")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200), st.sampled_from(["", "[supervisord]\n", "[Service]\n", "[program:a]\ncommand="]))
def test_any_text(text: str, before: str) -> None:
    outcome(before + text, "x")
