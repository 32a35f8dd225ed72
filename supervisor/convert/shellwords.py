"""Cuts a shell script into words and operators as far as these mean the same whatever the shell's state.

Substitutions, patterns, pipes, jobs and compound commands are UnclearError: they need a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from supervisor.convert.files import WORD_MAX

_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_OPERATOR = re.compile(r"&&|&>>|&>|[0-9]*>>|[0-9]*>&|[0-9]*>|;;|[;\n]|\|\||[|&<()]", re.ASCII)
_ENDS_WORD = " \t\n;&|<>()"
_ESCAPED_IN_QUOTES = '$`"\\'
_PATTERN = "*?[{~"  # of these bash makes other things, some only in some places: none is let through bare


class UnclearError(ValueError):
    """A script says what only a shell can tell; the text says what."""


class Piece(msgspec.Struct, frozen=True):
    """Part of a word: text, or the name of a variable. `bare`: outside of quotes, where its value would be split."""

    text: str
    variable: bool = False
    bare: bool = False


class Word(msgspec.Struct, frozen=True):
    """What stands between two blanks."""

    pieces: tuple[Piece, ...]

    def expanded(self, known: Mapping[str, str]) -> str:
        """Its value. Raises UnclearError for a variable that is not known, or whose value would become other words."""
        values = [_value(piece, known) for piece in self.pieces]
        if sum(map(len, values)) > WORD_MAX:
            raise UnclearError("one of its words is longer than any argument of a program may be")
        return "".join(values)


class Operator(msgspec.Struct, frozen=True):
    """What stands between words and is none."""

    text: str

    @property
    def separates(self) -> bool:
        return self.text in ("&&", ";", "\n")

    @property
    def output(self) -> bool:
        return ">" in self.text

    @property
    def duplicates(self) -> bool:
        return self.text.endswith(">&")


def scan(script: str) -> Iterator[Word | Operator]:
    """The script's words and operators. Raises UnclearError at what needs a shell."""
    at = 0
    script = script.replace("\\\n", "")
    while at < len(script):
        operator = _OPERATOR.match(script, at)
        if script[at] in " \t":
            at += 1
        elif script[at] == "#":
            end = script.find("\n", at)
            at = end if end >= 0 else len(script)
        elif operator:
            yield _allowed(operator[0])
            at = operator.end()
        else:
            word, at = _word(script, at)
            yield word


def _allowed(text: str) -> Operator:
    if text in ("|", "||", "&", "<", "(", ")", ";;"):
        raise UnclearError(f"{text!r} needs a shell")
    return Operator(text)


def _word(script: str, at: int) -> tuple[Word, int]:
    pieces: list[Piece] = []
    while at < len(script) and script[at] not in _ENDS_WORD:
        match script[at]:
            case "'":
                end = _closing(script, at, "'")
                pieces.append(Piece(script[at + 1 : end]))
                at = end + 1
            case '"':
                quoted, at = _quoted(script, at + 1)
                pieces += quoted
            case "\\":
                pieces.append(Piece(script[at + 1 : at + 2]))
                at += 2
            case "$":
                piece, at = _variable(script, at, bare=True)
                pieces.append(piece)
            case letter if letter in _PATTERN or letter == "`":
                raise UnclearError(f"a bare {letter!r} needs a shell")
            case letter:
                pieces.append(Piece(letter))
                at += 1
    return Word(tuple(pieces)), at


def _quoted(script: str, at: int) -> tuple[list[Piece], int]:
    """What stands between double quotes, and where it goes on behind them."""
    pieces = [Piece("")]  # "" is a word, too
    while at < len(script):
        match script[at]:
            case '"':
                return pieces, at + 1
            case "\\" if script[at + 1 : at + 2] and script[at + 1] in _ESCAPED_IN_QUOTES:
                pieces.append(Piece(script[at + 1]))
                at += 2
            case "$":
                piece, at = _variable(script, at, bare=False)
                pieces.append(piece)
            case "`":
                raise UnclearError("a command's output needs a shell")
            case letter:
                pieces.append(Piece(letter))
                at += 1
    raise UnclearError("a quote is not closed")


def _closing(script: str, at: int, quote: str) -> int:
    end = script.find(quote, at + 1)
    if end < 0:
        raise UnclearError("a quote is not closed")
    return end


def _variable(script: str, at: int, *, bare: bool) -> tuple[Piece, int]:
    name = _NAME.match(script, at + 1)
    if name is None:
        if script[at + 1 : at + 2] in ("", " ", "\t", "\n", '"') and not (bare and script[at + 1 : at + 2] == '"'):
            return Piece("$"), at + 1
        raise UnclearError(f"{script[at : at + 2]!r} needs a shell")
    return Piece(name[1] or name[2], variable=True, bare=bare), name.end()


def _value(piece: Piece, known: Mapping[str, str]) -> str:
    if not piece.variable:
        return piece.text
    if piece.text not in known:
        raise UnclearError(f"${piece.text} is only known when it runs")
    value = known[piece.text]
    if piece.bare and (not value or any(letter in " \t\n*?[" for letter in value)):
        raise UnclearError(f"${piece.text} without quotes would become other words")
    return value
