"""`sglsup`: hands the command line to the daemon, a run without configuration or an offline tool.

Each command's module is imported when it is called: `sglsup version` must not pay for an HTTP server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from supervisor import __version__

DISTRIBUTION = "sglang-supervisor"
RIVAL = "supervisor"  # the PyPI project whose package has our package's name
EXIT_USAGE = 2
EXIT_RIVAL = 1


class Command(NamedTuple):
    """A subcommand: what it does, and the function that parses the rest of the command line and returns the status."""

    summary: str
    run: Callable[[Sequence[str]], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    rival = found_rival()
    if rival:
        sys.stderr.write(f"sglsup: {rival}\n")
        return EXIT_RIVAL
    if not words or words[0] not in COMMANDS:
        return _no_command(words)
    try:
        return COMMANDS[words[0]].run(words[1:])
    except ValueError as problem:
        from supervisor.profile import ProfileError  # costs milliseconds that `version` must not pay

        if not isinstance(problem, ProfileError):
            raise
        sys.stderr.write(f"sglsup: {problem}\n")
        return EXIT_USAGE


def _no_command(words: Sequence[str]) -> int:
    if not words or not words[0].startswith("-"):
        what = _unknown(words[0]) if words else "expected a command;"
        sys.stderr.write(f"usage: sglsup COMMAND [ARGUMENTS]\nsglsup: error: {what} `sglsup -h` lists them\n")
        return EXIT_USAGE
    parser().parse_args(words)  # answers -h and --version, refuses the rest
    return EXIT_USAGE


def _unknown(word: str) -> str:
    import difflib

    from supervisor.lines import printable

    near = difflib.get_close_matches(word, COMMANDS, 1, 0.5)
    meant = f', did you mean "{near[0]}"?' if near else ";"
    return f'there is no command "{printable(word)}"{meant}'


def found_rival() -> str:
    """Why this environment cannot be used; "" when nothing of the PyPI project Supervisor is in it."""
    advice = f"install {DISTRIBUTION} into a virtual environment of its own"
    package = Path(__file__).parent
    try:
        version = metadata.version(RIVAL)
    except metadata.PackageNotFoundError:
        if not (package / "supervisord.py").exists():
            return ""
        return f"cannot start: files of the PyPI project {RIVAL} lie among ours in {package}; {advice}"
    return f"cannot start: {RIVAL} {version} is installed beside us and both packages have one name; {advice}"


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    listed = "\n".join(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items())
    result = argparse.ArgumentParser(
        prog="sglsup",
        usage="sglsup COMMAND [ARGUMENTS]",
        description="Starts, watches, explains, kills and restarts the inference servers of one GPU host.",
        epilog=f"commands:\n{listed}\n\n`sglsup COMMAND -h` tells a command's arguments; sglctl controls the daemon.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("--version", action="version", version=f"sglsup {__version__}")
    return result


def _daemon(arguments: Sequence[str]) -> int:
    from supervisor.daemon import main as run_daemon

    return run_daemon(arguments)


def _run(arguments: Sequence[str]) -> int:
    from supervisor.run import main as run_one

    return run_one(arguments)


def _diagnose(arguments: Sequence[str]) -> int:
    from supervisor.diagnose import main as diagnose

    return diagnose(arguments)


def _runbook(arguments: Sequence[str]) -> int:
    from supervisor.runbook import main as tell

    return tell(arguments)


def _replay(arguments: Sequence[str]) -> int:
    from supervisor.replay import main as replay

    return replay(arguments)


def _check(arguments: Sequence[str]) -> int:
    from supervisor.check import main as check

    return check(arguments)


def _convert(arguments: Sequence[str]) -> int:
    from supervisor.convert import main as convert

    return convert(arguments)


def _demo(arguments: Sequence[str]) -> int:
    from supervisor.demo import main as show

    return show(arguments)


def _completion(arguments: Sequence[str]) -> int:
    from supervisor.completion import main as complete

    return complete(arguments, summaries())


def _version(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="sglsup version", allow_abbrev=False).parse_args(arguments)
    sys.stdout.write(f"{__version__}\n")
    return 0


COMMANDS = {
    "daemon": Command("run the daemon in the foreground (systemd does)", _daemon),
    "run": Command("supervise one server without configuration: sglsup run -- CMD...", _run),
    "check": Command("say before a start what would end it: sglsup check FILE | -- CMD...", _check),
    "diagnose": Command("tell from a log what happened: sglsup diagnose LOG", _diagnose),
    "runbook": Command("tell what to do about a cause: sglsup runbook CAUSE", _runbook),
    "replay": Command("judge a recorded night by today's rules: sglsup replay JOURNAL|LOG", _replay),
    "convert": Command("write supervisord's configuration, or a unit, as ours: sglsup convert FILE", _convert),
    "demo": Command("two fake servers, one of which stalls, live in the terminal", _demo),
    "completion": Command("print the completion script of a shell: sglsup completion bash|zsh|fish", _completion),
    "version": Command("print the version", _version),
}


def summaries() -> dict[str, str]:
    """Each command with its line in the help."""
    return {name: command.summary for name, command in COMMANDS.items()}


if __name__ == "__main__":
    sys.exit(main())
