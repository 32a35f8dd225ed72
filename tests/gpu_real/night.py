"""One night: something is done to the engine, and what the daemon says and does about it is put into one account."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from tests.e2e import api
from tests.e2e.gpus import GpuHost
from tests.e2e.host import until
from tests.gpu_real.witness import Witness

NAMED = ("dead", "stalled")
AFTER = ("starting", "stopped", "fatal", "quarantined")  # what can follow an attempt, pauses aside
NAMED_LIMIT_S = 120.0
FOLLOW_LIMIT_S = 60.0
START_LIMIT_S = 180.0
_NOT_SEEN = (AssertionError, SystemExit, OSError, LookupError, TypeError, ValueError, HTTPException, SubprocessError)


class Nights:
    """The daemon, the witness, and what has been told."""

    def __init__(self, host: GpuHost, witness: Witness, limit_s: float, only: Collection[str] = ()) -> None:
        self.host, self.witness, self._only = host, witness, only
        self.told: list[dict[str, Any]] = []
        self._ends = time.monotonic() + limit_s
        self._one_at_a_time = threading.Lock()

    def tell(self, night: str, **facts: Any) -> None:
        """Print it at once: who runs out of time has told the rest."""
        row = {"night": night, **facts}
        with self._one_at_a_time:
            self.told.append(row)
            print(json.dumps(row), flush=True)

    def go_through(self, stories: list[tuple[float, Callable[[Nights], None]]]) -> None:
        """One after another, as far as the time reaches; what one does not get to see does not end the next."""
        for needs_s, story in stories:
            if self._only and story.__name__ not in self._only:
                continue
            if time.monotonic() + needs_s > self._ends:
                self.tell(story.__name__, skipped=f"less than {needs_s:.0f} s are left")
                continue
            try:
                story(self)
            except _NOT_SEEN as problem:
                self.tell(story.__name__, not_seen=f"{type(problem).__name__}: {problem}"[:1500])

    # --- what a story is made of ---------------------------------------------------------------------------------

    def first(self, name: str, facet: str, values: tuple[str, ...], since: int, limit_s: float) -> dict[str, Any]:
        """The first event after `since` by which the facet got one of the values."""
        try:
            for event in api.follow(self.host.socket, since, limit_s):
                if event["server"] == name and event["facet"] == facet and event["after"] in values:
                    return event
        except TimeoutError:
            pass
        raise AssertionError(f"{name}: {facet} did not become {' or '.join(values)} within {limit_s:.0f} s")

    def now(self) -> int:
        """The newest event."""
        last: int = api.get(self.host.socket, "/v1/events?since=0&limit=1")["last"]
        while True:
            further: int = api.get(self.host.socket, f"/v1/events?since={last}&limit=1000")["last"]
            if further == last:
                return last
            last = further

    def pid(self, name: str) -> int:
        pid: int = self.host.show(name)["pid"]
        return pid

    def start(self, name: str, *options: str) -> int:
        """Ask for it; the event from which on its story runs."""
        since = self.now()
        said = self.host.ctl("start", *options, name)
        assert said.returncode == 0, said.stdout + said.stderr
        return since

    def healthy(self, name: str, since: int, limit_s: float = START_LIMIT_S) -> dict[str, Any]:
        return self.first(name, "lifecycle", ("running",), since, limit_s)

    def ready(self, name: str) -> None:
        """Whatever the story before has left."""
        until(lambda: bool(self.host.show(name)["healthy"]), START_LIMIT_S, f"{name} is healthy")

    def harm(self, night: str, name: str, what: str, act: Callable[[], None], *, again: bool = True) -> None:
        """Do it, and tell what followed until the next start is healthy (or, without `again`, spawned)."""
        since, attempt = self.now(), self.host.show(name)["attempt"]
        done = time.time()
        act()
        self.account(night, name, what, since, attempt, done, again=again)

    def account(
        self, night: str, name: str, what: str, since: int, attempt: int, done: float, *, again: bool = True
    ) -> None:
        """From the deed to what followed it."""
        named = self.first(name, "verdict", NAMED, since, NAMED_LIMIT_S)
        emptied = self.first(name, "lifecycle", ("reclaiming",), since, FOLLOW_LIMIT_S)
        left = self.host.processes(name, attempt=attempt)
        follows = self.first(name, "lifecycle", AFTER, emptied["id"], FOLLOW_LIMIT_S)
        spawned, held = moment(follows), self.witness.used()
        free = self.witness.idle_from(done)
        facts = {
            "what": what,
            "named after s": since_deed(named, done),
            "named": f"{named['after']}: {named['reason']}",
            "held before, MiB": self.witness.held_before(done),
            "tree empty after s": since_deed(emptied, done),
            "left of it then": left,
            "memory idle after s (witness)": None if free is None else round(free - done, 2),
            "followed by": f"{follows['after']}: {follows['reason']}",
            "followed after s": round(spawned - done, 2),
            "held when it followed, MiB": held,
            "GPU use while it lasted, %": self.witness.busy_between(done + 1, moment(emptied) - 1),
        }
        if again and follows["after"] == "starting":
            ready = self.healthy(name, follows["id"])
            facts["healthy again"] = ready["reason"]
        self.tell(night, **facts, **self.word(name, attempt), events=self.events(name, since, done))

    def word(self, name: str, attempt: int) -> dict[str, Any]:
        """What the daemon says of the attempt afterwards."""
        story = api.get(self.host.socket, f"/v1/servers/{name}/story")
        incident = next((one for one in story["incidents"] if one["attempt"] == attempt), None)
        why = self.host.ctl("why", name, "--attempt", str(attempt))
        path = Path(incident["evidence_path"]) if incident and incident["evidence_path"] else None
        return {
            "incident": incident,
            "why": (why.stdout + why.stderr).splitlines(),
            "evidence": sorted(one.name for one in path.iterdir()) if path and path.is_dir() else [],
        }

    def events(self, name: str, since: int, done: float) -> list[str]:
        """Everything that the journal has of it since then, in seconds from the deed."""
        rows = api.get(self.host.socket, f"/v1/events?since={since}&limit=1000&server={name}")["events"]
        return [
            f"{since_deed(row, done):+.2f} {row['facet']} {row['before']}->{row['after']} #{row['attempt']}: {row['reason']}"
            for row in rows
        ][:80]


def moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def since_deed(event: dict[str, Any], done: float) -> float:
    return round(moment(event) - done, 2)
