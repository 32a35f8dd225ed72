"""`sglsup replay` from its arguments to its page and exit status, over journals and logs."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from supervisor.core.replay.review import Step
from supervisor.edge.journal import Entry, Retention
from supervisor.edge.journal.store import Store
from supervisor.main import main
from supervisor.replay import EXIT_DIFFERENT, EXIT_SAME, EXIT_UNREADABLE, EXIT_USAGE
from tests.core.recording import LOADING, SETTINGS, stalled_night

DATA = Path(__file__).parent / "data" / "sglang" / "logs"
HEALTHY = str(DATA / "gpu-b_eagle3_then_e_sigkill_parent.log.gz")
FOREVER = Retention(age_s=1e12)


def entries(server: str, steps: Iterable[Step]) -> list[Entry]:
    """As the daemon's loop appends them."""
    rows = []
    for step in steps:
        for kind, what in (("event", step.event), *(("action", action) for action in step.then)):
            attempt = getattr(what, "attempt", 0)
            rows.append(Entry(kind, server, attempt, step.at, step.wall, msgspec.json.encode(what)))
    return rows


def journal(path: Path, *rows: Entry) -> str:
    numbered = [msgspec.structs.replace(row, id=number) for number, row in enumerate(rows, 1)]
    store = Store(str(path), FOREVER)
    store.write(numbered)
    store.close()
    return str(path)


@pytest.fixture
def night(tmp_path: Path) -> str:
    """A journal of one server whose first attempt was ended after 100 s without progress in its weights."""
    return journal(tmp_path / "journal.db", *entries("kimi", stalled_night().steps))


def config(tmp_path: Path, stall: str, *names: str) -> str:
    """The settings of the recorded night, but for the patience with silent weights."""
    path = tmp_path / "supervisor.toml"
    tables = [
        f'[server.{name}]\ncommand = ["true"]\nport = {port}\ngpus = []\n'
        f'restart = {{backoff = "5s", jitter = 0.0, budget = 9}}\n'
        f'deadlines = {{weights = {{stall = "{stall}", limit = "1h"}}}}\n'
        for port, name in enumerate(names or ("kimi",), 30000)
    ]
    path.write_text("\n".join(tables))
    return str(path)


def replayed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["replay", *words])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_the_recorded_night_has_the_settings_that_the_tests_say() -> None:
    assert SETTINGS.deadlines["weights"].stall_s == 100.0
    assert LOADING.endswith("GB")


# --- journals --------------------------------------------------------------------------------------------------------


def test_the_same_rules_show_no_difference(night: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, page, _ = replayed(capsys, night, "-c", config(tmp_path, "100s"))
    assert status == EXIT_SAME
    assert page.startswith("= decided then and now")
    assert "\nkimi: no difference  (engine sglang, settings of " in page
    assert "  = " in page
    assert not any(line.startswith(("  -", "  +", "  ~")) for line in page.splitlines())


def test_other_rules_show_what_they_would_have_done(
    night: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, page, _ = replayed(capsys, night, "-c", config(tmp_path, "30s"))
    assert status == EXIT_DIFFERENT
    assert "  ~ " in page
    assert "lifecycle stopping: now 70.0 s earlier: stalled in weights: no progress for 30 s" in page
    assert "→ ended now, not then" in page
    assert "attempt 2" in page


def test_without_a_configuration_the_engines_own_values_count(night: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, page, _ = replayed(capsys, night)
    assert status == EXIT_DIFFERENT
    assert "the engine's own settings, command unknown" in page
    assert page.splitlines()[0] == (
        "kimi: judged without the settings of your file, which explains differences: give it with -c FILE"
    )
    assert "ended then, not now: without progress weights has until" in page


def test_the_same_input_gives_the_same_bytes(night: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (night, "-c", config(tmp_path, "30s"))
    assert replayed(capsys, *words) == replayed(capsys, *words)
    assert replayed(capsys, *words, "--json") == replayed(capsys, *words, "--json")


def test_json_has_every_decision_with_its_mark(night: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = replayed(capsys, night, "-c", config(tmp_path, "30s"), "--json")
    told = json.loads(text)
    (server,) = told["servers"]
    assert status == EXIT_DIFFERENT
    assert (server["name"], server["engine"]) == ("kimi", "sglang")
    assert told["differences"] == server["differences"] > 0
    rows = [row for section in server["sections"] for row in section["rows"]]
    assert {row["mark"] for row in rows} == {"same", "moved", "now"}
    assert [section["attempt"] for section in server["sections"]] == [1, 2]


def test_one_server_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = stalled_night().steps
    path = journal(tmp_path / "j.db", *entries("one", steps), *entries("two", steps))
    file = config(tmp_path, "100s", "one", "two")
    assert replayed(capsys, path, "-c", file)[1].count("no difference") == 2
    status, page, _ = replayed(capsys, path, "-c", file, "--server", "two")
    assert status == EXIT_SAME
    assert "\ntwo: no difference" in page
    assert "\none:" not in page
    status, _, error = replayed(capsys, path, "--server", "three")
    assert (status, error) == (
        EXIT_USAGE,
        "sglsup replay: cannot find server 'three': the journal has one, two\n",
    )


def test_rows_of_a_newer_daemon_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = [
        Entry("event", "kimi", 1, 1.0, 1.0, b'{"type":"Teleported"}'),
        Entry("thought", "kimi", 1, 1.0, 1.0, b"{}"),
        Entry("event", "kimi", 1, 1.0, 1.0, b"\xff"),
        Entry("lost", "", 0, 1.0, 1.0, b'{"lost":7}'),
    ]
    path = journal(tmp_path / "j.db", *odd, *entries("kimi", stalled_night().steps))
    status, page, _ = replayed(capsys, path, "-c", config(tmp_path, "100s"))
    assert status == EXIT_SAME
    assert "3 rows of kinds that this version does not know were left out" in page
    assert "7 rows were lost when the journal could not be written" in page


# --- logs ------------------------------------------------------------------------------------------------------------


def test_a_healthy_log_shows_its_phases(capsys: pytest.CaptureFixture[str]) -> None:
    status, page, _ = replayed(capsys, HEALTHY)
    assert status == EXIT_SAME
    for phase in ("tokenizer", "dist-init", "weights", "draft-weights", "verify-graph", "draft-graph", "warmup"):
        assert f" {phase} " in page
    assert "ready after 40 s" in page


def test_a_log_that_ends_silent_is_judged_by_the_time_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(f"{LOADING}\n")
    status, page, _ = replayed(capsys, str(path))
    assert status == EXIT_SAME
    assert "silence would be called a stall at 2026-11-29 10:10:02" in page
    status, page, _ = replayed(capsys, str(path), "--until", "2026-11-29 12:00:00")
    assert status == EXIT_DIFFERENT
    assert "2026-11-29 10:10:02  stalled in weights: no progress for 600 s" in page
    assert replayed(capsys, str(path), "--now", "10:05:00")[0] == EXIT_SAME


def test_a_patience_that_was_too_short_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(f"{LOADING}\n{LOADING.replace('10:00:02', '10:04:02')}\n".replace("begin. avail", "begin. avail"))
    with path.open("a") as log:
        log.write("[2026-11-29 10:05:02 TP0] Capture cuda graph begin. avail mem=9.92 GB\n")
    status, page, _ = replayed(capsys, str(path), "-c", config(tmp_path, "60s"))
    assert status == EXIT_DIFFERENT
    assert "but the log moves again 4 m later: this patience was too short for this start" in page


def test_a_log_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(f"{LOADING}\n".encode()))
    status, text, _ = replayed(capsys, str(path), "--json", "--until", "2026-11-29 12:00:00")
    told = json.loads(text)
    assert status == EXIT_DIFFERENT
    assert told["condemned"] == 1
    (attempt,) = told["attempts"]
    assert attempt["begin"] == "2026-11-29 10:00:02"
    assert attempt["charge_s"] == pytest.approx(600)
    assert attempt["phases"][-1]["phase"] == "weights"
    assert attempt["ready_s"] is None


def test_whose_log_it_is_must_be_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(f"{LOADING}\n")
    file = config(tmp_path, "60s", "one", "two")
    status, _, error = replayed(capsys, str(path), "-c", file)
    assert status == EXIT_USAGE
    assert error == f"sglsup replay: cannot tell whose log it is: use --server: {file} has one, two\n"
    assert replayed(capsys, str(path), "-c", file, "--server", "two")[0] == EXIT_SAME
    assert replayed(capsys, str(path), "-c", file, "--server", "three")[0] == EXIT_USAGE
    assert "name the configuration with -c" in replayed(capsys, str(path), "--server", "one")[2]


# --- wrong input -----------------------------------------------------------------------------------------------------


def made(path: Path, what: str) -> str:
    match what:
        case "empty":
            path.write_bytes(b"")
        case "binary":
            path.write_bytes(bytes(range(32)) * 500)
        case "text":
            path.write_text("dear diary\n" * 50)
        case "folder":
            path.mkdir()
        case "header":
            path.write_bytes(b"SQLite format 3\0")
        case "other":
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE diary (day TEXT)")
        case "rowless":
            journal(path)
        case "newer" | "older":
            journal(path, *entries("kimi", stalled_night().steps))
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(f"PRAGMA user_version = {9 if what == 'newer' else 0}")
        case "truncated":
            journal(path, *entries("kimi", stalled_night().steps))
            path.write_bytes(path.read_bytes()[:9000])
        case _:
            pass
    return str(path)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing", "No such file or directory"),
        ("empty", "it is empty"),
        ("binary", "this is binary data, not a log"),
        ("text", "no record of an engine with a time is in it"),
        ("folder", "Is a directory"),
        ("header", "file is not a database"),
        ("other", "no table of entries"),
        ("rowless", "no event of any server is in it"),
        ("newer", "its schema version 9 is newer than 1"),
        ("older", "its schema version 0 is older than 1"),
        ("truncated", "malformed"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    what: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path / "record", what)
    status, page, error = replayed(capsys, path)
    assert (status, page) == (EXIT_UNREADABLE, "")
    assert error.startswith(f"sglsup replay: cannot read {path}: ")
    assert words in error
    assert len(error.splitlines()) == 1


def test_a_broken_configuration_is_a_usage_error(
    night: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("[server.x]\nport = 'no'\n")
    status, _, error = replayed(capsys, night, "-c", str(file))
    assert status == EXIT_USAGE
    assert str(file) in error
    assert "Traceback" not in error


def test_a_moment_makes_no_sense_for_a_journal(night: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = replayed(capsys, night, "--until", "12:00:00")
    assert (status, error) == (
        EXIT_USAGE,
        "sglsup replay: cannot use --until with a journal: it tells its moments itself\n",
    )


@pytest.mark.parametrize("words", [[], ["x", "--until", "soon"], ["x", "--engine", "abacus"], ["x", "--verbose"]])
def test_wrong_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", *words])
    assert ended.value.code == EXIT_USAGE
    assert "usage: sglsup replay" in capsys.readouterr().err
