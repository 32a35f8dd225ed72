"""Plays a history of moves on a fleet, and makes a failing one as short as it can be."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from pathlib import Path

import msgspec

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.rolling import RollKind
from tests.fleet.fleet import Fleet, Seat, matched
from tests.fleet.moves import PASSING_S, Kind, Move, moves

LINES = (
    "[2026-11-29 10:00:01 TP0] Init torch distributed begin.",
    "[2026-11-29 10:00:02 TP0] Load weight begin. avail mem=78.00 GB",
    "[2026-11-29 10:00:09 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.00 GB",
    "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]",
    "[2026-11-29 10:00:11 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.92 GB",
    "[2026-11-29 10:00:40] The server is fired up and ready to roll!",
    "[2026-11-29 10:00:41] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    "[2026-11-29 10:00:42 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
    "OSError: no file named config.json found in directory /m/kimi.",
)
_IN_MEMORY = next(path for path in (Path("/dev/shm"), Path(tempfile.gettempdir())) if os.access(path, os.W_OK))
_CODES = (0, 1, -9, -11, -15, None)
_OUTCOMES = (e.ProbeOutcome.OK, e.ProbeOutcome.OK, e.ProbeOutcome.OK, *e.ProbeOutcome)
_ERRORS = (e.SpawnFailed(0, "no", True), e.SpawnFailed(0, "later", False))
_SILENCED = (a.Probe, a.KeepEvidence, a.CheckDevices, a.Spawn, a.KillTree)
_XIDS = (79, 31, 48, 63)


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, where, and the history that leads there."""

    seed: int
    what: str
    where: str
    moves: list[Move]

    def __str__(self) -> str:
        listed = "\n".join(f"  {number}: {move}" for number, move in enumerate(self.moves))
        return f"seed {self.seed}: {self.what}\n{listed}\n{self.where}"


def play(seed: int, history: list[Move], *, thorough: bool = True) -> Failure | None:
    """The whole history, then the end of all servers. None when every invariant held."""
    folder = _IN_MEMORY / f"sglsup-fleet-{os.getpid()}"  # made by who writes to it
    try:
        return _play(seed, history, folder, thorough=thorough)
    finally:
        if folder.exists():
            shutil.rmtree(folder)


def _play(seed: int, history: list[Move], folder: Path, *, thorough: bool) -> Failure | None:
    fleet: Fleet | None = None
    done: list[Move] = []
    try:
        fleet = Fleet(seed, folder)
        for move in history:
            done.append(move)
            _make(fleet, move)
            fleet.turn()
        if thorough:
            fleet.all_start()
        fleet.come_to_rest()
        if thorough:
            fleet.replay()
    except Exception as problem:  # noqa: BLE001 - whatever the product raises is what is looked for
        told = fleet.last_words() if fleet is not None else ""
        return Failure(seed, f"{type(problem).__name__}: {problem}", f"{told}\n{traceback.format_exc(limit=-4)}", done)
    finally:
        if fleet is not None:
            fleet.shell.end()
    return None


def search(seed: int, length: int, *, thorough: bool = True) -> Failure | None:
    """One random history; a failing one comes back shortened."""
    failure = play(seed, moves(seed, length), thorough=thorough)
    return shorten(failure) if failure else None


def shorten(failure: Failure) -> Failure:
    """Leave out whatever the same failure does not need."""
    size = max(1, len(failure.moves) // 2)
    while size:
        at = 0
        while at < len(failure.moves):
            fewer = failure.moves[:at] + failure.moves[at + size :]
            other = play(failure.seed, fewer)
            if other is not None and other.what == failure.what:
                failure = other
            else:
                at += size
        size //= 2
    return failure


def _make(fleet: Fleet, move: Move) -> None:  # noqa: C901 - one flat table of moves
    seat = fleet.seats[move.server % len(fleet.seats)]
    number = move.number
    match move.kind:
        case Kind.TIME:
            fleet.until(fleet.now + PASSING_S[number % len(PASSING_S)])
        case Kind.AWAY:
            fleet.now += (3.0, 100.0)[number % 2]
        case Kind.DEATH:
            fleet.daemon_dies_after((0, 0, 1, 2, 3, 5, 8, 20)[number % 8])
            fleet.until(fleet.now)
        case Kind.LOST_NOTES:
            fleet.lose((f"record {seat.name}", f"note {seat.name}", "devices")[number % 3])
            fleet.daemon_dies_after(0)
        case Kind.FEED:
            fleet.blind = bool(number % 2)
        case Kind.NEIGHBOUR:
            fleet.host.strangers ^= {number % fleet.host.gpus}
        case Kind.LEFTOVER:
            fleet.host.leftover_s = (0.3, 3.0, 40.0, 500.0)[number % 4]
        case Kind.XID:
            fleet.xid(move.server, _XIDS[number % len(_XIDS)])
        case Kind.RELEASE:
            fleet.release_gpu(number)
        case Kind.TWICE:
            fleet.twice = bool(number % 2)
            fleet.overseer.trusts = False
        case Kind.SILENCE:
            seat.silent ^= {_SILENCED[number % len(_SILENCED)]}
        case Kind.UNSPAWNABLE:
            seat.spawn_errors = [_ERRORS[number % len(_ERRORS)]] * (1 + number % 4)
        case Kind.PACE:
            fleet.host.ready_after_s = (5.0, 30.0, 5.0, None)[number % 4]
        case Kind.ROUTER:
            fleet.gateway.reachable = bool(number % 2)
        case Kind.FORGETFUL:
            fleet.gateway.listed.clear()
        case Kind.GROUP | Kind.ROLL | Kind.UPDATE | Kind.CANCEL | Kind.UPGRADE:
            _ask_daemon(fleet, move)
        case Kind.START | Kind.FORCE | Kind.STOP | Kind.DRAIN | Kind.RESTART | Kind.SIGNAL | Kind.PAUSE | Kind.RESUME:
            fleet.shell.request(seat.name, _request(move))
        case _:
            _befall(fleet, seat, move)


def _ask_daemon(fleet: Fleet, move: Move) -> None:
    """What people ask of several servers at once, or of the daemon itself."""
    number, names = move.number, [seat.name for seat in fleet.seats]
    group = fleet.file.groups.get("pair")
    chosen = list(group.members) if group is not None and number % 3 == 0 else names[number % len(names) :]
    match move.kind:
        case Kind.GROUP if number % 3 == 0:
            fleet.shell.request_group(tuple(chosen), e.StartRequested("test"))
        case Kind.GROUP if number % 3 == 1:
            fleet.shell.request_group(tuple(reversed(chosen)), e.StopRequested("test"))
        case Kind.GROUP:
            fleet.shell.request_group(tuple(reversed(chosen)), e.RestartRequested("test"))
        case Kind.ROLL:
            fleet.shell.roll(RollKind.RESTART, chosen, (0.0, 30.0)[number % 2])
        case Kind.UPDATE:
            fleet.edit_file(names[move.server % len(names) :], good=number % 2 == 0)
            fleet.shell.roll(RollKind.UPDATE, chosen, (0.0, 30.0)[number // 2 % 2])
        case Kind.CANCEL:
            fleet.shell.cancel()
        case _:
            fleet.shell.upgrade()


def _request(move: Move) -> e.AnyEvent:
    match move.kind:
        case Kind.START:
            return e.StartRequested("test")
        case Kind.FORCE:
            return e.StartRequested("test", force=True)
        case Kind.STOP:
            return e.StopRequested("test")
        case Kind.DRAIN:
            return e.StopRequested("test", grace_s=(0.0, 300.0)[move.number % 2])
        case Kind.RESTART:
            return e.RestartRequested("test")
        case Kind.SIGNAL:
            return e.SignalRequested("test", (1, 15, 9)[move.number % 3])
        case Kind.PAUSE:
            return e.PauseRequested("test")
        case _:
            return e.ResumeRequested("test")


def _befall(fleet: Fleet, seat: Seat, move: Move) -> None:
    """What happens to the processes of a server, while it has any."""
    tree, number = fleet.tree(seat), move.number
    if move.kind is Kind.LATE:
        _late(fleet, seat)
    if tree is None:
        return
    heard = fleet.hears(seat, tree)
    match move.kind:
        case Kind.WRITE:
            text = LINES[number % len(LINES)]
            tree.written.append((fleet.now, text))
            for event in matched(text) if heard else ():
                fleet.tell(seat, msgspec.structs.replace(event, attempt=tree.attempt))
        case Kind.ANSWER:
            tree.health = _OUTCOMES[number % len(_OUTCOMES)]
        case Kind.EXIT:
            fleet.leader_ends(tree, _CODES[number % len(_CODES)], whole=number % 2 == 0)
        case Kind.DEAF:
            tree.deaf = bool(number % 2)
        case Kind.STUCK:
            tree.stuck = bool(number % 2)
        case _ if heard:
            fleet.tell(seat, _news(tree.attempt, move))
        case _:
            pass


def _news(attempt: int, move: Move) -> e.AnyEvent:
    number = move.number
    match move.kind:
        case Kind.RANK_DIES:
            return e.RoleDied(attempt, 99, "scheduler", "TP1", with_leader=number % 5 == 0)
        case Kind.OOM:
            return e.HostOomKilled(attempt, (0, 99)[number % 2], "python", "kernel log")
        case Kind.BLIND_LOG:
            return e.LogUnreadable(attempt, "gone")
        case Kind.STANDSTILL:
            still = e.ProcessSample(99, "RTDS"[number % 4], "scheduler", "TP0")
            return e.TreeSampled(attempt, 1.0, 0, 0, (still,))
        case Kind.COUNTERS:
            return e.EngineSampled(attempt, float(number % 3), 5.0, float(number % 2), 0.0)
        case Kind.CANARY:
            return e.CanaryAnswered(attempt, (True, False, None)[number % 3])
        case _:
            return e.DeviceMemorySampled(attempt, number << 20)


def _late(fleet: Fleet, seat: Seat) -> None:
    """Whatever comes of an attempt that is over changes nothing."""
    old = seat.watch.number - 1
    for event in (e.Exited(old, 0), e.TreeEmptied(old), e.Spawned(old, 1), e.Probed(old, e.ProbeOutcome.OK)):
        fleet.tell(seat, event)
