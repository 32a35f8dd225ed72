"""`sglsup run -- CMD...`: one server under a daemon in this process, without a configuration file.

On a terminal a live view, anywhere else one JSON line a change on standard output. It ends when the server has been
stopped or given up, and the exit status tells why.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO, cast

import anyio

from supervisor.api.lastwords import last_words
from supervisor.config import Config
from supervisor.config.model import port_of
from supervisor.lines import printable
from supervisor.shell import logs
from supervisor.shell.daemon import Daemon
from supervisor.shell.report import Above, JsonReport, LiveReport, Report, Screen
from supervisor.shell.single import Place, Wish, configure, devices_of, problems
from supervisor.shell.startup import StartupProblem, run_until_ended
from supervisor.snapshot import ServerSnapshot
from supervisor.threads import Threads
from supervisor.units import parse_duration

EXIT_STOPPED = 0
EXIT_FATAL = 1
EXIT_USAGE = 2
EXIT_QUARANTINED = 3
LAST_WORDS_S = 2.0
_EVENTS_AT_ONCE = 200
_EXCERPT_MAX = 300
_WORTH_TELLING = 0.5  # confidence of a diagnosis

_EPILOG = """\
exit status:
  0    stopped on request (Ctrl-C, SIGTERM, SIGHUP, sglctl stop or shutdown), or --once and it became healthy,
       which the last line on standard error says
  1    given up: no restart can help, the restart budget is spent, it failed under --no-restart, or its port or
       devices are in other hands under --once (without it they are waited for, without a limit);
       the last line on standard error tells cause and remedy
  2    usage, or nothing could be started (a directory, the socket, another run of the same name)
  3    quarantined: a process survives SIGKILL, devices stay dirty, or one failure comes again and again
  130  Ctrl-C before anything was started

Ctrl-C drains the server as SIGTERM does; a second Ctrl-C kills it.
State is in ~/.local/state/sglang-supervisor/run/NAME (XDG_STATE_HOME), logs in .../sglang-supervisor/log/NAME; for root
in /var/lib/sglang-supervisor/run/NAME and /var/log/sglang-supervisor/run/NAME. The socket for sglctl is
$XDG_RUNTIME_DIR/sglang-supervisor/NAME.sock, else control.sock in the state directory.
"""


class Outcome(NamedTuple):
    """Why a run ended."""

    status: int
    reason: str = ""


def main(arguments: Sequence[str]) -> int:
    """Supervise one command until it is stopped or given up; the exit status tells why."""
    options = parser().parse_args(arguments)
    config = configure(_wish(options), Place(os.environ, os.getcwd(), os.geteuid() == 0))
    if found := problems(config):
        return _refuse("; ".join(found))
    if told := other_port(options.port, tuple(options.command)):
        sys.stderr.write(f"sglsup run: {told}\n")
    run = Run(config, _report(), once=options.once)
    try:
        outcome = run_until_ended(run.run)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except StartupProblem as problem:
        return _refuse(str(problem))
    if outcome.reason:
        with contextlib.suppress(OSError):  # a terminal that was closed
            sys.stderr.write(f"sglsup run: {outcome.reason}\n")
    return outcome.status


def other_port(asked: int, command: tuple[str, ...]) -> str:
    """Said when the command names another port than the one asked for; behind a mapping of ports both may be right."""
    own = port_of(command)
    if not asked or not own or asked == own:
        return ""
    return f"warning: --port {asked} is where it is asked whether it is ready, and its command says --port {own}"


def _report() -> Report:
    """The one that suits standard output; the daemon's warnings go beside it."""
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        live = LiveReport(Screen(sys.stdout.fileno()))
        logs.configure(cast(TextIO, Above(live)), pretty=False, level=logging.WARNING)
        return live
    logs.configure(pretty=False, level=logging.WARNING)
    return JsonReport(sys.stdout.fileno())


def _refuse(why: str) -> int:
    sys.stderr.write(f"sglsup run: {why}\n")
    return EXIT_USAGE


# --- the run ---------------------------------------------------------------------------------------------------------


class Run:
    """A daemon with one server, reported and judged until it is at rest."""

    def __init__(self, config: Config, report: Report, *, once: bool) -> None:
        self._places = config.daemon
        self._name = next(iter(config.servers))
        self._daemon = Daemon(config)
        self._report = report
        self._once = once
        self._outcome: Outcome | None = None
        self._told = 0
        self._judged = 0

    async def run(self) -> Outcome:
        """Returns when the daemon has ended. An exception group with StartupProblem when it could not start."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hang_up, name="terminal gone")
            tasks.start_soon(self._judge, name="judge")
            tasks.start_soon(self._tell, name="report")
            await self._daemon.run()
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(LAST_WORDS_S):
            await self._news()
        self._report.end()
        return self._outcome or await _judged(self._snapshot()) or Outcome(EXIT_STOPPED)

    async def _hang_up(self) -> None:
        """A closed terminal ends a run like Ctrl-C does: its server must not live on unseen."""
        with anyio.open_signal_receiver(signal.SIGHUP) as received:
            async for _ in received:
                self._daemon.ask_to_end("SIGHUP")

    async def _judge(self) -> None:
        """Not in step with the report, which waits for a slow reader."""
        await self._daemon.ready.wait()
        seen = -1
        while self._outcome is None:
            seen = await self._daemon.answers.changed(seen)
            snapshot = self._snapshot()
            if self._once and snapshot.healthy:
                self._outcome = Outcome(EXIT_STOPPED, f"{snapshot.name} works: {snapshot.lifecycle.reason}")
            else:
                self._outcome = await _judged(snapshot) or (await self._obstructed() if self._once else None)
        self._daemon.ask_to_end("the end of the run")

    async def _obstructed(self) -> Outcome | None:
        """A try whose port or devices are in other hands has its answer: it could not begin."""
        records = await self._daemon.answers.events(self._judged, None, _EVENTS_AT_ONCE)
        self._judged = records[-1].id if records else self._judged
        waits = (one.reason for one in records if (one.facet, one.after) == ("start", "waiting"))
        reason = next(waits, "")
        return Outcome(EXIT_FATAL, f"{self._name} could not be tried: {reason.partition('; ')[0]}") if reason else None

    async def _tell(self) -> None:
        await self._daemon.ready.wait()
        log_path = Path(self._places.log_dir) / self._name / "current.log"
        await self._report.begin(self._name, str(log_path), self._places.socket)
        seen = -1
        while True:
            again_s = await self._news()
            with anyio.move_on_after(again_s):
                seen = await self._daemon.answers.changed(seen)

    async def _news(self) -> float | None:
        """Report what is new. The counter of changes may be ahead of what is reported here, never behind."""
        records = await self._daemon.answers.events(self._told, None, _EVENTS_AT_ONCE)
        if records:
            self._told = records[-1].id
        return await self._report.changed(records, self._snapshot(), self._daemon.answers.clock())

    def _snapshot(self) -> ServerSnapshot:
        (snapshot,) = self._daemon.answers.snapshots()
        return snapshot


async def _judged(snapshot: ServerSnapshot) -> Outcome | None:
    """None while there is something to wait for."""
    match snapshot.lifecycle.value:
        case "fatal":
            return Outcome(EXIT_FATAL, f"{snapshot.name} was given up: {await _cause(snapshot)}")
        case "quarantined":
            return Outcome(EXIT_QUARANTINED, f"{snapshot.name} is quarantined: {await _cause(snapshot)}")
        case "stopped" if snapshot.goal == "down" and snapshot.attempt:
            return Outcome(EXIT_STOPPED)
        case _:
            return None


async def _cause(snapshot: ServerSnapshot) -> str:
    """Reason, cause, evidence and remedy in one line, none twice; the log's last line and path when none names it."""
    told, diagnosis = [snapshot.lifecycle.reason], snapshot.diagnosis
    if diagnosis is not None and diagnosis.confidence >= _WORTH_TELLING:
        told += [f"cause: {diagnosis.cause}"] if diagnosis.cause not in told[0] else []
        where = f"line {diagnosis.evidence_line} of the log: " if diagnosis.evidence_line else ""
        told += [f"{where}{_excerpt(diagnosis.evidence)}"] if diagnosis.evidence not in told[0] else []
        told += [f"what to change: {diagnosis.remedy}"] if diagnosis.remedy not in told[0] else []
    elif snapshot.log_path:
        told += [f"its log ends with: {line}" for line in (await _last_words(snapshot.log_path))[-1:]]
        told.append(f"its log is {snapshot.log_path}")
    return printable("; ".join(told))


async def _last_words(path: str) -> Sequence[str]:
    """None when the log's disk does not answer: the outcome is told without them."""
    try:
        return await Threads("the disk").run(last_words, path, limit_s=LAST_WORDS_S)
    except TimeoutError:
        return ()


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT_MAX else f"{text[: _EXCERPT_MAX - 3]}..."


# --- the command line ------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Options behind a command that no -- stands before are taken for our own."""

    def error(self, message: str) -> NoReturn:
        behind = "; the command and its options stand behind --" if message.startswith("unrecognized") else ""
        super().error(f"{message}{behind}")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = _Parser(
        prog="sglsup run",
        usage="sglsup run [OPTIONS] -- CMD [ARGUMENT...]",
        description="Start one server, watch it, restart it by cause, until Ctrl-C, SIGTERM or a failure that stays.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("--name", metavar="N", default="", help="default: last part of the model's path, else server")
    result.add_argument("--gpus", type=_gpus, default=(), metavar="0-7", help="devices of the server, such as 0-3,6")
    result.add_argument("--port", type=_port, default=0, metavar="P", help="default: read from the command")
    result.add_argument("--state-dir", type=Path, metavar="D", help="directory for state, evidence and socket")
    result.add_argument("--log-dir", type=Path, metavar="D", help="directory for logs; with --state-dir D: D/log")
    result.add_argument("--listen", default="", metavar="HOST:PORT", help="read-only HTTP endpoints; default: none")
    result.add_argument("--grace", type=_duration, metavar="90s", help="patience of a stop while requests run")
    result.add_argument("--once", action="store_true", help="stop it as soon as it is healthy: does this command work?")
    result.add_argument("--no-restart", action="store_true", help="one attempt: its failure ends the run")
    result.add_argument("command", nargs="+", metavar="CMD", help="the server's command, behind --")
    return result


def _wish(options: argparse.Namespace) -> Wish:
    return Wish(
        command=tuple(options.command),
        name=options.name,
        gpus=options.gpus,
        port=options.port,
        state_dir=options.state_dir,
        log_dir=options.log_dir,
        listen=options.listen,
        grace_s=options.grace,
        restart=not options.no_restart,
    )


def _gpus(text: str) -> tuple[int, ...]:
    try:
        return devices_of(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f'expected a port between 1 and 65535, got "{text}"')
    return int(text)


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
