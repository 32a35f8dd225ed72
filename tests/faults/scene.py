"""The host of one row of the fault matrix: a daemon that is asked for its status all the time, and a reckoning at the end."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.site import free_ports
from supervisor.edge.journal import Entry
from supervisor.edge.journal.reader import JournalUnreadableError, read_all
from tests.e2e import api
from tests.e2e.gpus import GpuHost
from tests.e2e.host import SOLE, until
from tests.faults.volume import Volume
from tests.faults.world import World
from tests.nvml import FakeNvml

BAD_SERVER = str(Path(__file__).with_name("bad_server.py"))
ASK_EVERY_S = 0.1
LAG_EVERY = 10  # questions
ANSWER_LIMIT_S = 10.0
_LAG = re.compile(r"^sglsup_(?:loop_lag|decision_overdue)_seconds (\S+)$", re.M)


class Observer:
    """Asks for the status again and again, and keeps the worst answer. Use as a context manager."""

    def __init__(self, socket: str) -> None:
        self.took_s: list[float] = []
        self.worst_lag_s: float | None = None
        self.unanswered: list[str] = []
        self._socket = socket
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask_on_and_on, daemon=True)

    @property
    def worst_s(self) -> float:
        return max(self.took_s, default=0.0)

    @property
    def usual_s(self) -> float:
        return statistics.median(self.took_s or [0.0])

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2 * ANSWER_LIMIT_S)

    def _ask_on_and_on(self) -> None:
        for number in itertools.count(1):
            begun = time.monotonic()
            try:
                self._ask()
                if number % LAG_EVERY == 0:
                    self._measure_lag()
            except (ConnectionError, FileNotFoundError, http.client.HTTPException):
                pass  # no daemon at the moment: rows that kill it say so themselves
            except TimeoutError:
                self.unanswered.append(f"no status within {time.monotonic() - begun:.1f} s")
            if self._over.wait(ASK_EVERY_S):
                return

    def _ask(self) -> None:
        begun = time.monotonic()
        api.get(self._socket, "/v1/servers", ANSWER_LIMIT_S)
        self.took_s.append(time.monotonic() - begun)

    def _measure_lag(self) -> None:
        if (lag_s := lag_told(page(self._socket, "/metrics"))) > 0:  # 0: it has not measured any yet
            self.worst_lag_s = max(self.worst_lag_s or 0.0, lag_s)


def lag_told(metrics: str) -> float:
    return max(map(float, _LAG.findall(metrics)), default=0.0)


def page(socket: str, target: str) -> str:
    connection = api.UnixConnection(socket, ANSWER_LIMIT_S)
    try:
        connection.request("GET", target)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


class Scene(GpuHost):
    """A host as in the end-to-end tests, whose daemon is watched."""

    def __init__(self, nvml: FakeNvml, world: World | None, *, cgroups: str = "off") -> None:
        super().__init__(nvml, cgroups=cgroups)
        self.world = world
        self.journal = self.state_dir / "journal.db"
        self.observer = Observer(self.socket)
        self.bugs_expected = False
        self._rows: int | None = None
        self.journal_may_be_lost = False  # a row took it away from under the daemon

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | (self.world.environment if self.world else {})

    def client(self, *words: str) -> list[str]:
        """The client lives in the real world."""
        return ["env", "-u", "LD_PRELOAD", *super().client(*words)]

    def bad(self, name: str, health: str = "ok", *, manner: str = "", well: bool = False, **table: Any) -> None:
        """Add a server of `bad_server.py`; `well`: it answers well until `spoil`."""
        port = free_ports(1)[0]
        command = [sys.executable, "-S", "-E", BAD_SERVER, str(port), health]
        command += ["--manner", manner] if manner else []
        command += ["--well-until", str(self.root / f"{name}.bad")] if well else []
        self.add(name, [sys.executable, SOLE, str(self.root / f"{name}.lock"), *command], port=port, **table)

    def spoil(self, name: str) -> None:
        (self.root / f"{name}.bad").touch()

    # --- what rows ask -------------------------------------------------------------------------------------------

    def is_running(self, name: str, limit_s: float = 30.0) -> dict[str, Any]:
        """Wait until the server serves; its facets. Without events: the daemon may be another one by now."""
        return self.is_in(name, "running", limit_s)

    def is_in(self, name: str, state: str, limit_s: float = 30.0) -> dict[str, Any]:
        def shown() -> str:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return str(self.show(name)["lifecycle"]["value"])
            return ""

        try:
            until(lambda: shown() == state, limit_s, f"{name} is {state}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}: it is {self.show(name)['lifecycle']}\n{self.said()[-3000:]}") from None
        return self.show(name)

    def metrics(self) -> str:
        return self.page("/metrics")

    def lag_s(self) -> float:
        """How late its loop and its decisions are, as it says itself."""
        return lag_told(self.metrics())

    def threads(self) -> int:
        """Of the daemon, those that hang included."""
        assert self.daemon is not None
        return len(os.listdir(f"/proc/{self.daemon.pid}/task"))

    def page(self, target: str) -> str:
        return page(self.socket, target)

    def said_lines(self) -> int:
        return self.said().count("\n")

    def copies(self) -> str:
        """Every second copy that was ever started beside a living one; "" is the proof that none was."""
        return "".join(path.read_text() for path in self.root.glob("*.lock.collisions"))

    def bugs(self) -> list[str]:
        """What the daemon itself calls an error of its own, and every traceback that it printed."""
        return [
            line
            for line in self.said().splitlines()
            if '"event": "bug"' in line or '"event":"bug"' in line or "Traceback" in line
        ]

    @contextlib.contextmanager
    def unobserved(self) -> Iterator[None]:
        """For a while in which the daemon cannot answer, and nobody expects it to."""
        self.observer.__exit__()
        try:
            yield
        finally:
            before = self.observer
            self.observer = Observer(self.socket)
            self.observer.took_s, self.observer.unanswered = before.took_s, before.unanswered
            self.observer.worst_lag_s = before.worst_lag_s
            self.observer.__enter__()

    # --- the reckoning -------------------------------------------------------------------------------------------

    def reckon(self) -> int:
        """End the daemon and prove what every row must keep. How many rows its journals have."""
        self.observer.__exit__()
        if self.daemon is not None:
            status = self.daemon.end()
            assert status in (0, -9), f"the daemon ended with {status}:\n{self.said()[-3000:]}"
        assert self.copies() == "", "a second copy was started"
        assert self.bugs_expected or not (bugs := self.bugs()), "\n".join([*bugs, self.said()[-6000:]])
        assert not self.observer.unanswered, self.observer.unanswered
        if self._rows is None:
            self._rows = whole(self.journal) if self.journal.exists() or not self.journal_may_be_lost else 0
        return self._rows

    def end_inside(self, disk: Volume | None) -> None:
        """End the daemon before its disk goes, and count the journal that is on it."""
        assert self.daemon is not None
        self.daemon.end()
        if disk is None:
            return
        outside = self.root / "journal.db"  # SQLite would follow the way inside back to where we are
        for ending in ("", "-wal"):
            if (kept := disk.inside / f"journal.db{ending}").exists():
                shutil.copy(kept, f"{outside}{ending}")
        self._rows = whole(outside)


def whole(path: Path) -> int:
    """Prove that a journal can be read and that no row is missing that it does not count as lost; its rows."""
    try:
        rows = list(read_all(str(path)))
    except JournalUnreadableError as problem:
        raise AssertionError(f"{path} cannot be read: {problem}") from None
    missing = sum(later.id - row.id - 1 for row, later in itertools.pairwise(rows))
    lost = lost_rows(rows)
    assert missing <= lost, f"{missing} rows are missing, {lost} are said to be"
    return len(rows)


def lost_rows(rows: list[Entry]) -> int:
    return sum(int(json.loads(row.payload)["lost"]) for row in rows if row.kind == "lost")
