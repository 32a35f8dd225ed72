"""What goes wrong with a server of two ranks: while it serves, while it starts, and while no daemon runs."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil

from tests.e2e.host import until
from tests.gpu_real.engine import TOKENS, Stream, child_of, children_of, scheduler_of
from tests.gpu_real.night import Nights, since_deed

SERVING, STARTING = "pair", "halt"
SPAWNED_S = 2.0  # the ranks import: nobody has told them yet to die with their parent
GONE_LIMIT_S = 30.0
SOME_TOKENS = 100
STALL_S = 12.0  # of a phase of the server that starts: silences of a healthy one are 5 s at most

SERVING_TABLE: dict[str, Any] = {"serving": {"stopped": "8s"}}
STARTING_TABLE: dict[str, Any] = {  # as if its ranks only hung: nobody looks whether they are stopped
    "serving": {"stopped": "0s"},
    "deadlines": {phase: {"stall": f"{STALL_S:.0f}s", "limit": "3m"} for phase in ("weights", "verify-graph")},
}


def first_start(nights: Nights) -> None:
    since = nights.start(SERVING)
    ready = nights.healthy(SERVING, since)
    rows = nights.events(SERVING, since, time.time())
    nights.tell("first start", healthy=ready["reason"], capacity=capacity(nights), events=rows, gpus=gpus(nights))


def rank_killed(nights: Nights) -> None:
    nights.ready(SERVING)
    stream = Stream(nights.host.show(SERVING)["port"])
    until(lambda: stream.tokens > SOME_TOKENS, 30, "the answer is under way")
    victim = scheduler_of(nights.pid(SERVING), "TP1")
    what = f"SIGKILL of scheduler TP1 (pid {victim}) while requests stream"
    nights.harm("1 a rank killed", SERVING, what, lambda: os.kill(victim, signal.SIGKILL))
    nights.tell("1 the client", tokens=[stream.asked, stream.tokens], ended=stream.ended, problem=stream.problem)


def rank_stopped(nights: Nights) -> None:
    nights.ready(SERVING)
    victim = scheduler_of(nights.pid(SERVING), "TP1")
    what = f"SIGSTOP of scheduler TP1 (pid {victim}) while requests stream; 8 s are allowed"
    nights.harm("2 a rank stopped", SERVING, what, lambda: os.kill(victim, signal.SIGSTOP))


def detokenizer_killed(nights: Nights) -> None:
    nights.ready(SERVING)
    victim = child_of(nights.pid(SERVING), b"sglang::detokenizer")
    what = f"SIGKILL of the detokenizer (pid {victim}) while requests stream"
    act = lambda: os.kill(victim, signal.SIGKILL)  # noqa: E731
    nights.harm("3 the detokenizer killed", SERVING, what, act, again=False)


def leader_killed_young(nights: Nights) -> None:
    """Of the start that follows the night before: its ranks have just been spawned, and import."""
    show = nights.host.show(SERVING)
    root, attempt = show["pid"], show["attempt"]
    until(lambda: len(importing(root)) > 1, 60, "the leader has spawned its ranks")
    time.sleep(SPAWNED_S)
    young = importing(root)
    what = f"SIGKILL of the leader (pid {root}) {SPAWNED_S:.0f} s after it spawned {len(young)} children"
    since, done = nights.now(), time.time()
    os.kill(root, signal.SIGKILL)
    nights.account("10 the leader killed young", SERVING, what, since, attempt, done)
    nights.tell(
        "10 the next start", capacity=capacity(nights), orphans_alive=[one for one in young if psutil.pid_exists(one)]
    )


def importing(root: int) -> list[int]:
    return [pid for pid, title in children_of(root) if b"multiprocessing" in title and b"spawn" in title]


def daemon_killed(nights: Nights) -> None:
    """Twice: with the engine well, and with the engine dying while nobody looks."""
    nights.ready(SERVING)
    host, before = nights.host, nights.host.show(SERVING)
    stream, mark = Stream(before["port"]), nights.now()
    kill_daemon(nights)
    time.sleep(2.0)
    began = time.time()
    host.start()
    until(lambda: host.show(SERVING)["lifecycle"]["value"] == "running", 30, "the server is adopted")
    adopted_s, after = round(time.time() - began, 2), host.show(SERVING)
    stream.join(90)
    nights.tell(
        "4 the daemon killed",
        what="SIGKILL of the daemon while a request streams; another one 2 s later",
        adopted_after_s=adopted_s,
        same_pid=after["pid"] == before["pid"],
        same_attempt=after["attempt"] == before["attempt"],
        tokens=[TOKENS, stream.tokens],
        ended=stream.ended,
        problem=stream.problem,
        verdict=after["verdict"],
        events=nights.events(SERVING, mark, began),
    )
    died_unseen(nights, after["pid"])


def died_unseen(nights: Nights, root: int) -> None:
    attempt, mark = nights.host.show(SERVING)["attempt"], nights.now()
    victim = scheduler_of(root, "TP1")
    kill_daemon(nights)
    os.kill(victim, signal.SIGKILL)
    until(lambda: not alive(root), GONE_LIMIT_S, "the leader has ended")
    time.sleep(1.0)
    done = time.time()
    nights.host.start()
    what = "SIGKILL of the daemon, then of scheduler TP1; a new daemon 1 s after the leader's end"
    nights.account("4 died while no daemon ran", SERVING, what, mark, attempt, done)


def kill_daemon(nights: Nights) -> None:
    assert nights.host.daemon is not None
    nights.host.daemon.kill()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def rank_hangs_in_weights(nights: Nights) -> None:
    hang(nights, nights.start(STARTING), "weights", "5 a rank hangs in the load", again=False)


def rank_hangs_in_capture(nights: Nights) -> None:
    """Of the start that follows the night before, if there was one."""
    follows = nights.host.show(STARTING)["attempt"] > 0
    since = nights.now() if follows else nights.start(STARTING)
    hang(nights, since, "verify-graph", "5 a rank hangs in a capture", again=True)


def hang(nights: Nights, since: int, phase: str, night: str, *, again: bool) -> None:
    entered = nights.first(STARTING, "phase", (phase,), since, 90)
    victim = scheduler_of(nights.pid(STARTING), "TP1")
    mark, done = nights.now(), time.time()
    os.kill(victim, signal.SIGSTOP)
    show = nights.host.show(STARTING)
    what = f"scheduler TP1 (pid {victim}) stands still {since_deed(entered, done):+.2f} s from the entry of {phase}; {STALL_S:.0f} s allowed"
    ranks = [f"{rank['rank']} {rank['phase']}" for rank in show["start"]["ranks"]]
    nights.tell(f"{night}: as it began", ranks=ranks)
    nights.account(night, STARTING, what, mark, show["attempt"], done, again=again)


def capacity(nights: Nights) -> int | None:
    tokens: int | None = nights.host.show(SERVING)["capacity_tokens"]
    return tokens


def gpus(nights: Nights) -> list[str]:
    return nights.host.ctl("gpus").stdout.splitlines()


WHILE_SERVING = [
    (70.0, first_start),
    (80.0, rank_killed),
    (90.0, rank_stopped),
    (40.0, detokenizer_killed),
    (90.0, leader_killed_young),
    (100.0, daemon_killed),
]
WHILE_STARTING = [(60.0, rank_hangs_in_weights), (130.0, rank_hangs_in_capture)]
