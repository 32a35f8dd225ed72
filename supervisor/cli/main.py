"""`sglctl`: parses the command line, runs one verb, turns every failure into one line and an exit code."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from typing import TypeAlias

from supervisor.cli import changing, codes, reading
from supervisor.cli.bridge import connect
from supervisor.cli.connection import Client, RefusedError, UnreachableError, socket_path
from supervisor.cli.duration import seconds
from supervisor.cli.text import complain

TAIL_BYTES = 1600  # supervisorctl's default

_EPILOG = """\
exit codes: 0 ok, 1 error, 2 usage, 3 not running, 4 unknown name or no daemon, 5 time-out
"""


def main() -> int:
    """The process: what concerns it as a whole, then one command."""
    # As a filter should: `sglctl tail NAME | head` ends silently. The socket is written with MSG_NOSIGNAL.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return codes.INTERRUPTED
    finally:
        sys.stdout.flush()


def run(arguments: Sequence[str]) -> int:
    """Run one command. argparse itself exits with 2 on wrong usage."""
    options = parser().parse_args(_with_byte_counts(list(arguments)))
    if options.verb is None:
        from supervisor.cli.shell import interact

        interact(lambda words: run([*_global_words(options), *words]), _client(options))
        return codes.OK
    if len(options.hosts) > 1:
        return _run_on_hosts(options)
    return _run(options)


def _global_words(options: argparse.Namespace) -> list[str]:
    words = ["-s", options.socket] if options.socket else []
    return words + [word for host in options.hosts for word in ("-H", host)]


def _client(options: argparse.Namespace) -> Client:
    if not options.hosts:
        return Client(socket_path(options.socket))
    from supervisor.cli.remote import remote_client

    return remote_client(options.hosts[0], options.socket)


def _run_on_hosts(options: argparse.Namespace) -> int:
    """One table of several hosts; what changes something goes to one host at a time."""
    if options.verb is not reading.status:
        complain("error: several hosts are for status alone")
        return codes.USAGE
    from supervisor.cli.remote import remote_client

    clients = {host: remote_client(host, options.socket) for host in options.hosts}
    return reading.status_of_hosts(clients, options)


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.verb(_client(options), options)
        return code
    except UnreachableError as error:
        complain(str(error))
        return codes.UNKNOWN
    except RefusedError as error:
        complain(f"error: {error}")
        return codes.UNKNOWN if error.status == 404 else codes.ERROR


def _with_byte_counts(arguments: list[str]) -> list[str]:
    """supervisorctl's `tail -100 NAME`: a number as an option, which argparse does not know."""
    if not {"tail", "maintail", "fg"} & set(arguments):
        return arguments
    return [f"--bytes={word[1:]}" if re.fullmatch(r"-[0-9]{1,12}", word, re.ASCII) else word for word in arguments]


def parser() -> argparse.ArgumentParser:
    """All verbs and their options."""
    top = argparse.ArgumentParser(
        prog="sglctl",
        description="Control the servers of one host.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("-s", "--socket", metavar="SOCKET", help="the daemon's socket; else $SGLSUP_SOCKET")
    top.add_argument(
        "-H", dest="hosts", action="append", default=[], metavar="ssh://USER@HOST", help="that host's daemon, over ssh"
    )
    top.set_defaults(verb=None)
    verbs = top.add_subparsers(metavar="VERB", help="without one: an interactive shell")
    _add_reading(verbs)
    _add_changing(verbs)
    _verb(verbs, "connect", connect, "join standard input and output to the socket (what -H runs on the host)")
    _add_help(verbs, top)
    return top


_Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_reading(verbs: _Verbs) -> None:
    status = _verb(verbs, "status", reading.status, "one line a server")
    status.add_argument("names", nargs="*", metavar="NAME")
    status.add_argument("--check", action="store_true", help="exit 3 unless all of them are healthy")
    _add_json(status)
    pid = _verb(verbs, "pid", reading.pid, "pid of the daemon or of a server")
    pid.add_argument("name", nargs="?", metavar="NAME|all")
    why = _verb(verbs, "why", reading.why, "why a server is as it is")
    why.add_argument("name", metavar="NAME")
    _add_json(why)
    _add_json(_verb(verbs, "version", reading.version, "version of the daemon"))
    for name, handler, text in (
        ("tail", reading.tail, "end of a server's log"),
        ("maintail", reading.maintail, "end of the daemon's log"),
    ):
        _add_tail(_verb(verbs, name, handler, text), with_name=name == "tail")
    fg = _verb(verbs, "fg", reading.tail, "a server's log from now on, until Ctrl-C")
    fg.add_argument("name", metavar="NAME")
    fg.set_defaults(follow=True, lines=None, bytes=0, rank=None, raw=False)
    events = _verb(verbs, "events", reading.events, "what happened")
    events.add_argument("name", nargs="?", metavar="NAME")
    events.add_argument("-f", "--follow", action="store_true", help="as it happens")
    events.add_argument("--since", type=_count, metavar="ID", help="only events after this one")
    events.add_argument("-n", "--limit", type=_count, default=100, metavar="N")
    _add_json(events)


def _add_tail(verb: argparse.ArgumentParser, *, with_name: bool) -> None:
    if with_name:
        verb.add_argument("name", metavar="NAME")
        verb.add_argument("channel", nargs="?", choices=("stdout", "stderr"), help="both are in one file")
    verb.add_argument("-f", "--follow", action="store_true", help="as it is written, until Ctrl-C")
    amount = verb.add_mutually_exclusive_group()
    amount.add_argument("-n", "--lines", type=_count, metavar="LINES")
    amount.add_argument("--bytes", type=_count, default=TAIL_BYTES, metavar="N", help="or -N; 1600 unless told")
    verb.add_argument("--rank", metavar="TP3", help="only lines whose prefix names this rank")
    verb.add_argument("--raw", action="store_true", help="the bytes as they are, control characters too")


def _add_changing(verbs: _Verbs) -> None:
    start = _verb(verbs, "start", changing.start, "want servers up")
    start.add_argument("names", nargs="+", metavar="NAME|all")
    start.add_argument("--force", action="store_true", help="in spite of findings that block the start")
    _add_waiting(start, "return when they are healthy")
    stop = _verb(verbs, "stop", changing.stop, "want servers down; returns when they are gone")
    stop.add_argument("names", nargs="+", metavar="NAME|all")
    stop.add_argument("--no-wait", action="store_true", help="return at once")
    _add_timeout(stop)
    restart = _verb(verbs, "restart", changing.restart, "end the present attempt, start a fresh one")
    restart.add_argument("names", nargs="+", metavar="NAME|all")
    restart.add_argument("--reason", default="", metavar="TEXT", help="kept in the journal")
    _add_waiting(restart, "return when they are healthy again")
    send = _verb(verbs, "signal", changing.send_signal, "send a signal to the servers' leaders")
    send.add_argument("signal", metavar="SIGNAL")
    send.add_argument("names", nargs="+", metavar="NAME|all")
    clear = _verb(verbs, "clear", changing.clear, "empty servers' log files")
    clear.add_argument("names", nargs="+", metavar="NAME|all")
    wait = _verb(verbs, "wait", changing.wait, "return as soon as servers are healthy, or gave up")
    wait.add_argument("names", nargs="+", metavar="NAME|all")
    wait.add_argument("--for", dest="until", choices=("healthy", "stopped"), default="healthy")
    _add_timeout(wait)
    _add_json(wait)
    _verb(verbs, "shutdown", changing.shutdown, "stop every server, then the daemon")


def _add_help(verbs: _Verbs, top: argparse.ArgumentParser) -> None:
    def show(_: Client, options: argparse.Namespace) -> int:
        shown = verbs.choices.get(options.about, top) if options.about else top
        shown.print_help()
        return codes.OK if shown is not top or not options.about else codes.USAGE

    _verb(verbs, "help", show, "this text, or a verb's").add_argument("about", nargs="?", metavar="VERB")


def _verb(verbs: _Verbs, name: str, handler: object, text: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
    verb.set_defaults(verb=handler)
    return verb


def _add_json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="as JSON")


def _add_waiting(verb: argparse.ArgumentParser, text: str) -> None:
    verb.add_argument("--wait", action="store_true", help=text)
    _add_timeout(verb)


def _add_timeout(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--timeout", type=_seconds, metavar="90s", help="exit 5 when it takes longer")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'expected a duration such as "90s", got {text!r}') from None


if __name__ == "__main__":
    sys.exit(main())
