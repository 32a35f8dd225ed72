"""Writes the completion of sglsup for bash, zsh and fish, from its commands' own parsers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from supervisor import check, convert, daemon, diagnose, replay, run, runbook
from supervisor.cli.completion import fish_option, is_path, options_of, positionals_of, quoted, zsh_function, zsh_spec
from supervisor.demo import command as demo
from supervisor.output import for_a_reader

Commands: TypeAlias = "dict[str, tuple[str, argparse.ArgumentParser]]"
SHELLS = ("bash", "zsh", "fish")
_CAUSES = "runbook 2>/dev/null"


def main(arguments: Sequence[str], summaries: Mapping[str, str]) -> int:
    """Print the script for one shell; `summaries` are the commands' lines in the help."""
    shell = parser().parse_args(arguments).shell
    with for_a_reader():
        sys.stdout.write(script(shell, summaries))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(
        prog="sglsup completion",
        description="Print the completion script of a shell, as in etc/completion/ of the source.",
        epilog="exit status: 0 printed, 2 usage",
        allow_abbrev=False,
    )
    result.add_argument("shell", choices=SHELLS, help="whose script")
    return result


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Each command that takes arguments, with its parser."""
    return {
        "daemon": daemon.parser(),
        "run": run.parser(),
        "check": check.parser(),
        "diagnose": diagnose.parser(),
        "runbook": runbook.parser(),
        "replay": replay.parser(),
        "convert": convert.parser(),
        "demo": demo.parser(),
        "completion": parser(),
    }


def script(shell: str, summaries: Mapping[str, str]) -> str:
    """The script for bash, zsh or fish."""
    writers: dict[str, Callable[[Commands], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    without = argparse.ArgumentParser()  # what every command has: -h
    given = parsers()
    return (
        "\n".join(writers[shell]({name: (text, given.get(name, without)) for name, text in summaries.items()})) + "\n"
    )


def _words(command: argparse.ArgumentParser) -> list[str]:
    """Fixed words that may stand as arguments."""
    return [str(choice) for action in positionals_of(command) for choice in action.choices or ()]


def _takes(command: argparse.ArgumentParser, metavar: str) -> bool:
    return any(action.metavar == metavar for action in positionals_of(command))


def _takes_paths(command: argparse.ArgumentParser) -> bool:
    return any(map(is_path, positionals_of(command)))


def _takes_a_command(name: str) -> bool:
    """Behind `--`."""
    return name in ("run", "check")


# --- bash ------------------------------------------------------------------------------------------------------------


def _bash(commands: Commands) -> Iterator[str]:
    yield "# bash completion of sglsup; written by `sglsup completion bash`"
    yield "_sglsup() {"
    yield "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words='' files='' at"
    yield "    COMPREPLY=()"
    yield "    if ((COMP_CWORD == 1)); then"
    yield f"        mapfile -t COMPREPLY < <(compgen -W '-h --help --version {' '.join(commands)}' -- \"$current\")"
    yield "        return"
    yield "    fi"
    yield "    for ((at = 2; at < COMP_CWORD; at++)); do"
    yield "        [[ ${COMP_WORDS[at]} == -- ]] || continue"
    yield "        # behind it stands another command's line"
    yield "        if ((at == COMP_CWORD - 1)); then"
    yield '            mapfile -t COMPREPLY < <(compgen -c -f -- "$current")'
    yield "        else"
    yield '            mapfile -t COMPREPLY < <(compgen -f -- "$current")'
    yield "        fi"
    yield "        return"
    yield "    done"
    yield "    case ${COMP_WORDS[1]}:$previous in"
    for name, (_, command) in commands.items():
        yield from _bash_values(name, command)
    for name, (_, command) in commands.items():
        options = [option for action in options_of(command) for option in action.option_strings]
        causes = ' $("${COMP_WORDS[0]}" ' + _CAUSES + ")" if _takes(command, "CAUSE") else ""
        words = " ".join([*options, *_words(command), *(["--"] if _takes_a_command(name) else [])])
        files = " files=1" if _takes_paths(command) else ""
        yield f'        {name}:*) words="{words}{causes}"{files} ;;'
    yield "    esac"
    yield "    [[ -z $files ]] || compopt -o filenames 2>/dev/null"
    yield '    mapfile -t COMPREPLY < <(compgen ${files:+-f} -W "$words" -- "$current")'
    yield "}"
    yield "complete -F _sglsup sglsup"


def _bash_values(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    """What may follow an option that takes a value."""
    for action in options_of(command):
        if action.nargs == 0:
            continue
        what = "files=1" if is_path(action) else f'words="{" ".join(map(str, action.choices or ()))}"'
        yield f"        {'|'.join(f'{name}:{option}' for option in action.option_strings)}) {what} ;;"


# --- zsh -------------------------------------------------------------------------------------------------------------


def _zsh(commands: Commands) -> Iterator[str]:
    yield "#compdef sglsup"
    yield "# zsh completion of sglsup; written by `sglsup completion zsh`"
    yield "_sglsup_causes() {"
    yield "    local -a causes"
    yield f'    causes=(${{(f)"$(sglsup {_CAUSES})"}})'
    yield "    compadd -a causes"
    yield "}"
    words = [(name, text, _zsh_specs(name, command)) for name, (text, command) in commands.items()]
    yield from zsh_function("sglsup", "command", "'--version[print the version]'", words)


def _zsh_specs(name: str, command: argparse.ArgumentParser) -> list[str]:
    return [*(zsh_spec(action) for action in options_of(command)), *_zsh_places(name, command)]


def _zsh_places(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    if words := _words(command):
        yield quoted(f"1:word:({' '.join(words)})")
    if _takes(command, "CAUSE"):
        yield quoted("1:cause:_sglsup_causes")
    if _takes_paths(command):
        yield quoted("1:file:_files")
    if _takes_a_command(name):
        yield quoted("*:::command:_normal")


# --- fish ------------------------------------------------------------------------------------------------------------


def _fish(commands: Commands) -> Iterator[str]:
    yield "# fish completion of sglsup; written by `sglsup completion fish`"
    yield "complete -c sglsup -f"
    yield "complete -c sglsup -n __fish_use_subcommand -l version -d 'print the version'"
    for name, (text, command) in commands.items():
        yield f"complete -c sglsup -n __fish_use_subcommand -a {name} -d {quoted(text)}"
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for action in options_of(command):
            yield f"complete -c sglsup {seen} {fish_option(action)}"
        if words := _words(command):
            yield f"complete -c sglsup {seen} -a '{' '.join(words)}'"
        if _takes(command, "CAUSE"):
            yield f'complete -c sglsup {seen} -a "(sglsup {_CAUSES})"'
        if _takes_paths(command) or _takes_a_command(name):
            yield f"complete -c sglsup {seen} -F"
