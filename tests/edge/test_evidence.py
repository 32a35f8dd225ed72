"""Bundles of real processes, on disks that fill up and with helpers that hang: the rest is kept, said and in time."""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from supervisor import procstat
from supervisor.actions import KeepEvidence
from supervisor.edge.evidence import Facts, Part, Subject, bundles, finish, keep, prune, tar
from supervisor.edge.evidence.bundle import BUNDLE_BYTES, BundleWriter, being_written
from supervisor.edge.evidence.machine import kernel_lines
from supervisor.edge.evidence.stacks import stack
from supervisor.edge.process.scan import all_processes
from supervisor.events import EvidenceKept
from tests.edge.conftest import Starter, until

ASKED = KeepEvidence(7, "stalled in verify-graph", 10.0)
SLEEPER = "import time\ndef waits_for_ever():\n    while True: time.sleep(1)\nwaits_for_ever()"


def python(title: str = "sglang::scheduler_TP0") -> tuple[str, ...]:
    return "bash", "-c", f"exec -a '{title}' {sys.executable} -c '{SLEEPER}'"


def rank_of(pid: int, rank: str = "TP0") -> Subject:
    return Subject(pid, "scheduler", rank, f"sglang::scheduler_{rank}")


def files(kept: EvidenceKept) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(kept.path).iterdir()}


async def running_python(start: Starter, title: str = "sglang::scheduler_TP0") -> int:
    """A rank that is past its imports: py-spy shows a half-started interpreter as none."""
    tree = await start(*python(title))
    with anyio.fail_after(20):
        while "waits_for_ever" not in (await stack(_spy(), tree.pid, 5)).text:
            await anyio.sleep(0.05)
    return tree.pid


def _spy() -> str:
    return str(Path(sys.executable).with_name("py-spy"))


# --- a whole bundle ------------------------------------------------------------------------------------------------


async def test_a_bundle_holds_stacks_states_and_what_others_hand_in(start: Starter, tmp_path: Path) -> None:
    pid = await running_python(start)
    facts = Facts("kimi", (rank_of(pid),), (Part("votes.json", lambda: {"votes.json": "[]"}),))
    kept = await keep(ASKED, str(tmp_path / "kimi/000007"), facts)
    assert kept.attempt == 7
    assert kept.path == str(tmp_path / "kimi/000007")
    assert kept.took_s < 10
    found = files(kept)
    assert "waits_for_ever" in found[f"stack-scheduler-TP0-{pid}.txt"]
    assert found["votes.json"] == "[]"
    assert re.match(
        rf"=== {pid} scheduler TP0 sglang::scheduler_TP0\nstate [RSD], wait channel ", found["processes.txt"]
    )
    assert "--- threads\n" in found["processes.txt"]
    assert "MemAvailable" in found["machine.txt"]


async def test_the_manifest_names_sizes_hashes_and_what_is_missing(start: Starter, tmp_path: Path) -> None:
    def unreadable() -> dict[str, str]:
        raise PermissionError(13, "Permission denied")

    facts = Facts("kimi", (), (Part("log-tail.txt", unreadable), Part("votes.json", lambda: {"votes.json": "[1]"})))
    kept = await keep(ASKED, str(tmp_path / "kimi/000007"), facts)
    assert "log-tail.txt: Permission denied" in kept.missing
    assert "stacks: no process is left" in kept.missing
    manifest = json.loads(Path(kept.path, "manifest.json").read_bytes())
    assert manifest["reason"] == ASKED.reason
    assert tuple(manifest["missing"]) == kept.missing
    names = {one["name"] for one in manifest["files"]}
    assert names == {path.name for path in Path(kept.path).iterdir()} - {"manifest.json"}
    for one in manifest["files"]:
        data = Path(kept.path, one["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (one["bytes"], one["sha256"])


async def test_nobody_else_may_read_a_bundle(tmp_path: Path) -> None:
    kept = await keep(ASKED, str(tmp_path / "kimi/000007"), Facts("kimi"))
    assert stat.S_IMODE(os.stat(kept.path).st_mode) & 0o007 == 0
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o007 == 0 for path in Path(kept.path).iterdir())


async def test_tokens_and_passwords_that_the_log_names_are_hidden(tmp_path: Path) -> None:
    text = "Authorization: Bearer S3CRET-1\ncannot open https://user:S3CRET@host/x\nnext\n"
    kept = await keep(ASKED, str(tmp_path / "b/7"), Facts("kimi", (), (Part("log", lambda: {"log-tail.txt": text}),)))
    shown = "Authorization: Bearer ***\ncannot open https://user:***@host/x\nnext\n"
    assert files(kept)["log-tail.txt"] == shown


async def test_an_earlier_bundle_is_never_written_over(tmp_path: Path) -> None:
    place = str(tmp_path / "kimi/000007")
    kept = [await keep(ASKED, place, Facts("kimi")) for _ in range(3)]
    assert [one.path for one in kept] == [place, f"{place}-2", f"{place}-3"]
    assert [one.attempt for one in bundles(str(tmp_path), "kimi")] == [7, 7, 7]


# --- stacks --------------------------------------------------------------------------------------------------------


async def test_a_stopped_rank_gives_its_stack_too(start: Starter, tmp_path: Path) -> None:
    """py-spy cannot stop what is stopped already, and would read nothing."""
    pid = await running_python(start)
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: getattr(procstat.read(pid), "state", "") == "T")
    kept = await keep(ASKED, str(tmp_path / "b/7"), Facts("kimi", (rank_of(pid),)))
    assert "waits_for_ever" in files(kept)[f"stack-scheduler-TP0-{pid}.txt"]
    assert f"{pid} scheduler TP0 sglang::scheduler_TP0\nstate T," in files(kept)["processes.txt"]
    os.kill(pid, signal.SIGCONT)


async def test_who_lives_on_without_his_first_thread_is_described_and_his_stack_is_not_blamed_on_py_spy(
    headless: int, tmp_path: Path
) -> None:
    kept = await keep(ASKED, str(tmp_path / "b/7"), Facts("kimi", (rank_of(headless),)))
    why = "its first thread has ended, and py-spy finds no other without it"
    assert f"stack of scheduler-TP0-{headless}: {why}" in kept.missing
    assert f"{headless} scheduler TP0 sglang::scheduler_TP0\nstate Z," in files(kept)["processes.txt"]
    threads = files(kept)["processes.txt"].partition("--- threads\n")[2].splitlines()
    assert [line.split()[1] for line in threads[:2]] == ["Z", "S"]


async def test_what_is_no_python_is_said_of_roles_and_not_of_helpers(start: Starter, tmp_path: Path) -> None:
    role, helper = await start("sleep", "1000"), await start("sleep", "1000")
    facts = Facts("kimi", (Subject(helper.pid), Subject(role.pid, "detokenizer")))
    kept = await keep(ASKED, str(tmp_path / "b/7"), facts)
    stacks = [line for line in kept.missing if line.startswith("stack of ")]
    assert len(stacks) == 1
    assert stacks[0].startswith(f"stack of detokenizer-{role.pid}: ")
    assert f"=== {helper.pid}" in files(kept)["processes.txt"]


async def test_who_has_ended_meanwhile_is_said(start: Starter, tmp_path: Path) -> None:
    tree = await start("true")
    await tree.exited()
    kept = await keep(ASKED, str(tmp_path / "b/7"), Facts("kimi", (rank_of(tree.pid),)))
    assert f"stack of scheduler-TP0-{tree.pid}: the process has ended" in kept.missing
    assert "gone" in files(kept)["processes.txt"]


async def test_without_py_spy_the_rest_is_kept(start: Starter, tmp_path: Path) -> None:
    tree = await start("sleep", "1000")
    kept = await keep(ASKED, str(tmp_path / "b/7"), Facts("kimi", (rank_of(tree.pid),)), lambda: None)
    assert "stacks: py-spy is not installed" in kept.missing
    assert "processes.txt" in files(kept)


async def test_a_py_spy_that_hangs_costs_its_limit_and_leaves_nothing_behind(start: Starter, tmp_path: Path) -> None:
    """It also starts a child that holds the pipe open: only the group's end helps."""
    tree = await start("sleep", "1000")
    stub = program(tmp_path / "py-spy", f"echo $$ >> {tmp_path}/pids; sleep 1000 & sleep 1000")
    subjects = tuple(rank_of(tree.pid, f"TP{n}") for n in range(12))
    facts = Facts("kimi", subjects, (Part("votes.json", lambda: {"votes.json": "[]"}),))
    began = time.monotonic()
    kept = await keep(KeepEvidence(7, "stalled", 6.0), str(tmp_path / "b/7"), facts, lambda: stub)
    assert time.monotonic() - began < 8.0
    assert "votes.json" in files(kept), "it is not held up"
    told = [line for line in kept.missing if line.startswith("stack of ")]
    assert len(told) == 12, "each rank's stack is missed by name"
    assert any("no answer within" in line for line in told)
    assert any("not tried: py-spy hangs" in line for line in told)
    groups = {int(group) for group in (tmp_path / "pids").read_text().split()}
    await until(lambda: not [one for one in all_processes() if one.group in groups and one.alive])


async def test_a_py_spy_that_never_stops_talking_is_cut(start: Starter, tmp_path: Path) -> None:
    tree = await start("sleep", "1000")
    stub = program(tmp_path / "py-spy", "exec yes")
    kept = await keep(ASKED, str(tmp_path / "b/7"), Facts("kimi", (rank_of(tree.pid),)), lambda: stub)
    assert kept.took_s < 10
    assert sum(path.stat().st_size for path in Path(kept.path).iterdir()) < 2**20


async def test_many_processes_are_no_reason_to_be_late(start: Starter, tmp_path: Path) -> None:
    tree = await start("bash", "-c", "for n in {1..150}; do sleep 1000 & done; wait")
    with anyio.fail_after(20):
        while len(members := await tree.members()) < 151:
            await anyio.sleep(0.05)
    facts = Facts("kimi", tuple(Subject(one.pid, leader=one.pid == tree.pid) for one in members))
    kept = await keep(ASKED, str(tmp_path / "b/7"), facts)
    assert kept.took_s < 10
    assert files(kept)["processes.txt"].count("\n=== ") + 1 == 151


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return str(path)


# --- time and space ------------------------------------------------------------------------------------------------


async def test_a_document_that_hangs_is_left_behind_and_named(tmp_path: Path) -> None:
    never = threading.Event()
    parts = (
        Part("first.json", lambda: {"first.json": "1"}),
        Part("hangs.json", lambda: {"hangs.json": str(never.wait(30))}),
        Part("third.json", lambda: {"third.json": "3"}),
    )
    kept = await keep(KeepEvidence(7, "stalled", 2.0), str(tmp_path / "b/7"), Facts("kimi", (), parts))
    never.set()
    assert kept.took_s < 3.0
    assert "first.json" in files(kept)
    assert [line for line in kept.missing if "were over" in line] == [
        "hangs.json: 2 s were over",
        "third.json: 2 s were over",
        "kernel.txt: 2 s were over",
        "machine.txt: 2 s were over",
    ]
    assert json.loads(files(kept)["manifest.json"])["missing"] == list(kept.missing)


async def test_a_bundle_has_a_largest_size(tmp_path: Path) -> None:
    parts = tuple(Part(f"{n}.txt", lambda n=n: {f"{n}.txt": "x" * (3 * 2**20)}) for n in range(20))  # type: ignore[misc]
    kept = await keep(KeepEvidence(7, "stalled", 30.0), str(tmp_path / "b/7"), Facts("kimi", (), parts))
    assert sum(path.stat().st_size for path in Path(kept.path).iterdir()) <= BUNDLE_BYTES + 2**17
    assert "0.txt: cut to 2097152 of 3145728 bytes" in kept.missing
    assert len(kept.missing) > 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """128 KiB, of which the manifest takes some first."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=128k", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small disk here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_a_full_disk_costs_what_does_not_fit(small_disk: Path) -> None:
    parts = (
        Part("small.json", lambda: {"small.json": "1"}),
        Part("large.txt", lambda: {"large.txt": "x" * 2**20}),
        Part("last.json", lambda: {"last.json": "2"}),
    )
    kept = await keep(ASKED, str(small_disk / "kimi/000007"), Facts("kimi", (), parts))
    assert "large.txt: No space left on device" in kept.missing
    found = files(kept)
    assert found["small.json"] == "1"
    assert found["last.json"] == "2", "what comes after the large one fits again"
    assert json.loads(found["manifest.json"])["missing"] == list(kept.missing)


async def test_a_disk_that_takes_nothing_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("a file where the directory should be")
    kept = await keep(ASKED, str(tmp_path / "evidence/kimi/000007"), Facts("kimi"))
    assert kept.path == ""
    assert kept.missing == ("everything: cannot make the directory: Not a directory",)
    assert kept.took_s < 1
    assert not being_written


# --- what must not be in it ----------------------------------------------------------------------------------------


async def test_secrets_are_in_no_file_and_no_message(start: Starter, tmp_path: Path) -> None:
    secret = 'pa"ss\\word-1'
    log = f"server_args=ServerArgs(model_path='/m', api_key='other-key-42', tokenizer_path='/t')\nuse {secret} please\n"
    facts = Facts(
        "kimi",
        (Subject(1, "scheduler", "TP0", f"python -m server --api-key {secret}"),),
        (
            Part("log.txt", lambda: {"log.txt": log}),
            Part("args.json", lambda: {"args.json": json.dumps({"argv": [secret], "hf_token": "hf_abcdef"})}),
        ),
        (secret,),
    )
    kept = await keep(KeepEvidence(7, f"died of {secret}", 10.0), str(tmp_path / "b/7"), facts)
    text = "".join(files(kept).values()) + " ".join(kept.missing)
    for word in (secret, json.dumps(secret)[1:-1], "other-key-42", "hf_abcdef"):
        assert word not in text
    assert "model_path='/m'" in text
    assert "tokenizer_path='/t'" in text, "what only sounds like a secret stays readable"
    assert "use *** please" in text


async def test_control_characters_of_a_log_are_taken_out(tmp_path: Path) -> None:
    text = "a\x1b[31mred\x07\rbar 50%\rbar 100%\n\x00b\u202ec\n"
    facts = Facts("kimi", (), (Part("log.txt", lambda: {"log.txt": text}),))
    kept = await keep(ASKED, str(tmp_path / "b/7"), facts)
    assert files(kept)["log.txt"] == "ared\nbar 50%\nbar 100%\nbc\n"


# --- the store -----------------------------------------------------------------------------------------------------


def bundle(place: Path, size: int = 10, age_s: float = 0.0) -> str:
    place.mkdir(parents=True)
    (place / "facts.json").write_bytes(b"x" * size)
    moment = time.time() - age_s
    os.utime(place, (moment, moment))
    return str(place)


def test_the_newest_stay_and_the_oldest_go(tmp_path: Path) -> None:
    paths = [bundle(tmp_path / f"kimi/{n:06d}", age_s=100 - n) for n in range(6)]
    other = bundle(tmp_path / "other/000001", age_s=1000)
    assert sorted(prune(str(tmp_path), keep=4)) == paths[:2]
    assert [one.path for one in bundles(str(tmp_path), "kimi")] == paths[:1:-1]
    assert Path(other).is_dir(), "another server's only one"


def test_the_size_of_all_is_bounded_but_each_server_keeps_its_newest(tmp_path: Path) -> None:
    paths = [bundle(tmp_path / f"kimi/{n:06d}", size=1000, age_s=100 - n) for n in range(4)]
    old = bundle(tmp_path / "other/000001", size=1000, age_s=1000)
    assert sorted(prune(str(tmp_path), keep=20, total_bytes=2500)) == paths[:3]
    assert Path(old).is_dir()


def test_one_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    writer = BundleWriter(str(tmp_path / "kimi/000001"), "kimi", 1, "stalled")
    writer.open()
    later = bundle(tmp_path / "kimi/000002")
    os.utime(writer.path, (1, 1))
    assert prune(str(tmp_path), keep=1) == ()
    being_written.discard(writer.path)
    assert prune(str(tmp_path), keep=1) == (writer.path,)
    assert [one.path for one in bundles(str(tmp_path), "kimi")] == [later]


async def test_a_bundle_tells_whether_it_was_finished(tmp_path: Path) -> None:
    await keep(ASKED, str(tmp_path / "kimi/000007"), Facts("kimi"))
    bundle(tmp_path / "kimi/000006", age_s=60)
    (tmp_path / "kimi/notes.txt").write_text("not ours")
    found = bundles(str(tmp_path), "kimi")
    assert [(one.attempt, one.manifest is not None) for one in found] == [(7, True), (6, False)]
    assert bundles(str(tmp_path), "nobody") == ()
    assert prune(str(tmp_path / "nowhere")) == ()


# --- a daemon that dies over it --------------------------------------------------------------------------------------

DIES = """
import os, signal, sys
import anyio
from supervisor.actions import KeepEvidence
from supervisor.edge.evidence import Facts, Part, keep

def die():
    os.kill(os.getpid(), signal.SIGKILL)

parts = Part("votes.json", lambda: {"votes.json": "[1]"}), Part("log-tail.txt", die)
anyio.run(keep, KeepEvidence(7, "stalled in verify-graph", 10.0), sys.argv[1], Facts("kimi", (), parts))
"""


def cut(place: Path) -> Path:
    """A bundle whose daemon was killed in the midst of it."""
    done = subprocess.run([sys.executable, "-c", DIES, str(place)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    return place


def test_what_a_killed_daemon_has_written_is_finished_by_the_next_and_looks_whole_to_nobody(tmp_path: Path) -> None:
    place = cut(tmp_path / "kimi/000007")
    (begun,) = bundles(str(tmp_path), "kimi")
    assert (begun.manifest, begun.whole) == (None, False)
    assert [(one.attempt, one.path, one.problem) for one in finish(str(tmp_path))] == [(7, str(place), "")]
    (found,) = bundles(str(tmp_path), "kimi")
    assert found.manifest is not None
    assert (found.whole, found.lost) == (False, ())
    assert (found.manifest.reason, found.manifest.cut) == (ASKED.reason, "its daemon ended while it was being written")
    assert [one.name for one in found.manifest.files] == ["processes.txt", "votes.json"]
    assert found.manifest.missing == ("what is not listed: its daemon ended while it was being written",)
    assert finish(str(tmp_path)) == (), "once"


def test_half_a_file_is_none_of_the_bundle(tmp_path: Path) -> None:
    place = cut(tmp_path / "kimi/000007")
    (place / "log-tail.txt.part").write_bytes(b"half of")
    (one,) = finish(str(tmp_path))
    assert one.missing[0] == "log-tail.txt: cut, log-tail.txt.part is what there is"
    (found,) = bundles(str(tmp_path), "kimi")
    assert found.manifest is not None
    assert "log-tail.txt.part" not in [one.name for one in found.manifest.files]


@pytest.mark.parametrize("manifest", [b"", b" " * 100, b'{"server": "ki', b"\xff"])
def test_a_bundle_that_does_not_tell_what_it_is_is_finished_all_the_same(tmp_path: Path, manifest: bytes) -> None:
    place = Path(bundle(tmp_path / "kimi/000007"))
    (place / "manifest.json").write_bytes(manifest)
    assert [(one.server, one.attempt, one.problem) for one in finish(str(tmp_path))] == [("kimi", 7, "")]
    (found,) = bundles(str(tmp_path), "kimi")
    assert found.manifest is not None
    assert [one.name for one in found.manifest.files] == ["facts.json"]


def test_what_cannot_be_finished_is_said_and_tried_by_the_next(tmp_path: Path) -> None:
    place = Path(bundle(tmp_path / "kimi/000007"))
    (place / "manifest.json").mkdir()
    assert [one.problem for one in finish(str(tmp_path))] == ["Is a directory"]
    (place / "manifest.json").rmdir()
    assert [one.problem for one in finish(str(tmp_path))] == [""]


def test_a_bundle_that_this_daemon_writes_is_let_be(tmp_path: Path) -> None:
    writer = BundleWriter(str(tmp_path / "kimi/000007"), "kimi", 7, "stalled")
    writer.open()
    try:
        assert finish(str(tmp_path)) == ()
        writer.close()
        (found,) = bundles(str(tmp_path), "kimi")
        assert found.whole
    finally:
        being_written.discard(writer.path)
    assert finish(str(tmp_path)) == ()
    assert finish(str(tmp_path / "nowhere")) == ()


async def test_a_place_that_is_made_too_late_is_taken_away_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that hangs for longer than anybody waits for the evidence."""
    answers, mkdir, place = threading.Event(), os.mkdir, str(tmp_path / "kimi/000007")

    def hang(path: str, *arguments: Any, **options: Any) -> None:
        assert path != place or answers.wait(30)
        mkdir(path, *arguments, **options)

    monkeypatch.setattr("os.mkdir", hang)
    kept = await keep(msgspec.structs.replace(ASKED, limit_s=0.2), place, Facts("kimi"))
    assert (kept.path, place in being_written) == ("", True)
    answers.set()
    with anyio.fail_after(20):
        while place in being_written:
            await anyio.sleep(0.01)
    assert os.listdir(tmp_path / "kimi") == []


async def test_a_bundle_that_has_lost_a_file_is_not_whole(tmp_path: Path) -> None:
    """As after a power cut, when the manifest was on disk and what it names was not."""
    kept = await keep(ASKED, str(tmp_path / "kimi/000007"), Facts("kimi"))
    size = os.path.getsize(f"{kept.path}/machine.txt")
    os.truncate(f"{kept.path}/machine.txt", 0)
    (found,) = bundles(str(tmp_path), "kimi")
    assert (found.whole, found.lost) == (False, (f"machine.txt: 0 of {size} bytes are left",))


async def test_a_bundle_is_packed_below_one_directory(tmp_path: Path) -> None:
    kept = await keep(ASKED, str(tmp_path / "kimi/000007"), Facts("kimi"))
    out = io.BytesIO()
    tar(kept.path, out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        names = archive.getnames()
    assert names[0] == "kimi-000007"
    assert "kimi-000007/manifest.json" in names


# --- the kernel ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("mkfifo") is None, reason="needs a FIFO")
def test_the_kernels_own_lines_are_taken_and_no_users(tmp_path: Path) -> None:
    """A FIFO in place of /dev/kmsg: it gives all its records in one read, so one record is written."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    holder = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(holder, b"4,1234,5000000,-;NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n SUB=pci\n")
        assert kernel_lines(str(fifo)) == (
            "[    5.000000] NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n"
        )
        os.write(holder, b"12,1235,6000000,-;NVRM: Xid (PCI:0000:1a:00): 79, forged by a user\n")
        assert kernel_lines(str(fifo)) == "\n"
    finally:
        os.close(holder)
