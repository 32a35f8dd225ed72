"""The client's exit codes and what they mean: scripts rely on them, so they are in one place; the pages follow."""

from __future__ import annotations

OK = 0
ERROR = 1
USAGE = 2
NOT_RUNNING = 3
UNKNOWN = 4  # no such name, or no daemon
TIMED_OUT = 5
INTERRUPTED = 130

SHORT = {
    OK: "done",
    ERROR: "error",
    USAGE: "usage",
    NOT_RUNNING: "not running",
    UNKNOWN: "unknown name, or no daemon",
    TIMED_OUT: "time-out; `drain`: requests were cut off",
    INTERRUPTED: "Ctrl-C",
}
OF_WAIT = {
    OK: "healthy",
    ERROR: "given up: fatal or quarantined",
    USAGE: SHORT[USAGE],
    UNKNOWN: SHORT[UNKNOWN],
    TIMED_OUT: "time-out",
    INTERRUPTED: SHORT[INTERRUPTED],
}
LONG = {
    OK: "done. As with supervisorctl also: start of a started server, stop of a stopped one, `status` of one "
    "that is starting, stopping or in backoff",
    ERROR: "error; `wait`: a server gave up (FATAL)",
    USAGE: "wrong usage; of a verb that there is not the nearest one is guessed",
    NOT_RUNNING: "`status`: a server is STOPPED, EXITED, FATAL or UNKNOWN (`--check`: not healthy); `pid`, `signal`: "
    "it is not running",
    UNKNOWN: SHORT[UNKNOWN],
    TIMED_OUT: SHORT[TIMED_OUT],
    INTERRUPTED: "Ctrl-C (which ends `tail -f` and `events -f` with 0)",
}


def worst(codes: list[int]) -> int:
    """The exit code of several names: an unknown name outweighs an error, an error outweighs one not running."""
    return max(codes, key=(OK, NOT_RUNNING, TIMED_OUT, ERROR, UNKNOWN, USAGE).index, default=OK)


def in_a_line(meanings: dict[int, str]) -> str:
    """For the help and the reference."""
    return ", ".join(f"{code} {meaning.replace(', or', ' or').split(';')[0]}" for code, meaning in meanings.items())
