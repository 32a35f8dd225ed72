"""The options of each verb."""

from __future__ import annotations

import argparse
import signal

from supervisor.cli.duration import seconds

_LIMIT = 'such as "90s", for all names together: then exit 5; no limit unless told'
_ONE = "a server; g:GROUP: one after another of the group's"
_NAMED = "servers, groups as g:GROUP, or all of them"
_SOME = "servers, or groups as g:GROUP; all unless told"
_DRAIN_END = "then it is killed, and this exits 5"
_EVENTS_AT_ONCE = 1000


def status(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="*", metavar="NAME", help=_SOME)
    verb.add_argument("--check", action="store_true", help="exit 3 unless all of them are healthy")
    as_json(verb)


def start(verb: argparse.ArgumentParser) -> None:
    names(verb)
    verb.add_argument("--force", action="store_true", help="in spite of findings that block the start")
    waiting(verb, "return when they are healthy")


def stop(verb: argparse.ArgumentParser) -> None:
    names(verb)
    verb.add_argument("--no-wait", action="store_true", help="return at once")
    timeout(verb)


def drain(verb: argparse.ArgumentParser) -> None:
    names(verb)
    verb.add_argument("--no-wait", action="store_true", help="return at once")
    verb.add_argument(
        "--grace", "--timeout", dest="timeout", type=_seconds, default=3600.0, metavar="1h", help=_DRAIN_END
    )


def restart(verb: argparse.ArgumentParser) -> None:
    names(verb)
    verb.add_argument("--reason", default="", metavar="TEXT", help="kept in the journal")
    waiting(verb, "return when they are healthy again")
    one_after_another(verb)


def send_signal(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("signal", type=_signal, metavar="SIGNAL", help="HUP, SIGHUP or 1")
    names(verb)


def wait(verb: argparse.ArgumentParser) -> None:
    names(verb)
    verb.add_argument(
        "--for",
        dest="until",
        choices=("healthy", "stopped"),
        default="healthy",
        help="what to wait for; healthy unless told",
    )
    timeout(verb)
    as_json(verb)


def tail(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME", help=_ONE)
    verb.add_argument("channel", nargs="?", choices=("stdout", "stderr"), help="both are in one file")
    verb.add_argument("--attempt", type=_count, metavar="N", help="of an earlier attempt, archived or not")
    maintail(verb)


def maintail(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-f", "--follow", action="store_true", help="as it is written, until Ctrl-C")
    amount = verb.add_mutually_exclusive_group()
    amount.add_argument(
        "-n", "--lines", type=_count, metavar="LINES", help="the last lines, with --rank those of the rank"
    )
    amount.add_argument(
        "--bytes", type=_count, metavar="N", help="or -N: the last bytes, as supervisorctl has it; 1600 unless told"
    )
    verb.add_argument("--rank", metavar="TP3", help="only lines whose prefix names this rank, 20 unless told")
    verb.add_argument("--raw", action="store_true", help="the bytes as they are, control characters too")


def fg(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME", help=_ONE)
    verb.set_defaults(follow=True, attempt=None, lines=None, bytes=0, rank=None, raw=False)


def events(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", nargs="?", metavar="NAME", help="of one server; all unless told")
    verb.add_argument("-f", "--follow", action="store_true", help="as it happens")
    verb.add_argument("--since", type=_count, metavar="ID", help="only events after this one")
    verb.add_argument(
        "-n", "--limit", type=_events, default=100, metavar="N", help="the last so many, at most 1000; 100 unless told"
    )
    as_json(verb)


def one_name(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME", help=_ONE)
    as_json(verb)


def deadlines(verb: argparse.ArgumentParser) -> None:
    one_name(verb)
    verb.add_argument("--all", action="store_true", help="phases too that never applied")


def of_attempt(verb: argparse.ArgumentParser) -> None:
    one_name(verb)
    verb.add_argument("--attempt", type=_count, metavar="N", help="the newest unless told")


def bundle(verb: argparse.ArgumentParser) -> None:
    of_attempt(verb)
    verb.add_argument("-l", "--list", action="store_true", help="what there is")
    verb.add_argument("-o", "--output", metavar="FILE", help="NAME-ATTEMPT.tar.gz unless told; - for standard output")


def watch(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="*", metavar="NAME", help=_SOME)
    verb.add_argument("--interval", type=_seconds, default=1.0, metavar="1s", help="between two looks")
    verb.add_argument("--count", type=_count, metavar="N", help="end after so many looks")


def update(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="*", metavar="NAME|all", help=_SOME)
    live(verb)
    one_after_another(verb)


def reload(verb: argparse.ArgumentParser) -> None:
    live(verb)
    verb.set_defaults(names=[], rolling=False)


def live(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--live", action="store_true", help="leave alone what costs a restart")


def one_after_another(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--rolling", action="store_true", help="one after another, each drained; stops at a failure")
    verb.add_argument("--grace", type=_seconds, default=600.0, metavar="10m", help="for running requests of each")
    verb.add_argument("--no-wait", action="store_true", help="return once it has begun")


def rolling(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--cancel", action="store_true", help="after the server under way nobody follows")
    verb.add_argument("-f", "--follow", action="store_true", help="until it is over")
    as_json(verb)


def upgrade(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="1m", help="for the new code to answer; then exit 5"
    )


def completion(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("shell", choices=("bash", "zsh", "fish", "names"), help="whose script; names: what may be NAME")


def gpu(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("deed", choices=("release",), help="put a quarantined GPU back into use")
    verb.add_argument("index", metavar="N", help="the GPU's index, as sglctl gpus has it")


def pid(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "name", nargs="?", metavar="NAME|all", help="of a server, or a line each of all; else the daemon's"
    )
    as_json(verb)


def about(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("about", nargs="?", metavar="VERB", help="one verb's options")


def nothing(_: argparse.ArgumentParser) -> None:
    return None


def names(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="+", metavar="NAME|all", help=_NAMED)


def as_json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="as JSON")


def waiting(verb: argparse.ArgumentParser, text: str) -> None:
    verb.add_argument("--wait", action="store_true", help=text)
    timeout(verb)


def timeout(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--timeout", type=_seconds, metavar="DURATION", help=_LIMIT)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return int(text)


def _events(text: str) -> int:
    """As many as the daemon tells at once."""
    number = _count(text)
    if not 1 <= number <= _EVENTS_AT_ONCE:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {_EVENTS_AT_ONCE}, got {text!r}")
    return number


def _signal(text: str) -> str:
    """As the daemon takes it; it may know others than this host only by number."""
    name = text.upper().removeprefix("SIG")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else 0
    if f"SIG{name}" not in signal.Signals.__members__ and number not in set(signal.Signals):
        raise argparse.ArgumentTypeError(f'expected a signal such as "HUP" or "1", got {text!r}')
    return text


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'expected a duration such as "90s", got {text!r}') from None
