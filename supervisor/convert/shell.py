"""Takes `bash -c "cd …; source venv/bin/activate; exec python …"` apart, where nothing in it needs a shell.

Whatever is not understood beyond doubt is Unclear: the command then stays as it is. A shell between the daemon and the
engine is not forbidden, only deaf: it gets the signal that asks for a graceful end, and does not hand it on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from supervisor.config.model import UNLIMITED
from supervisor.convert.files import EXPANDED_MAX
from supervisor.convert.shellwords import Operator, UnclearError, Word, scan

# What a service of systemd gets, and so the daemon and its servers.
SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELLS = {"bash", "sh", "dash"}
_SHEBANG = re.compile(r"#! ?(?:/usr/bin/env |/usr/bin/|/bin/)(?:bash|sh|dash)(?: -[eux]+)?\s*")
_FLAGS = re.compile(r"-[eux]*c", re.ASCII)  # not -l, -i: these read files that say more
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=", re.ASCII)
_LIMITS = {"-n": "nofile", "-l": "memlock"}
_KIB = 1024  # `ulimit -l` counts in these
_HARMLESS = {(":",), ("true",), ("set", "-e"), ("set", "-u"), ("set", "-eu"), ("set", "-x"), ("set", "-ex"),
             ("set", "-eux"), ("set", "-euo", "pipefail"), ("set", "-o", "pipefail")}  # fmt: skip


class Plain(msgspec.Struct, frozen=True):
    """The same without a shell. `limits` are nofile and memlock as given; the rest is None or empty where not said."""

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str | None = None
    nofile: int | None = None
    memlock: int | None = None
    remarks: tuple[str, ...] = ()


class Opaque(msgspec.Struct, frozen=True):
    """It stays a shell's; `reason` says what was not understood."""

    reason: str


def unwrapped(command: Sequence[str], environment: Mapping[str, str], directory: str | None) -> Plain | Opaque | None:
    """None when the command is no shell's script. `environment` and `directory` are what it starts in."""
    if PurePosixPath(command[0]).name not in _SHELLS or not any(_has_script(word) for word in command[1:]):
        return None
    if len(command) != 3 or not _FLAGS.fullmatch(command[1]):
        return Opaque(f"{' '.join(command[:-1])!r} is more than a shell and a script")
    return understood(command[2], environment, directory)


def script_file(command: Sequence[str], directory: str | None) -> Path | None:
    """The script that the command is, `bash FILE` or a FILE that a shell reads, without arguments; None otherwise."""
    by_shell = PurePosixPath(command[0]).name in _SHELLS
    words = command[1:] if by_shell else command
    if len(words) != 1 or words[0].startswith("-") or not (by_shell or "/" in words[0]):
        return None
    path = Path(directory or "/", words[0])
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and (by_shell or _SHEBANG.fullmatch(_first_line(path))):
            return path
    return None


def _first_line(path: Path) -> str:
    with path.open("rb") as file:
        return file.readline(200).decode(errors="replace")


def understood(script: str, environment: Mapping[str, str], directory: str | None) -> Plain | Opaque:
    """What the script comes to, or why nobody can say."""
    try:
        return _Reading(environment, directory).read(script)
    except UnclearError as reason:
        return Opaque(str(reason))


def _has_script(word: str) -> bool:
    return bool(re.fullmatch(r"-[a-z]*c", word))


class _Reading:
    """A script's commands one after another, each of which must leave nothing but what is gathered here."""

    def __init__(self, environment: Mapping[str, str], directory: str | None) -> None:
        self._given = dict(environment)
        self._known = {"PATH": SERVICE_PATH, **environment}
        self._exported = set(environment) | {"PATH"}
        self._directory = directory
        self._limits: dict[str, int] = {}
        self._venv = ""
        self._remarks: list[str] = []
        self._left = EXPANDED_MAX  # a variable can be made of itself again and again

    def read(self, script: str) -> Plain:
        *before, last = _commands(script)
        for words in before:
            self._step(words)
        return self._program(last)

    def _step(self, parts: Sequence[Word | Operator]) -> None:
        words = self._expanded(parts)
        match words:
            case _ if words in _HARMLESS:
                pass
            case ("cd", path):
                self._cd(path)
            case ("source" | ".", path):
                self._activate(path)
            case ("export", *assignments) if assignments:
                for one in assignments:
                    self._assign(one, exported=True)
            case ("ulimit", flag, value) if flag in _LIMITS:
                self._limit(flag, value)
            case _ if words and all(_ASSIGNMENT.match(word) for word in words):
                for one in words:
                    self._assign(one, exported=False)
            case _:
                raise UnclearError(f"nobody can say from here what {words[0] if words else ''!r} does")

    def _program(self, parts: Sequence[Word | Operator]) -> Plain:
        words = list(self._expanded(self._without_redirects(parts)))
        while words and _ASSIGNMENT.match(words[0]):
            self._assign(words.pop(0), exported=True)
        if words[:1] == ["exec"]:
            words = words[1:]
        if not words or words[0].startswith("-") or words[0] in _BUILTINS:
            raise UnclearError("its last command starts no program")
        exported = {name: self._known[name] for name in self._known if name in self._exported}
        environment = {name: value for name, value in exported.items() if self._given.get(name) != value}
        if environment.get("PATH") == SERVICE_PATH:
            del environment["PATH"]
        elif "PATH" in environment and "PATH" not in self._given:
            self._remarks.append(f"PATH is what the script adds and a service's own, {SERVICE_PATH}")
        return Plain(
            command=(self._program_path(words[0]), *words[1:]),
            environment=self._given | environment,
            directory=self._directory,
            nofile=self._limits.get("nofile"),
            memlock=self._limits.get("memlock"),
            remarks=tuple(self._remarks),
        )

    def _program_path(self, program: str) -> str:
        """A Python of the activated environment is named in full, so that `sglsup check` finds its packages."""
        if self._venv and re.fullmatch(r"python[\d.]*", program, re.ASCII):
            return f"{self._venv}/bin/{program}"
        return program

    def _expanded(self, parts: Sequence[Word | Operator]) -> tuple[str, ...]:
        words = []
        for part in parts:
            if isinstance(part, Operator):
                raise UnclearError(f"{part.text!r} needs a shell")
            words.append(part.expanded(self._known))
            self._left -= len(words[-1])
            if self._left < 0:
                raise UnclearError("written out it is longer than any command may be")
        return tuple(words)

    def _without_redirects(self, parts: Sequence[Word | Operator]) -> list[Word | Operator]:
        """Output that went to a file goes to the server's log instead; input is not thrown away."""
        kept: list[Word | Operator] = []
        rest = iter(parts)
        for part in rest:
            if isinstance(part, Operator) and part.output:
                target = next(rest, None)
                if not isinstance(target, Word):
                    raise UnclearError(f"{part.text!r} goes nowhere")
                where = target.expanded(self._known)
                if not (part.duplicates and where in "12"):
                    self._remarks.append(f"its output went to {where}; here it is in the server's own log")
            else:
                kept.append(part)
        return kept

    def _cd(self, path: str) -> None:
        if not path or path.startswith("-"):
            raise UnclearError(f"'cd {path}' depends on what was before")
        self._directory = self._absolute(path)

    def _activate(self, path: str) -> None:
        """`activate` of a virtual environment sets two variables; any other file may do anything."""
        place = PurePosixPath(self._absolute(path))
        if place.name != "activate" or place.parent.name != "bin":
            raise UnclearError(f"nobody can say from here what {path} does")
        self._venv = str(place.parent.parent)
        self._known |= {"VIRTUAL_ENV": self._venv, "PATH": f"{self._venv}/bin:{self._known['PATH']}"}
        self._exported |= {"VIRTUAL_ENV", "PATH"}

    def _absolute(self, path: str) -> str:
        if not path.startswith("/") and self._directory is None:
            raise UnclearError(f"{path} is relative to a directory that is not known")
        return str(PurePosixPath(self._directory or "/", path))

    def _assign(self, word: str, *, exported: bool) -> None:
        match = _ASSIGNMENT.match(word)
        name = match[1] if match else word
        if match is not None:
            self._known[name] = word[match.end() :]
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word, re.ASCII) or name not in self._known:
            raise UnclearError(f"'export {word}' sets nothing that is known here")
        if exported:
            self._exported.add(name)

    def _limit(self, flag: str, value: str) -> None:
        if value != "unlimited" and not (value.isascii() and value.isdigit() and len(value) < 16):
            raise UnclearError(f"'ulimit {flag} {value}' is no number")
        factor = _KIB if flag == "-l" else 1
        self._limits[_LIMITS[flag]] = UNLIMITED if value == "unlimited" else int(value) * factor


# As a script's last command these start no program that would take the shell's place.
_BUILTINS = {
    "cd", "source", ".", "export", "ulimit", "set", "eval", "trap", "wait", "if", "for", "while", "until", "case", "{",
    "!", "function", "time", "coproc", "select", "alias", "unset", "read", "exit", "return", "umask", "declare",
    "local", "command", "builtin", "shopt",
}  # fmt: skip


def _commands(script: str) -> list[list[Word | Operator]]:
    """The simple commands, which follow one another whatever stands between them: all but the last must succeed."""
    commands: list[list[Word | Operator]] = [[]]
    for part in scan(script):
        if isinstance(part, Operator) and part.separates:
            commands.append([])
        else:
            commands[-1].append(part)
    filled = [command for command in commands if command]
    if not filled:
        raise UnclearError("its script is empty")
    return filled
