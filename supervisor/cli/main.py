"""`sglctl`: parses the command line, runs one verb, turns every failure into one line and an exit code."""

from __future__ import annotations

import argparse
import re
import signal
import sys

from supervisor import __version__
from supervisor.cli import codes, groups, reading
from supervisor.cli.connection import Client, RefusedError, UnreachableError, socket_path
from supervisor.cli.text import complain, complain_each, meant, width
from supervisor.cli.verbs import VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# What other tools call it.
_MEANT = {
    "log": "tail", "logs": "tail", "list": "status", "ls": "status", "ps": "status", "show": "status", "info": "status",
    "describe": "why", "kill": "stop", "down": "stop", "up": "start", "reboot": "restart", "unpause": "resume",
}  # fmt: skip
_NEAR = 0.65  # of a short word, half the letters are any word's
_EPILOG = f"exit codes: {codes.in_a_line(codes.SHORT)}"


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
    first = _words(arguments)[:1]
    if first and not first[0].startswith("-") and first[0] not in VERBS:
        return _unknown_verb(first[0])
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
        client = _client(options)
        code: int = groups.run(client, options) if groups.named(options) else options.verb(client, options)
        return code
    except UnreachableError as error:
        complain(str(error))
        return codes.UNKNOWN
    except RefusedError as error:
        complain_each("error: ", str(error))
        return codes.UNKNOWN if error.status == 404 else codes.ERROR


def _with_byte_counts(arguments: list[str]) -> list[str]:
    """supervisorctl's `tail -100 NAME`: a number as an option, which argparse does not know."""
    if not {"tail", "maintail", "fg"} & set(arguments):
        return arguments
    return [f"--bytes={word[1:]}" if re.fullmatch(r"-[0-9]{1,12}", word, re.ASCII) else word for word in arguments]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Told its width: argparse makes one for every option, and to ask for the terminal's it imports shutil."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=max(40, width(sys.stdout) - 2))


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """All verbs and their options, or those of one verb: building all of them would double the cost of a call."""
    top = argparse.ArgumentParser(
        prog="sglctl",
        description="Control the servers of one host.",
        epilog=_EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    top.add_argument("-s", "--socket", metavar="SOCKET", help="the daemon's socket; else $SGLSUP_SOCKET")
    top.add_argument(
        "-H", dest="hosts", action="append", default=[], metavar="ssh://USER@HOST", help="that host's daemon, over ssh"
    )
    top.add_argument("--version", action="version", version=f"sglctl {__version__}", help="of sglctl itself")
    top.set_defaults(verb=None)
    verbs = top.add_subparsers(prog="sglctl", metavar="VERB", help="without one: an interactive shell")
    for name, (handler, text, add_options) in VERBS.items():
        if only in (None, name):
            verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False, formatter_class=Formatter)
            verb.set_defaults(verb=handler)
            add_options(verb)
    return top


def _verb_of(arguments: Sequence[str]) -> str | None:
    """The verb when it is plain to see: no more than -s and -H and their values stand before it."""
    first = _words(arguments)[:1]
    return first[0] if first and first[0] in VERBS else None


def _words(arguments: Sequence[str]) -> list[str]:
    rest = list(arguments)
    while rest and rest[0] in ("-s", "--socket", "-H"):
        del rest[:2]
    return rest


def _unknown_verb(word: str) -> int:
    """argparse would print all verbs in one line of braces."""
    guess = f', did you mean "{_MEANT[word]}"?' if word in _MEANT else meant(word, VERBS, _NEAR)
    complain("usage: sglctl [-s SOCKET] [-H ssh://USER@HOST] VERB ...")
    complain(f'sglctl: error: there is no verb "{word}"{guess or ";"} `sglctl help` lists them')
    return codes.USAGE


def show_help(_: Client, options: argparse.Namespace) -> int:
    """Of one verb or of all."""
    known = not options.about or options.about in VERBS
    top = parser()
    if options.about and known:
        top.parse_args([options.about, "-h"])  # prints it and leaves with 0
    top.print_help()
    return codes.OK if known else codes.USAGE


if __name__ == "__main__":
    sys.exit(main())
