"""What may befall a host of servers: one history is a list of such moves, made from a seed."""

from __future__ import annotations

import enum
from random import Random

import msgspec


class Kind(enum.StrEnum):
    """A move by what it is about. `number` chooses among its variants."""

    START = "start"
    FORCE = "start by force"
    STOP = "stop"
    DRAIN = "drain"
    RESTART = "restart"
    SIGNAL = "signal"
    PAUSE = "pause"
    RESUME = "resume"
    WRITE = "write a line"
    ANSWER = "answer probes"
    EXIT = "leader exits"
    RANK_DIES = "rank dies"
    OOM = "killed for memory"
    DEAF = "ignore TERM"
    STUCK = "stuck in the kernel"
    UNSPAWNABLE = "cannot be spawned"
    BLIND_LOG = "log unreadable"
    STANDSTILL = "processes stand still"
    COUNTERS = "engine's counters"
    CANARY = "canary answered"
    FEED = "GPU feed blind or not"
    NEIGHBOUR = "foreign memory"
    LEFTOVER = "memory of the dead stays"
    XID = "Xid"
    RELEASE = "release GPU"
    SILENCE = "an edge answers no more"
    TWICE = "answers come twice"
    LATE = "news of an old attempt"
    GROUP = "group or all asked"
    ROLL = "rolling restart"
    UPDATE = "rolling update"
    CANCEL = "rolling cancelled"
    UPGRADE = "daemon's code replaced"
    ROUTER = "router answers or not"
    FORGETFUL = "router has forgotten all"
    PACE = "starts end well or not"
    TIME = "time passes"
    AWAY = "daemon stopped for a while"
    DEATH = "daemon killed"
    LOST_NOTES = "notes lost"


WEIGHTS = {
    Kind.START: 10,
    Kind.FORCE: 1,
    Kind.STOP: 5,
    Kind.DRAIN: 1,
    Kind.RESTART: 3,
    Kind.SIGNAL: 1,
    Kind.PAUSE: 2,
    Kind.RESUME: 2,
    Kind.WRITE: 8,
    Kind.ANSWER: 8,
    Kind.EXIT: 5,
    Kind.RANK_DIES: 2,
    Kind.OOM: 1,
    Kind.DEAF: 2,
    Kind.STUCK: 1,
    Kind.UNSPAWNABLE: 1,
    Kind.BLIND_LOG: 1,
    Kind.STANDSTILL: 1,
    Kind.COUNTERS: 1,
    Kind.CANARY: 1,
    Kind.FEED: 2,
    Kind.NEIGHBOUR: 2,
    Kind.LEFTOVER: 2,
    Kind.XID: 1,
    Kind.RELEASE: 1,
    Kind.SILENCE: 2,
    Kind.TWICE: 1,
    Kind.LATE: 1,
    Kind.GROUP: 3,
    Kind.ROLL: 3,
    Kind.UPDATE: 3,
    Kind.CANCEL: 1,
    Kind.UPGRADE: 2,
    Kind.ROUTER: 1,
    Kind.FORGETFUL: 1,
    Kind.PACE: 1,
    Kind.TIME: 28,
    Kind.AWAY: 1,
    Kind.DEATH: 5,
    Kind.LOST_NOTES: 1,
}
PASSING_S = (0.001, 0.02, 0.2, 0.5, 3.0, 3.0, 12.0, 12.0, 70.0, 200.0)


class Move(msgspec.Struct, frozen=True):
    """One thing that happens. `server` and `number` count on, whatever there is of it."""

    kind: Kind
    server: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind} (server {self.server}, {self.number})"


def moves(seed: int, length: int) -> list[Move]:
    """A history. The first moves start servers: nothing happens to a fleet at rest."""
    chance = Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    first = [Move(Kind.START, server, 0) for server in range(chance.randint(1, 3))]
    rest = chance.choices(kinds, weights, k=length - len(first))
    return first + [Move(kind, chance.randrange(12), chance.randrange(1000)) for kind in rest]
