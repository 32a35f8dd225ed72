"""The verbs that change something, and the one that waits for it: start, stop, restart, signal, wait, shutdown."""

from __future__ import annotations

import time

from supervisor.cli import codes
from supervisor.cli.connection import ANSWER_TIMEOUT_S, LostError, RefusedError
from supervisor.cli.reading import segment
from supervisor.cli.text import as_json, clean, complain, plain_name, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

    from supervisor.cli.connection import Client


_AT_REST = ("STOPPED", "EXITED")  # words that need no more to be said of who is stopped


def start(client: Client, options: Namespace) -> int:
    """`NAME: started` as soon as the daemon has begun; with --wait when requests may come."""
    asked, deadline = _expand(client, options.names), _deadline(options.timeout)

    def one(name: str) -> int:
        answer = client.post(f"/v1/servers/{segment(name)}/start", {"force": options.force})
        if not answer["changed"] and not options.wait:
            say(f"{clean(name)}: ERROR (already started)")
            return codes.OK  # as supervisorctl has it
        _tell_others(answer, name, asked, "still down: it requires {}, which is started without it")
        return codes.OK if options.wait else _done(name, "started")

    def healthy(name: str) -> int:
        return _reach(client, name, "healthy", _left_s(deadline), "started")

    return _each(client, list(asked), one, healthy if options.wait else None)


def stop(client: Client, options: Namespace) -> int:
    """`NAME: stopped` when its last process is gone and its devices are free, as supervisorctl waits too."""
    asked, deadline = _expand(client, options.names), _deadline(options.timeout)

    def one(name: str) -> int:
        answer = client.post(f"/v1/servers/{segment(name)}/stop")
        if not answer["changed"]:
            say(f"{clean(name)}: ERROR (not running)")
            return codes.OK
        _tell_others(answer, name, asked, "stopping, too: it requires {}")
        if options.no_wait:
            return _done(name, "stopping")
        return _reach(client, name, "stopped", _left_s(deadline), "stopped")

    return _each(client, list(asked), one)


def drain(client: Client, options: Namespace) -> int:
    """`NAME: drained` when its running requests have ended and it is gone; exit 5 when some had to be cut off."""
    asked = _expand(client, options.names)

    def one(name: str) -> int:
        answer = client.post(f"/v1/servers/{segment(name)}/stop", {"grace_s": options.timeout})
        if not answer["changed"]:
            say(f"{clean(name)}: ERROR (not running)")
            return codes.OK
        _tell_others(answer, name, asked, "stopping, too: it requires {}")
        if options.no_wait:
            return _done(name, "draining")
        answer = _ask(client, name, "stopped", None)  # bounded by the daemon, which kills after the time
        if answer["outcome"] == "reached" and _was_cut_off(answer["server"].get("stop")):
            say(f"{clean(name)}: ERROR (stopped, but requests were cut off)")
            return codes.TIMED_OUT
        return _done(name, "drained") if answer["outcome"] == "reached" else _told(name, answer, "stopped", quiet=False)

    return _each(client, list(asked), one)


def _was_cut_off(stop: Any) -> bool:
    """Whether the leader lived until the kill."""
    kill_s, exit_s = (stop or {}).get("kill_s"), (stop or {}).get("exit_s")
    return kill_s is not None and (exit_s is None or exit_s > kill_s)


def restart(client: Client, options: Namespace) -> int:
    """`NAME: restarted` as soon as the daemon has begun; with --wait when requests may come again."""
    if options.rolling:
        from supervisor.cli.rolling import begin

        return begin(client, "restart", options)
    asked, deadline = _expand(client, options.names), _deadline(options.timeout)

    def one(name: str) -> int:
        answer = client.post(f"/v1/servers/{segment(name)}/restart", {"reason": options.reason})
        _tell_others(answer, name, asked, "restarting, too: it goes with {}")
        return codes.OK if options.wait else _done(name, "restarted")

    def healthy(name: str) -> int:
        return _reach(client, name, "healthy", _left_s(deadline), "restarted")

    return _each(client, list(asked), one, healthy if options.wait else None)


def send_signal(client: Client, options: Namespace) -> int:
    """`NAME: signalled`."""

    def one(name: str) -> int:
        client.post(f"/v1/servers/{segment(name)}/signal", {"signal": options.signal})
        return _done(name, "signalled")

    return _each(client, options.names, one)


def pause(client: Client, options: Namespace) -> int:
    """`NAME: paused`: nothing is killed or started by itself until it is resumed."""
    return _each(client, options.names, lambda name: _switched(client, name, "pause", "paused"))


def resume(client: Client, options: Namespace) -> int:
    """`NAME: resumed`: what was held back is started."""
    return _each(client, options.names, lambda name: _switched(client, name, "resume", "resumed"))


def _switched(client: Client, name: str, verb: str, done: str) -> int:
    answer = client.post(f"/v1/servers/{segment(name)}/{verb}")
    return _done(name, done if answer["changed"] else "already paused" if verb == "pause" else "was not paused")


def clear(client: Client, options: Namespace) -> int:
    """`NAME: cleared`: the present log file is emptied."""

    def one(name: str) -> int:
        client.post(f"/v1/servers/{segment(name)}/log/clear")
        return _done(name, "cleared")

    return _each(client, options.names, one)


def wait(client: Client, options: Namespace) -> int:
    """0 when all names are healthy (or stopped), 1 as soon as one gave up, 5 when the time is over."""
    deadline = _deadline(options.timeout)
    for name in _expand(client, options.names):
        answer = _ask(client, name, options.until, _left_s(deadline))
        if options.json:
            say(as_json(answer))
        code = _told(name, answer, options.until, quiet=options.json)
        if code != codes.OK:
            return code
    return codes.OK


def shutdown(client: Client, options: Namespace) -> int:
    """The daemon stops its servers and ends; this returns at once."""
    client.post("/v1/shutdown")
    say("Shut down")
    return codes.OK


def _each(client: Client, names: list[str], one: Callable[[str], int], then: Callable[[str], int] | None = None) -> int:
    """All names are tried; a failure of one does not hide the others. `then` follows when all have been asked.

    One may wait for another of them, so that nobody is waited for before that one has been asked.
    """
    results = {name: _tried(one, name) for name in _expand(client, names)}
    if then is not None:
        results |= {name: _tried(then, name) for name, code in results.items() if code == codes.OK}
    return codes.worst(list(results.values()))


def _tell_others(answer: Any, name: str, asked: list[str], text: str) -> None:
    """Of servers that were not named and yet are concerned, once; an earlier daemon names none."""
    for other in answer.get("also", ()):
        if other not in asked:
            asked.append(other)
            say(f"{clean(other)}: {text.format(clean(name))}")


def _tried(one: Callable[[str], int], name: str) -> int:
    try:
        return one(name)
    except RefusedError as error:
        match error.status:
            case 404:
                say(f"{clean(name)}: ERROR (no such process)")
                complain(str(error))  # with a guess; the line above is supervisorctl's, which scripts read
                return codes.UNKNOWN
            case 409:
                say(f"{clean(name)}: ERROR (not running)")
                return codes.NOT_RUNNING
            case _:
                complain(f"{name}: ERROR ({error})")
                return codes.ERROR


def _expand(client: Client, names: list[str]) -> list[str]:
    if "all" in names:
        return [server["name"] for server in client.get("/v1/status")["servers"]]
    return list(dict.fromkeys(map(plain_name, names)))


def _reach(client: Client, name: str, until: str, timeout_s: float | None, word: str) -> int:
    answer = _ask(client, name, until, timeout_s)
    if answer["outcome"] == "reached":
        return _done(name, word)
    return _told(name, answer, until, quiet=False)


def _ask(client: Client, name: str, until: str, timeout_s: float | None) -> Any:
    """The daemon answers when it is decided; without a time-out only that or Ctrl-C ends the wait.

    One that is upgraded meanwhile cuts the answer, and can be asked again at once.
    """
    deadline = _deadline(timeout_s)
    while True:
        left_s = _left_s(deadline)
        query = f"for={until}" + ("" if left_s is None else f"&timeout_s={left_s:.3f}")
        patience_s = None if left_s is None else left_s + ANSWER_TIMEOUT_S
        try:
            return client.get(f"/v1/servers/{segment(name)}/wait?{query}", patience_s)
        except LostError:
            client.find_again()


def _deadline(timeout_s: float | None) -> float | None:
    """Of all names together: who gives a script a minute does not mean a minute a server."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _told(name: str, answer: Any, until: str, *, quiet: bool) -> int:
    server = answer["server"]
    seen = f"{server['state']} {server['description']}".strip()
    match answer["outcome"]:
        case "reached" if until == "stopped" and server["state"] not in _AT_REST:
            line, code = f"{until} ({seen})", codes.OK
        case "reached":
            line, code = until, codes.OK
        case "gave-up":
            line, code = f"ERROR (gave up: {seen})", codes.ERROR
        case _:
            line, code = f"ERROR (not {until} in time: {seen})", codes.TIMED_OUT
    if not quiet:
        say(f"{clean(name)}: {clean(line)}")
    return code


def _done(name: str, word: str) -> int:
    say(f"{clean(name)}: {word}")
    return codes.OK
