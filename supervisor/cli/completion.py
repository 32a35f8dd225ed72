"""Writes the completion of sglctl for bash, zsh and fish, from its own parser."""

from __future__ import annotations

import argparse

from supervisor.cli import codes
from supervisor.cli.groups import MARK
from supervisor.cli.text import clean, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from supervisor.cli.connection import Client

    Verbs: TypeAlias = "dict[str, tuple[str, argparse.ArgumentParser]]"

_NAMES = "completion names 2>/dev/null"
_PATHS = ("FILE", "D", "LOG", "JOURNAL|LOG")


def completion(client: Client, options: argparse.Namespace) -> int:
    """Print the script for one shell, or the names that it completes, a line each."""
    if options.shell == "names":
        for name in _known(client):
            say(clean(name))
        return codes.OK
    say(script(options.shell).rstrip("\n"))
    return codes.OK


def _known(client: Client) -> Iterator[str]:
    yield "all"
    yield from (server["name"] for server in client.get("/v1/status")["servers"])
    yield from (f"{MARK}{group['name']}" for group in client.get("/v1/groups")["groups"])


def script(shell: str) -> str:
    """The script for bash, zsh or fish."""
    from supervisor.cli.main import parser

    writers: dict[str, Callable[[Verbs], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return "\n".join(writers[shell](_verbs(parser()))) + "\n"


def _verbs(top: argparse.ArgumentParser) -> Verbs:
    """Each verb with its words and its parser."""
    (verbs,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    texts = {choice.dest: choice.help or "" for choice in verbs._choices_actions}
    return {name: (texts[name], verb) for name, verb in verbs.choices.items()}


def options_of(verb: argparse.ArgumentParser) -> list[argparse.Action]:
    """What begins with a dash."""
    return [action for action in verb._actions if action.option_strings]


def positionals_of(verb: argparse.ArgumentParser) -> list[argparse.Action]:
    """What stands by its place."""
    return [action for action in verb._actions if not action.option_strings]


def is_path(action: argparse.Action) -> bool:
    """Whether its value is a file or a directory, by its word in the help."""
    return action.metavar in _PATHS


def _takes_names(verb: argparse.ArgumentParser) -> bool:
    return any("NAME" in str(action.metavar) for action in positionals_of(verb))


def _choices(verb: argparse.ArgumentParser, verbs: Verbs) -> list[str]:
    """Fixed words that may stand as arguments."""
    words = [str(choice) for action in positionals_of(verb) for choice in action.choices or ()]
    if any(action.dest == "about" for action in positionals_of(verb)):
        words += verbs
    return words


# --- bash ------------------------------------------------------------------------------------------------------------


def _bash(verbs: Verbs) -> Iterator[str]:
    yield "# bash completion of sglctl; written by `sglctl completion bash`"
    yield "_sglctl() {"
    yield "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}"
    yield "    local verb='' words='' names='' at"
    yield "    COMPREPLY=()"
    yield "    # bash breaks words at colons: a group's name comes in three"
    yield "    if [[ $previous == g && $current == : ]]; then"
    yield "        current=g:"
    yield "    elif [[ $previous == : && ${COMP_WORDS[COMP_CWORD-2]} == g ]]; then"
    yield "        current=g:$current"
    yield "    fi"
    yield "    for ((at = 1; at < COMP_CWORD; at++)); do"
    yield "        case ${COMP_WORDS[at]} in"
    yield "            -s|--socket|-H) ((at++)) ;;"
    yield "            -*) ;;"
    yield "            *) verb=${COMP_WORDS[at]}; break ;;"
    yield "        esac"
    yield "    done"
    yield "    if [[ $previous == -s || $previous == --socket || $previous == -o || $previous == --output ]]; then"
    yield '        mapfile -t COMPREPLY < <(compgen -f -- "$current")'
    yield "        return"
    yield "    fi"
    yield "    case $verb in"
    yield f"        '') words='-s -H -h --version {' '.join(verbs)}' ;;"
    for name, (_, verb) in verbs.items():
        options = [option for action in options_of(verb) for option in action.option_strings]
        names = " names=1" if _takes_names(verb) else ""
        yield f"        {name}) words='{' '.join([*options, *_choices(verb, verbs)])}'{names} ;;"
    yield "    esac"
    yield "    case $verb:$previous in"
    for name, (_, verb) in verbs.items():
        for action in options_of(verb):
            if action.choices:
                before = "|".join(f"{name}:{option}" for option in action.option_strings)
                yield f"        {before}) words='{' '.join(map(str, action.choices))}' names='' ;;"
    yield "    esac"
    yield "    if [[ -n $names && $current != -* ]]; then"
    yield f'        words+=" $("${{COMP_WORDS[@]:0:at}}" {_NAMES})"'
    yield "    fi"
    yield '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")'
    yield '    [[ $current == "${COMP_WORDS[COMP_CWORD]}" ]] || COMPREPLY=("${COMPREPLY[@]#g:}")'
    yield "}"
    yield "complete -F _sglctl sglctl"


# --- zsh -------------------------------------------------------------------------------------------------------------


def _zsh(verbs: Verbs) -> Iterator[str]:
    yield "#compdef sglctl"
    yield "# zsh completion of sglctl; written by `sglctl completion zsh`"
    yield "_sglctl_names() {"
    yield "    local -a names"
    yield f'    names=(${{(f)"$(sglctl ${{(kv)opt_args[(I)-s|--socket|-H]}} {_NAMES})"}})'
    yield "    compadd -a names"
    yield "}"
    socket = "'(-s --socket)'{-s,--socket}'[socket of the daemon]:socket:_files'"
    options = f"{socket} \\\n        '*-H[a host, over ssh]:host:_hosts'"
    words = [(name, text, _zsh_specs(verb, verbs)) for name, (text, verb) in verbs.items()]
    yield from zsh_function("sglctl", "verb", options, words)


def _zsh_specs(verb: argparse.ArgumentParser, verbs: Verbs) -> list[str]:
    specs = [zsh_spec(action) for action in options_of(verb)]
    if choices := _choices(verb, verbs):
        specs.append(quoted(f"1:word:({' '.join(choices)})"))
    return [*specs, *(["'*:name:_sglctl_names'"] if _takes_names(verb) else [])]


def zsh_function(tool: str, word: str, options: str, words: Sequence[tuple[str, str, list[str]]]) -> Iterator[str]:
    """The function of a tool whose first argument is one of `words`: name, text and what may follow, for _arguments."""
    yield f"_{tool}() {{"
    yield "    local state line"
    yield "    typeset -A opt_args"
    yield f"    local -a {word}s=("
    for name, text, _ in words:
        yield f"        {quoted(f'{name}:{text}')}"
    yield "    )"
    yield f"    _arguments -C {options} '1:{word}:->{word}' '*::argument:->argument'"
    yield "    case $state in"
    yield f"        {word}) _describe {word} {word}s ;;"
    yield "        argument)"
    yield "            case $words[1] in"
    for name, _, specs in words:
        yield f"                {name}) _arguments {' '.join(specs)} ;;"
    yield "            esac ;;"
    yield "    esac"
    yield "}"
    yield f'_{tool} "$@"'


def zsh_spec(action: argparse.Action) -> str:
    """The option for zsh's _arguments."""
    text = (action.help or "").replace("[", "(").replace("]", ")").replace(":", ",")
    word = str(action.metavar or action.dest).replace(":", "\\:")
    value = "" if action.nargs == 0 else f":{word}:{_zsh_values(action)}"
    return " ".join(quoted(f"{option}[{text}]{value}") for option in action.option_strings)


def _zsh_values(action: argparse.Action) -> str:
    if action.choices:
        return f"({' '.join(map(str, action.choices))})"
    return "_files" if is_path(action) else ""


# --- fish ------------------------------------------------------------------------------------------------------------


def _fish(verbs: Verbs) -> Iterator[str]:
    yield "# fish completion of sglctl; written by `sglctl completion fish`"
    yield "complete -c sglctl -f"
    yield "complete -c sglctl -s s -l socket -r -F -d 'socket of the daemon'"
    yield "complete -c sglctl -s H -x -d 'a host, over ssh'"
    for name, (text, verb) in verbs.items():
        yield f"complete -c sglctl -n __fish_use_subcommand -a {name} -d {quoted(text)}"
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for action in options_of(verb):
            yield f"complete -c sglctl {seen} {fish_option(action)}"
        if words := _choices(verb, verbs):
            yield f"complete -c sglctl {seen} -a '{' '.join(words)}'"
        if _takes_names(verb):
            yield f'complete -c sglctl {seen} -a "(sglctl {_NAMES})"'


def fish_option(action: argparse.Action) -> str:
    """The option for fish's complete."""
    names = [f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in action.option_strings]
    value = [] if action.nargs == 0 else ["-r -F"] if is_path(action) else ["-x"]
    choices = [f"-a '{' '.join(map(str, action.choices))}'"] if action.choices else []
    return " ".join([*names, *value, *choices, "-d", quoted(action.help or "")])


def quoted(text: str) -> str:
    """For all three shells: a quote ends the quoted part, stands escaped, and begins another."""
    return "'" + text.replace("'", "'\\''") + "'"
