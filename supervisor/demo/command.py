"""The command `sglsup demo`: sets the stage, starts the keeper, follows the daemon over its socket, sums up."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from supervisor.api import wire
from supervisor.cli.connection import Client, UnreachableError
from supervisor.config import DEFAULT_ENGINE
from supervisor.demo import keeper as keeping
from supervisor.demo.narrator import Narrator, narrator
from supervisor.demo.stage import DRAFTED, NOTES, PLAIN, SPEED, STALL_PHASE, Stage, make_stage
from supervisor.demo.story import Look, Observation, Story
from supervisor.edge.evidence.odd import odd_rank
from supervisor.edge.process import MARKER_NAME, scan
from supervisor.profile import load_profile

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
LOOK_EVERY_S = 0.1
DAEMON_LIMIT_S = 30.0
STORY_LIMIT_S = 120.0
SILENCE_LIMIT_S = 10.0
KEEPER_LIMIT_S = keeping.STOP_LIMIT_S + keeping.SWEEP_LIMIT_S + 10.0
_EVENTS_MAX = 1000


class FailedError(Exception):
    """The demo did not show what it promises; the text is the line that says why."""


class EndedError(BaseException):
    """A signal asks the demo to end: as for KeyboardInterrupt, nothing on the way may take it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: Sequence[str]) -> int:
    """Run the demo. 0: all happened as expected; 1: something did not, one line says what; 130: Ctrl-C."""
    options = parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        return _demo(options)
    except KeyboardInterrupt:
        sys.stdout.write("\ninterrupted; everything that the demo started is gone\n")
        return EXIT_INTERRUPTED
    except EndedError as ended:
        return 128 + ended.number
    except (FailedError, OSError) as problem:
        sys.stdout.flush()
        sys.stderr.write(f"sglsup demo: failed: {problem}\n")
        return EXIT_FAILED


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(
        prog="sglsup demo",
        description="A daemon and two servers of the bundled fake engine; one stalls, is explained, killed and "
        "restarted. Needs no GPU and no root, and leaves nothing behind.",
        epilog="Exit status: 0 when all happened as expected, 1 when something did not (one line says what), "
        "130 on Ctrl-C.",
        allow_abbrev=False,
    )
    result.add_argument(
        "--serve", action="store_true", help="keep it running at the end, to try sglctl; Ctrl-C ends it"
    )
    result.add_argument("--keep", action="store_true", help="keep the directory with logs, journal and evidence")
    result.add_argument(
        "--speed", type=float, default=SPEED, metavar="X", help=f"pace of the fake engine, default {SPEED:g}"
    )
    return result


def _end(number: int, _: FrameType | None) -> None:
    raise EndedError(number)


def _demo(options: argparse.Namespace) -> int:
    stage = make_stage(options.speed)
    with _kept(stage, options.keep) as alive:
        voice = narrator()
        began = time.time()
        story = Story(began, _default_stall_s())
        try:
            _opening(voice, stage)
            _follow(story, voice, stage, alive)
        finally:
            voice.close()
        if story.problems:
            raise FailedError("; ".join(dict.fromkeys(story.problems)))
        _sum_up(voice, story, time.time() - began)
        _what_next(voice, stage, serving=options.serve)
        if options.serve:
            _serve(alive)
    if options.keep:
        voice.say(f"kept: {stage.directory}")
    return 0


def _default_stall_s() -> float:
    return next(rule.stall_s for rule in load_profile(DEFAULT_ENGINE).phases if rule.name == STALL_PHASE)


# --- the keeper ------------------------------------------------------------------------------------------------------


@contextmanager
def _kept(stage: Stage, keep: bool) -> Iterator[Callable[[], None]]:
    """The daemon runs while the context lasts. Yields a check that raises FailedError when it does not."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisor.demo.keeper", str(stage.directory), *(["--keep"] if keep else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is ours; the keeper ends when we do
        )
    except BaseException:
        shutil.rmtree(stage.directory, ignore_errors=True)
        raise

    def alive() -> None:
        if process.poll() is not None:
            raise FailedError(_said(process))

    try:
        yield alive
    finally:
        _finish(process)
    if process.returncode != 0:
        raise FailedError(_said(process))


def _finish(process: subprocess.Popen[str]) -> None:
    """However impatient the user: the keeper cleans up within its own limits."""
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert process.stdin is not None  # noqa: S101 - asked for above
    process.stdin.close()
    try:
        process.wait(KEEPER_LIMIT_S)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)


def _said(process: subprocess.Popen[str]) -> str:
    text = process.stderr.read() if process.stderr else ""
    return "; ".join(text.splitlines()) or f"the keeper ended with status {process.returncode}"


# --- following -------------------------------------------------------------------------------------------------------


def _opening(voice: Narrator, stage: Stage) -> None:
    voice.say("sglang-supervisor demo: two servers of the bundled fake engine, no GPU needed", "bold")
    voice.say(f"{PLAIN} ({NOTES[PLAIN]}) is well; {DRAFTED} ({NOTES[DRAFTED]}) will hang once while it starts.")
    voice.say(f"everything is in {stage.directory}")
    voice.say()


def _follow(story: Story, voice: Narrator, stage: Stage, alive: Callable[[], None]) -> None:
    """Ask the daemon ten times a second until the story is over."""
    client = Client(str(stage.socket))
    until = time.monotonic() + DAEMON_LIMIT_S
    last, answered, looked, look = 0, 0.0, "", Look(0, 0)
    while not story.done:
        alive()
        if time.monotonic() > until:
            raise FailedError(f"not done in time; {_standing(client)}")
        try:
            seen, last = _ask(client, last)
        except UnreachableError:
            if last and time.monotonic() - answered > SILENCE_LIMIT_S:
                raise FailedError("the daemon does not answer any more") from None
            time.sleep(LOOK_EVERY_S)  # it is starting; or it has died, which the keeper tells when it has swept up
            continue
        answered = time.monotonic()
        if not looked:
            until = time.monotonic() + STORY_LIMIT_S
        if (state := _state(seen)) != looked:
            looked, look = state, _look(stage, seen)
        voice.tell(story.observe(seen, look))
        voice.show(seen.servers)
        time.sleep(LOOK_EVERY_S)


def _ask(client: Client, last: int) -> tuple[Observation, int]:
    """Events first: the snapshots are then as new as the newest event, or newer."""
    news = msgspec.convert(client.get(f"/v1/events?since={last}&limit={_EVENTS_MAX}"), wire.Events)
    servers = msgspec.convert(client.get("/v1/servers"), wire.Servers)
    return Observation(servers.at, servers.servers, news.events), news.last


def _standing(client: Client) -> str:
    try:
        servers = msgspec.convert(client.get("/v1/servers"), wire.Servers).servers
    except UnreachableError as problem:
        return str(problem)
    return "; ".join(f"{server.name} is {server.state} ({server.description})" for server in servers)


def _state(seen: Observation) -> str:
    """When this changes another look at the processes is worth its price: it reads all of /proc."""
    return next(
        f"{server.attempt} {server.lifecycle.value} {server.start.phase if server.start else ''} {server.evidence_path}"
        for server in seen.servers
        if server.name == DRAFTED
    )


def _look(stage: Stage, seen: Observation) -> Look:
    ours, first = f"{keeping.MARK}={stage.directory}".encode(), f"{MARKER_NAME}={DRAFTED}:1:".encode()
    alive = [process.pid for process in scan.all_processes() if process.alive]
    pids = [pid for pid in alive if scan.carries_marker(pid, ours) and scan.carries_marker(pid, first)]
    bundle = next(server.evidence_path for server in seen.servers if server.name == DRAFTED)
    files = sorted(Path(bundle).iterdir()) if bundle else []
    return Look(
        processes=len(pids),
        memory_bytes=sum(_memory_bytes(stage.memory / str(pid)) for pid in pids),
        evidence=tuple(path.name for path in files),
        odd_one_out=odd_rank(bundle) if bundle else "",
    )


def _memory_bytes(note: Path) -> int:
    try:
        held: dict[str, Any] = json.loads(note.read_text())
    except (FileNotFoundError, ValueError):  # no rank, or it writes just now
        return 0
    return int(held["bytes"])


# --- the end ---------------------------------------------------------------------------------------------------------


def _sum_up(voice: Narrator, story: Story, took_s: float) -> None:
    voice.say()
    voice.say(f"All as expected, in {took_s:.0f} s:", "bold green")
    for what, how_long in story.summary():
        voice.say(f"  {what:<15}{how_long}")


def _what_next(voice: Narrator, stage: Stage, *, serving: bool) -> None:
    control = f"{_tool('sglctl')} -s {stage.socket}"
    voice.say()
    if serving:
        voice.say("It goes on running. In another terminal:", "bold")
        for words in ("status", f"why {DRAFTED}", f"events {DRAFTED}", f"tail -f {PLAIN}", f"restart {PLAIN} --wait"):
            voice.say(f"  {control} {words}")
        voice.say("Ctrl-C here stops the servers and removes everything.")
        return
    voice.say("Next:", "bold")
    voice.say(f"  {_tool('sglsup')} demo --serve   the same, left running to try sglctl")
    voice.say(f"  {_tool('sglsup')} run -- CMD     one server of your own, no configuration")


def _tool(name: str) -> str:
    """The command as the visitor can type it."""
    path = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(path):
        return name
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _serve(alive: Callable[[], None]) -> None:
    """Until Ctrl-C, which is the regular end here."""
    try:
        while True:
            alive()
            time.sleep(0.5)  # as long as the visitor likes
    except KeyboardInterrupt:
        return
