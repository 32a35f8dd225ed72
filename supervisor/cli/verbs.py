"""The table of verbs: what each does, in words, and its options.

The daily ones are imported with it; the modules of the others are loaded when they are asked for.
"""

from __future__ import annotations

from supervisor.cli import changing, reading
from supervisor.cli import options as takes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import TypeAlias

    from supervisor.cli.connection import Client

    Handler: TypeAlias = Callable[[Client, Namespace], int]
    Verb: TypeAlias = tuple[Handler, str, Callable[[ArgumentParser], None]]


def _why(client: Client, options: Namespace) -> int:
    from supervisor.cli.past import why

    return why(client, options)


def _timeline(client: Client, options: Namespace) -> int:
    from supervisor.cli.timeline import timeline

    return timeline(client, options)


def _deadlines(client: Client, options: Namespace) -> int:
    from supervisor.cli.past import deadlines

    return deadlines(client, options)


def _bundle(client: Client, options: Namespace) -> int:
    from supervisor.cli.past import bundle

    return bundle(client, options)


def _gpus(client: Client, options: Namespace) -> int:
    from supervisor.cli.gpus import gpus

    return gpus(client, options)


def _gpu(client: Client, options: Namespace) -> int:
    from supervisor.cli.gpus import gpu

    return gpu(client, options)


def _watch(client: Client, options: Namespace) -> int:
    from supervisor.cli.watch import watch

    return watch(client, options)


def _rolling(client: Client, options: Namespace) -> int:
    from supervisor.cli.rolling import rolling

    return rolling(client, options)


def _routers(client: Client, options: Namespace) -> int:
    from supervisor.cli.rolling import routers

    return routers(client, options)


def _reread(client: Client, options: Namespace) -> int:
    from supervisor.cli.configuration import reread

    return reread(client, options)


def _avail(client: Client, options: Namespace) -> int:
    from supervisor.cli.configuration import avail

    return avail(client, options)


def _update(client: Client, options: Namespace) -> int:
    from supervisor.cli.configuration import update

    return update(client, options)


def _add(client: Client, options: Namespace) -> int:
    from supervisor.cli.configuration import add

    return add(client, options)


def _remove(client: Client, options: Namespace) -> int:
    from supervisor.cli.configuration import remove

    return remove(client, options)


def _upgrade(client: Client, options: Namespace) -> int:
    from supervisor.cli.upgrade import upgrade

    return upgrade(client, options)


def _completion(client: Client, options: Namespace) -> int:
    from supervisor.cli.completion import completion

    return completion(client, options)


def _join(client: Client, _: Namespace) -> int:
    """The far end of -H."""
    from supervisor.cli.bridge import connect

    return connect(client)


def _help(client: Client, options: Namespace) -> int:
    from supervisor.cli.main import show_help

    return show_help(client, options)


VERBS: dict[str, Verb] = {
    "status": (reading.status, "one line a server", takes.status),
    "watch": (_watch, "servers as they change, until Ctrl-C", takes.watch),
    "start": (changing.start, "want servers up", takes.start),
    "stop": (changing.stop, "want servers down; returns when they are gone", takes.stop),
    "drain": (changing.drain, "let running requests end, then stop servers", takes.drain),
    "restart": (changing.restart, "end the present attempt, start a fresh one", takes.restart),
    "rolling": (_rolling, "the rolling restart or update: show it, cancel it", takes.rolling),
    "routers": (_routers, "who hands requests out, and whether they can be told", takes.as_json),
    "signal": (changing.send_signal, "send a signal to the servers' leaders", takes.send_signal),
    "pause": (changing.pause, "work on servers: no kill, no start by itself", takes.names),
    "resume": (changing.resume, "end the work: start what was held back", takes.names),
    "wait": (changing.wait, "return as soon as servers are healthy, or gave up", takes.wait),
    "why": (_why, "why a server is as it is", takes.of_attempt),
    "timeline": (_timeline, "the phases of a start, a lane a rank", takes.of_attempt),
    "deadlines": (_deadlines, "how long each phase may take, and where that comes from", takes.deadlines),
    "bundle": (_bundle, "fetch the evidence of a failed attempt", takes.bundle),
    "events": (reading.events, "what happened", takes.events),
    "tail": (reading.tail, "end of a server's log", takes.tail),
    "maintail": (reading.maintail, "end of the daemon's log", takes.maintail),
    "fg": (reading.tail, "a server's log from now on, until Ctrl-C", takes.fg),
    "clear": (changing.clear, "empty servers' log files", takes.names),
    "avail": (_avail, "servers of the configuration file", takes.as_json),
    "reread": (_reread, "what the configuration file would change", takes.as_json),
    "update": (_update, "bring the configuration file into force", takes.update),
    "reload": (_update, "the same for all servers", takes.reload),
    "add": (_add, "add servers of the configuration file", takes.names),
    "remove": (_remove, "take stopped servers out", takes.names),
    "gpus": (_gpus, "who holds the GPUs, and what is wrong with them", takes.as_json),
    "gpu": (_gpu, "release a quarantined GPU", takes.gpu),
    "pid": (reading.pid, "pid of the daemon or of a server", takes.pid),
    "version": (reading.version, "version of the daemon", takes.as_json),
    "upgrade": (_upgrade, "replace the daemon's code by the installed one; servers go on", takes.upgrade),
    "shutdown": (changing.shutdown, "stop every server, then the daemon", takes.nothing),
    "connect": (_join, "join standard input and output to the socket (what -H runs on the host)", takes.nothing),
    "completion": (_completion, "print the completion script of a shell", takes.completion),
    "help": (_help, "this text, or a verb's", takes.about),
}
