"""Prints the page of every state, phase, cause and exit status, from where the program has them."""

import argparse
import re
from collections.abc import Iterable

from supervisor.cli import codes
from supervisor.core.health import Health
from supervisor.core.lifecycle import State
from supervisor.metrics.servers import VERDICTS as VERDICT_WORDS
from supervisor.profile import Profile, load_profile, profile_names
from supervisor.profile.parts import PhaseRule

# What the words of an enumeration mean to an operator. A new word without a meaning is a KeyError here.
STATES = {
    State.STOPPED: ("STOPPED", "nobody wants it up, and nothing is left of it"),
    State.STARTING: ("STARTING", "it goes through the phases below"),
    State.RUNNING: ("RUNNING", "its readiness probe has succeeded; `verdict` says how it does"),
    State.DRAINING: ("STOPPING", "running requests may end, new ones are refused"),
    State.STOPPING: ("STOPPING", "its tree is being ended"),
    State.RECLAIMING: (
        "STARTING or STOPPING",
        "its devices and ports are being proven free, before a start or after an end",
    ),
    State.BACKOFF: ("BACKOFF", "it failed and will be started again; the description says when and why"),
    State.FATAL: ("FATAL", "no restart helps, or the budget is spent; it waits for somebody"),
    State.QUARANTINED: ("FATAL", "a process or its memory does not go away, or one failure comes again and again"),
}
VERDICTS = {
    "warming": "it starts, or answers 503",
    "idle": "it is ready and has nothing to do",
    "busy": "requests are running",
    "draining": "it lets running requests end",
    "stalled": "no progress for longer than is allowed: evidence, end, restart",
    "degraded": "it serves, and something is wrong: fewer tokens than usual, a dead replica, probes that fail",
    "dead": "its process has ended, or a part without which it cannot serve",
    "unknown": "nothing can be said: no attempt, or nobody to ask",
}
HEALTH = {
    Health.SUCCESS: "yes",
    Health.FAILURE: "no, so often in a row that it counts",
    Health.UNKNOWN: "not asked yet, or no telling: never a reason to act",
    Health.HELD: "no, for a reason that we know and that is no failure: it is paused, or drains",
}


def page(commands: dict[str, argparse.ArgumentParser]) -> str:
    states = rows((f"`{state}`", STATES[state][0], STATES[state][1]) for state in State)
    verdicts = rows((f"`{name}`", VERDICTS[name]) for name in VERDICT_WORDS)
    health = rows((f"`{word}`", HEALTH[word]) for word in Health)
    profiles = [load_profile(name) for name in profile_names()]
    return f"""# Every state, phase, cause and exit status

Printed by `make docs` from the program; a test compares.

## States

What `sglctl status` and `supervisorctl` say, and the lifecycle behind it (`sglctl status --json`, `sglctl events`).
What moves a server from one to the next is in [lifecycle.md](lifecycle.md).

| lifecycle | shown as | meaning |
|---|---|---|
{states}

EXITED is a server that ended although it is wanted up; UNKNOWN one that the daemon has not looked at yet.

| verdict | meaning |
|---|---|
{verdicts}

`startup`, `readiness` and `liveness` say what the probes found:

| | |
|---|---|
{health}

## Phases

In the order in which they usually come; engines mix and repeat them. Without progress for `stall`, or beyond `limit`
in all, a phase is a stall, unless the configuration says otherwise or earlier starts have taught less; one whose
processes are idle, too, mostly after half of `stall` ([configuration.md](configuration.md), deadlines). The stage is
what `sglsup diagnose` calls it.
{"".join(phases(profile) for profile in profiles)}
## Causes

The classes of failures. What is done about one is `restart.causes` in [configuration.md](configuration.md).

| cause | restart helps | what to do |
|---|---|---|
{causes(profiles)}

## Exit statuses

| command | |
|---|---|
{rows((f"`{name}`", exit_status(parser)) for name, parser in commands.items() if exit_status(parser))}
| `sglsup daemon` | 0 asked to end, 1 something it needs is not there, 2 a configuration that cannot be used |
| `sglsup demo` | 0 as expected, 1 not, 130 Ctrl-C |
| `sglctl` | {codes.in_a_line(codes.SHORT)} |
| `sglctl wait` | {codes.in_a_line(codes.OF_WAIT)} |

A server's own status is told as it came: `exit 1`, or `signal 9`. SGLang ends itself with SIGKILL, so 9 alone says
nothing.
"""


def phases(profile: Profile) -> str:
    table = rows(
        (phase_name(rule), f"`{rule.stage}`", limit(rule.stall_s), limit(rule.limit_s)) for rule in profile.phases
    )
    return f"\n### {profile.name}\n\n| phase | stage | stall | limit |\n|---|---|---|---|\n{table}\n"


def phase_name(rule: PhaseRule) -> str:
    return f"`{rule.name}`" + (f", speculating `{rule.speculative_name}`" if rule.speculative_name else "")


def causes(profiles: list[Profile]) -> str:
    """Each once; advice in the words of the first engine that knows it."""
    known = {cause.name: cause for profile in reversed(profiles) for cause in profile.causes}
    told = ((name, cause.restart, f"{cause.remedy} {cause.again}") for name, cause in sorted(known.items()))
    return rows((f"`{name}`", restart, cell(advice)) for name, restart, advice in told)


def exit_status(parser: argparse.ArgumentParser) -> str:
    """What the end of its help says."""
    found = re.search(r"exit status: (.*)", " ".join((parser.epilog or "").split()))
    return cell(found[1]) if found else ""


def limit(seconds: float) -> str:
    return f"{round(seconds / 60)} min" if seconds >= 60 else (f"{seconds:.0f} s" if seconds else "none")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rows(of: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in of)
