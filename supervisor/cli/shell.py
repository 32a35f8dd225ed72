"""The interactive shell: one verb a line, with history and completion, as supervisorctl has it."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable

from supervisor.cli.connection import Client, RefusedError, UnreachableError
from supervisor.cli.text import clean, complain

PROMPT = "sglctl> "
HISTORY = "~/.sglctl_history"
HISTORY_LINES = 1000
_LEAVING = ("quit", "exit", "EOF")


def interact(run: Callable[[list[str]], int], client: Client, verbs: Iterable[str]) -> None:
    """Read verbs until the end of the input; a failing one ends nothing."""
    if sys.stdin.isatty():
        _prepare_line_editing(Completer(client, verbs))
    _once(run, ["status"])
    while (line := _next_line()) is not None:
        try:
            words = shlex.split(line)
        except ValueError as error:
            complain(f"cannot read the line: {error}")
            continue
        if words and words[0] in _LEAVING:
            return
        if words:
            _once(run, words)


def _next_line() -> str | None:
    """None at the end of the input; Ctrl-C forgets the line."""
    sys.stdout.flush()
    try:
        return input(PROMPT if sys.stdin.isatty() else "")
    except EOFError:
        if sys.stdin.isatty():
            sys.stdout.write("\n")
        return None
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return ""


def _once(run: Callable[[list[str]], int], words: list[str]) -> None:
    """argparse leaves the process on wrong usage, which here ends the line alone."""
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        run(words)


def _prepare_line_editing(completer: Completer) -> None:
    import atexit
    import readline

    path = os.path.expanduser(HISTORY)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    atexit.register(_keep_history, path)
    readline.set_completer_delims(" ")
    readline.set_completer(completer.complete)
    readline.parse_and_bind("tab: complete")


def _keep_history(path: str) -> None:
    import readline

    with contextlib.suppress(OSError):
        readline.write_history_file(path)


class Completer:
    """Verbs first, then the names of servers, asked from the daemon once a line."""

    def __init__(self, client: Client, verbs: Iterable[str]) -> None:
        self._client = client
        self._verbs = (*verbs, "quit", "exit")
        self._words: list[str] = []

    def complete(self, text: str, state: int) -> str | None:
        """readline's protocol: the state-th word that begins with the text."""
        if state == 0:
            import readline

            first = not readline.get_line_buffer()[: readline.get_begidx()].strip()
            self._words = matching(text, self._verbs if first else (*self._names(), "all"))
        return self._words[state] if state < len(self._words) else None

    def _names(self) -> tuple[str, ...]:
        try:
            return tuple(clean(server["name"]) for server in self._client.get("/v1/status", 2.0)["servers"])
        except (UnreachableError, RefusedError):
            return ()


def matching(text: str, words: tuple[str, ...]) -> list[str]:
    """Those that begin with the text, each with the blank that follows it."""
    return [f"{word} " for word in words if word.startswith(text)]
