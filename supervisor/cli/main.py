"""`sglctl`: parses the command line, runs one verb, turns every failure into one line and an exit code."""

from __future__ import annotations

import argparse
import re
import signal
import sys

from supervisor.cli import changing, codes, gpus, reading
from supervisor.cli.connection import Client, RefusedError, UnreachableError, socket_path
from supervisor.cli.duration import seconds
from supervisor.cli.text import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Verb: TypeAlias = tuple[
        Callable[[Client, argparse.Namespace], int], str, Callable[[argparse.ArgumentParser], None]
    ]  # what it does, in words, its options

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
    options = parser(_verb_of(arguments)).parse_args(_with_byte_counts(list(arguments)))
    if options.verb is None:
        from supervisor.cli.shell import interact

        interact(lambda words: run([*_global_words(options), *words]), _client(options), VERBS)
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


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """All verbs and their options, or those of one verb: building all of them would double the cost of a call."""
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
    for name, (handler, text, add_options) in VERBS.items():
        if only in (None, name):
            verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
            verb.set_defaults(verb=handler)
            add_options(verb)
    return top


def _verb_of(arguments: Sequence[str]) -> str | None:
    """The verb when it is plain to see: no more than -s and -H and their values stand before it."""
    rest = list(arguments)
    while rest and rest[0] in ("-s", "--socket", "-H"):
        del rest[:2]
    return rest[0] if rest and rest[0] in VERBS else None


def join(client: Client, _: argparse.Namespace) -> int:
    """The far end of -H; imported when it is needed."""
    from supervisor.cli.bridge import connect

    return connect(client)


def show_help(_: Client, options: argparse.Namespace) -> int:
    """Of one verb or of all."""
    known = not options.about or options.about in VERBS
    top = parser()
    if options.about and known:
        top.parse_args([options.about, "-h"])  # prints it and leaves with 0
    top.print_help()
    return codes.OK if known else codes.USAGE


def _status(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="*", metavar="NAME")
    verb.add_argument("--check", action="store_true", help="exit 3 unless all of them are healthy")
    _json(verb)


def _start(verb: argparse.ArgumentParser) -> None:
    _names(verb)
    verb.add_argument("--force", action="store_true", help="in spite of findings that block the start")
    _waiting(verb, "return when they are healthy")


def _stop(verb: argparse.ArgumentParser) -> None:
    _names(verb)
    verb.add_argument("--no-wait", action="store_true", help="return at once")
    _timeout(verb)


def _restart(verb: argparse.ArgumentParser) -> None:
    _names(verb)
    verb.add_argument("--reason", default="", metavar="TEXT", help="kept in the journal")
    _waiting(verb, "return when they are healthy again")


def _signal(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("signal", metavar="SIGNAL")
    _names(verb)


def _wait(verb: argparse.ArgumentParser) -> None:
    _names(verb)
    verb.add_argument("--for", dest="until", choices=("healthy", "stopped"), default="healthy")
    _timeout(verb)
    _json(verb)


def _tail(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME")
    verb.add_argument("channel", nargs="?", choices=("stdout", "stderr"), help="both are in one file")
    _maintail(verb)


def _maintail(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-f", "--follow", action="store_true", help="as it is written, until Ctrl-C")
    amount = verb.add_mutually_exclusive_group()
    amount.add_argument("-n", "--lines", type=_count, metavar="LINES")
    amount.add_argument("--bytes", type=_count, default=TAIL_BYTES, metavar="N", help="or -N; 1600 unless told")
    verb.add_argument("--rank", metavar="TP3", help="only lines whose prefix names this rank")
    verb.add_argument("--raw", action="store_true", help="the bytes as they are, control characters too")


def _fg(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME")
    verb.set_defaults(follow=True, lines=None, bytes=0, rank=None, raw=False)


def _events(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", nargs="?", metavar="NAME")
    verb.add_argument("-f", "--follow", action="store_true", help="as it happens")
    verb.add_argument("--since", type=_count, metavar="ID", help="only events after this one")
    verb.add_argument("-n", "--limit", type=_count, default=100, metavar="N")
    _json(verb)


def _why(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME")
    _json(verb)


def _pid(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", nargs="?", metavar="NAME|all")


def _help(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("about", nargs="?", metavar="VERB")


def _nothing(_: argparse.ArgumentParser) -> None:
    return None


def _names(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="+", metavar="NAME|all")


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="as JSON")


def _waiting(verb: argparse.ArgumentParser, text: str) -> None:
    verb.add_argument("--wait", action="store_true", help=text)
    _timeout(verb)


def _timeout(verb: argparse.ArgumentParser) -> None:
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


VERBS: dict[str, Verb] = {
    "status": (reading.status, "one line a server", _status),
    "start": (changing.start, "want servers up", _start),
    "stop": (changing.stop, "want servers down; returns when they are gone", _stop),
    "restart": (changing.restart, "end the present attempt, start a fresh one", _restart),
    "signal": (changing.send_signal, "send a signal to the servers' leaders", _signal),
    "wait": (changing.wait, "return as soon as servers are healthy, or gave up", _wait),
    "why": (reading.why, "why a server is as it is", _why),
    "events": (reading.events, "what happened", _events),
    "tail": (reading.tail, "end of a server's log", _tail),
    "maintail": (reading.maintail, "end of the daemon's log", _maintail),
    "fg": (reading.tail, "a server's log from now on, until Ctrl-C", _fg),
    "clear": (changing.clear, "empty servers' log files", _names),
    "avail": (reading.avail, "servers of the configuration file", _nothing),
    "reread": (reading.reread, "what the configuration file would change", _json),
    "gpus": (gpus.gpus, "who holds the GPUs, and what is wrong with them", gpus.gpus_options),
    "gpu": (gpus.gpu, "release a quarantined GPU", gpus.gpu_options),
    "pid": (reading.pid, "pid of the daemon or of a server", _pid),
    "version": (reading.version, "version of the daemon", _json),
    "shutdown": (changing.shutdown, "stop every server, then the daemon", _nothing),
    "connect": (join, "join standard input and output to the socket (what -H runs on the host)", _nothing),
    "help": (show_help, "this text, or a verb's", _help),
}


if __name__ == "__main__":
    sys.exit(main())
