"""Rows: what the daemon keeps is corrupt, the disk is full, read-only, or refuses a single call."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

from tests.e2e.host import until
from tests.faults.deaths import come_back
from tests.faults.row import THOROUGH, Row, freezes, mounts
from tests.faults.scene import Scene
from tests.faults.volume import Volume

GARBAGE = b"\xff\xfe{ no record of ours" * 100
DAMAGED_AT_REST = ("journal.db", "servers/kimi.json", "tally.json", "devices.json", "history/kimi.json")
ENOUGH_CALLS = 120  # more than any restart was seen to need
SLOW_CALL_MS = 100
HANG_S = 12.0  # longer than the observer waits for any answer
THREADS_MORE = 20  # the writers, evidence and what is idle: of each a few, however often it is asked for
STEP = 1 if THOROUGH else 4


def everything_damaged_at_rest(scene: Scene) -> str:
    """All files but the note of the living tree, while there is no daemon; then the note as well."""
    scene.bad("kimi")
    first = scene.start()
    pid = scene.is_running("kimi")["pid"]
    first.kill()
    damaged = 0
    for name in DAMAGED_AT_REST:
        path = scene.state_dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(GARBAGE)
        damaged += 1
    for ending in ("-wal", "-shm"):
        scene.state_dir.joinpath(f"journal.db{ending}").unlink(missing_ok=True)
    come_back(scene)
    assert scene.is_running("kimi")["pid"] == pid, "the living server goes on"
    until(lambda: bool(list(scene.state_dir.glob("journal.db.corrupt-*"))), 20, "the journal is moved aside")
    kept = len([*scene.state_dir.rglob("*.broken"), *scene.state_dir.glob("*.corrupt-*")])
    return f"{damaged} files of garbage: the server adopted, {kept} kept aside, a new journal begun"


def journal_damaged_under_it(scene: Scene) -> str:
    """Overwritten while the daemon writes it, then deleted."""
    scene.bad("kimi")
    scene.start()
    pid = scene.is_running("kimi")["pid"]
    with scene.journal.open("r+b") as file:
        file.write(GARBAGE)
        file.truncate(5000)
    for path in (scene.journal, Path(f"{scene.journal}-wal"), Path(f"{scene.journal}-shm")):
        with path.open("r+b") as file:
            file.write(GARBAGE * 20)
    for _ in range(3):
        assert scene.ctl("signal", "CONT", "kimi").returncode == 0
        assert scene.ctl("events", "kimi").returncode == 0
    for path in scene.state_dir.glob("journal.db*"):
        path.unlink()
    assert scene.ctl("stop", "kimi").returncode == 0
    assert scene.ctl("start", "kimi", "--wait", "--timeout", "30s").returncode == 0
    assert scene.show("kimi")["pid"] != pid
    scene.journal_may_be_lost = True
    return "overwritten, truncated and deleted under way: stop and start as ever, events from memory"


def read_only_from_the_start(scene: Scene) -> str:
    scene.bad("kimi")
    scene.write_config()
    with Volume(scene.state_dir, "4m", scene.environment) as disk:
        scene.prefix = disk.prefix
        disk.remount("ro")
        done = scene.refused()
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
        assert f'daemon.state_dir: cannot use "{scene.state_dir}": its file system is read-only' in done.stderr
        assert scene.starts("kimi") == 0
        disk.remount("rw")
        scene.start()
        scene.is_running("kimi")
        scene.end_inside(disk)
    return f"refused in one line, nothing started: {done.stderr.strip().replace(str(scene.root), '…')}"


def read_only_under_it(scene: Scene) -> str:
    """As a kernel does it that has met an error: every call that changes something fails from now on."""
    assert scene.world is not None
    scene.bad("stays")
    scene.bad("dies")
    scene.start()
    pid, victim = scene.is_running("stays")["pid"], scene.is_running("dies")["pid"]
    scene.world.fail_disk(errno.EROFS)
    os.kill(victim, signal.SIGKILL)
    until(lambda: scene.show("dies")["lifecycle"]["reason"].find("Read-only") >= 0, 20, "it says why it does not start")
    reason = scene.show("dies")["lifecycle"]["reason"]
    assert scene.show("stays")["pid"] == pid
    assert scene.starts("dies") == 1, "what could not be noted is not started"
    assert scene.ctl("stop", "stays").returncode == 0, "stopping needs no disk"
    scene.world.fail_disk(0)
    scene.is_running("dies", 60)
    assert scene.ctl("start", "stays", "--wait", "--timeout", "30s").returncode == 0
    return f"one served on, one waited ({reason.replace(str(scene.root), '…')}); both served when the disk was back"


def full(scene: Scene) -> str:
    """No byte left for state, journal, tally, history, evidence; then there is room again."""
    scene.bad("stays")
    scene.bad("dies")
    with Volume(scene.state_dir, "4m", scene.environment) as disk:
        scene.prefix = disk.prefix
        daemon = scene.start()
        pid, victim = scene.is_running("stays")["pid"], scene.is_running("dies")["pid"]
        disk.fill()
        os.kill(victim, signal.SIGKILL)
        until(lambda: full_is_told(scene, "dies"), 20, "it says why it does not start")
        assert scene.show("stays")["pid"] == pid
        assert scene.starts("dies") == 1, "what could not be noted is not started"
        until(lambda: "sglsup_journal_written 0" in scene.metrics(), 30, "the journal says that it cannot be written")
        assert "journal.db: database or disk is full" in scene.ctl("status").stderr
        daemon.kill()
        come_back(scene)
        assert scene.show("stays")["pid"] == pid, "adopted with a full disk as well"
        disk.empty()
        scene.is_running("dies", 60)
        until(lambda: "sglsup_journal_written 1" in scene.metrics(), 30, "what waited is in the journal")
        assert "sglsup_journal_rows_lost_total 0" in scene.metrics()
        scene.end_inside(disk)
    return "one served on through a daemon's death, one waited for room and said so; both served when there was room"


def full_is_told(scene: Scene, name: str) -> bool:
    reason = str(scene.show(name)["lifecycle"]["reason"])
    return "No space" in reason or "is full" in reason


def every_single_call(scene: Scene) -> str:
    """A server is restarted again and again, and each time the next call on the state directory fails."""
    assert scene.world is not None
    scene.bad(
        "kimi", restart={"backoff": "50ms", "backoff_max": "100ms", "jitter": 0.0, "budget": 1000, "same_cause": 1000}
    )
    scene.start()
    scene.is_running("kimi")
    tried = 0
    for which in range(1, ENOUGH_CALLS, STEP):
        number = (errno.ENOSPC, errno.EIO)[which // STEP % 2]
        scene.world.fail_disk_call(which, number)
        attempt = scene.show("kimi")["attempt"]
        scene.ctl("restart", "kimi")
        until(lambda attempt=attempt: scene.show("kimi")["attempt"] > attempt, 20, "another attempt")
        scene.is_running("kimi")
        tried = which
        if not scene.world.disk_failed:
            break
    scene.world.fail_disk(0)
    assert 10 < tried < ENOUGH_CALLS - STEP, f"{tried} calls"
    return f"{(tried - 1) // STEP} calls of a restart failed, each once, with ENOSPC or EIO: served every time"


def slow(scene: Scene) -> str:
    """Every call on the state directory takes a tenth of a second."""
    assert scene.world is not None
    scene.bad("kimi")
    scene.bad("other")
    scene.start()
    pids = {name: scene.is_running(name)["pid"] for name in ("kimi", "other")}
    scene.world.slow_disk(SLOW_CALL_MS)
    begun = time.monotonic()
    assert scene.ctl("stop", "kimi").returncode == 0
    assert scene.ctl("start", "kimi", "--wait", "--timeout", "60s").returncode == 0
    took_s = time.monotonic() - begun
    scene.world.slow_disk(0)
    assert scene.show("other")["pid"] == pids["other"]
    return f"{SLOW_CALL_MS} ms a call: a stop and a start took {took_s:.1f} s, nobody else was touched"


def hangs(scene: Scene) -> str:
    """A frozen file system: whatever would change it waits in the kernel, and no error comes."""
    scene.bad("stays")
    scene.bad("dies")
    with Volume.of_image(scene.state_dir, scene.root / "disk.img", scene.environment) as disk:
        scene.prefix = disk.prefix
        daemon = scene.start()
        pid, victim = scene.is_running("stays")["pid"], scene.is_running("dies")["pid"]
        before = scene.threads()
        disk.freeze()
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        until(lambda: "the disk has not answered" in why_not(scene, "dies"), 60, "it says why it does not start")
        reason = why_not(scene, "dies")
        assert scene.show("stays")["pid"] == pid
        assert scene.starts("dies") == 1, "what could not be noted is not started"
        assert "cannot write" in scene.ctl("status").stderr
        assert "sglsup_state_written 0" in scene.metrics()
        until(lambda: "sglsup_journal_written 0" in scene.metrics(), 20, "nor does the journal's")
        assert "journal.db: the disk has not answered for" in scene.ctl("status").stderr
        assert scene.ctl("stop", "stays").returncode == 0, "stopping needs no disk"
        assert "has not answered" in scene.ctl("upgrade").stderr, "other code would go by what is on disk"
        until(lambda: time.monotonic() - begun > HANG_S, 2 * HANG_S, "a loop that waits for the disk would be told")
        lag_s, more = scene.lag_s(), scene.threads() - before
        assert lag_s < HANG_S / 4, "no decision has waited for the disk"
        assert more <= THREADS_MORE, f"{more} threads more than before"
        disk.thaw()
        until(lambda: "sglsup_state_written 1" in scene.metrics(), 30, "all is written")
        until(lambda: "sglsup_journal_written 1" in scene.metrics(), 30, "so is the journal")
        assert "sglsup_journal_rows_lost_total 0" in scene.metrics()
        scene.is_running("dies", 60)
        assert scene.ctl("start", "stays", "--wait", "--timeout", "30s").returncode == 0
        disk.freeze()
        daemon.process.terminate()
        until(lambda: "not written: " in scene.said(), 60, "it gives up what cannot be written, and ends")
        disk.thaw()
        assert daemon.ended() == 0, "in order, all the same"
        scene.end_inside(disk)
    told = reason.replace(str(scene.root), "…")
    return f"one waited ({told}), one was stopped; lag {lag_s * 1000:.0f} ms and {more} threads more meanwhile; both served afterwards"


def why_not(scene: Scene, name: str) -> str:
    return str(scene.show(name)["lifecycle"]["reason"])


ROWS = (
    Row(
        "journal, record, tally, devices and history are garbage when a daemon comes back",
        "the living server is adopted, the garbage kept aside",
        everything_damaged_at_rest,
        quick=True,
    ),
    Row(
        "journal overwritten, truncated and deleted while the daemon runs",
        "every order is carried out, events are answered",
        journal_damaged_under_it,
    ),
    Row(
        "state directory read-only when the daemon starts",
        "refused in one line, nothing started",
        read_only_from_the_start,
        needs=mounts,
    ),
    Row(
        "state directory becomes read-only",
        "servers serve, stops work, a start that cannot be noted waits; all goes on when it is writable again",
        read_only_under_it,
        preload=True,
    ),
    Row(
        "disk of the state directory full, daemon killed meanwhile",
        "servers serve and are adopted, a start waits for room and says so",
        full,
        needs=mounts,
    ),
    Row(
        "each single call on the state directory fails once while a server is restarted",
        "the server serves in the end, no copy, no bug",
        every_single_call,
        preload=True,
    ),
    Row(
        "disk of the state directory hangs (frozen), twice; the daemon is asked to end meanwhile",
        "decisions go on, servers serve, stops work, a start waits and says so; what waits is written when the disk "
        "answers; the daemon's end is bounded",
        hangs,
        needs=freezes,
    ),
    Row("disk of the state directory slow", "every order is carried out, later", slow, preload=True),
)
