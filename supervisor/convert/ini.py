"""Reads a supervisord configuration as supervisord 4 does: sections, [include], comments, %(NAME)s."""

from __future__ import annotations

import configparser
import glob
import os
import re
import shlex
from collections import ChainMap
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import cast

from supervisor.convert.draft import ConversionError
from supervisor.convert.files import FILES_MAX, Files, Room

_HERE = "%(here)s"
_WORD_CHARACTERS = "/.+-():"  # what a value of environment= may hold without quotes, beside shlex's own
_TRUE, _FALSE = ("yes", "true", "on", "1"), ("no", "false", "off", "0")
_BYTES = {"kb": 2**10, "mb": 2**20, "gb": 2**30}
_LINE_MAX = 100
_FORMAT_MAX = 4  # digits of a width: `%(x)99999999d` would be a text of that length
_NAME_MAX = 256
_NAMED = rf"%(?:\(([^)]{{0,{_NAME_MAX}}})\))?[-#0 +]*"
_LONG_NAME = re.compile(rf"%\([^)]{{{_NAME_MAX + 1}}}")
_TOO_WIDE = re.compile(rf"{_NAMED}(?:\d{{{_FORMAT_MAX},}}|\*|\d*\.\d{{{_FORMAT_MAX},}})")
_MARK = re.compile(rf"{_NAMED}(\d*)(?:\.(\d*))?")


class Ini:
    """All sections of a file and of what it includes."""

    def __init__(self, path: Path, environment: Mapping[str, str], host: str) -> None:
        self._parser = _parser()
        self._files = Files()
        self.room = Room()
        self.path = path
        self.expansions = {f"ENV_{name}": value for name, value in environment.items()}
        self.expansions |= {"host_node_name": host}
        self.missing: list[str] = []  # patterns of [include] that match no file
        self._read(path)
        self._include()

    def sections(self) -> list[str]:
        return self._parser.sections()

    def names(self, section: str) -> list[str]:
        """The options that the section has, in lower case as the parser keeps them."""
        return [name for name, _ in self._parser.items(section)] if self._parser.has_section(section) else []

    def raw(self, section: str, option: str) -> str | None:
        """A value as it stands in the file."""
        return self._parser.get(section, option, fallback=None)

    def text(self, section: str, option: str, more: Mapping[str, object] | None = None) -> str | None:
        """A value with its %(NAME)s expanded; None when it is not set."""
        value = self.raw(section, option)
        return None if value is None else self.expanded(value, f"[{section}] {option}", more or {})

    def expanded(self, value: str, place: str, more: Mapping[str, object]) -> str:
        """`value` with every %(NAME)s replaced. Raises ConversionError for a name that is not known."""
        if _LONG_NAME.search(value):
            raise ConversionError(f"{place}: a name in it is longer than {_NAME_MAX} characters")
        if _TOO_WIDE.search(value):
            raise ConversionError(f"{place}: its width is out of all measure")
        names = ChainMap(cast("dict[str, object]", more), cast("dict[str, object]", self.expansions))
        self.room.take(place, len(value) + sum(_length(mark, names) for mark in _MARK.finditer(value)))
        try:
            return value % names
        except KeyError as unknown:
            name = str(unknown.args[0])
            raise ConversionError(f"{place}: {_unknown(name)}") from None
        except (ValueError, TypeError, OverflowError) as problem:
            raise ConversionError(f"{place}: {problem}; a plain percent sign is written %%") from None

    def _read(self, path: Path) -> None:
        """%(here)s is the folder of the file in which it stands."""
        text, own, here = self._files.text(path), _parser(default_section="\0"), str(path.parent)
        try:
            own.read_string(text, str(path))
        except (configparser.Error, AttributeError, ValueError) as problem:
            # AttributeError: CPython's parser (up to 3.12) on a continuation of an option without a value
            raise ConversionError(f"{path}: {_in_words(problem)}") from None
        for section in own.sections():
            values = {name: value.replace(_HERE, here) for name, value in own.items(section)}
            self._parser.read_dict({section: values}, str(path))

    def _include(self) -> None:
        """Files named by the first file alone, as supervisord does not look into those of included ones."""
        if not self._parser.has_section("include"):
            return
        files = self.text("include", "files")
        if files is None:
            raise ConversionError("[include] has no files")
        patterns = files.split()
        if len(patterns) > FILES_MAX:
            raise ConversionError(f"[include] files: more than {FILES_MAX} patterns")
        for pattern in patterns:
            found = sorted(islice(glob.iglob(os.path.join(self.path.parent, pattern)), FILES_MAX + 1))
            if not found:
                self.missing.append(pattern)
            if len(found) > FILES_MAX:
                raise ConversionError(f"[include] files: {pattern} matches more than {FILES_MAX} files")
            for name in found:
                self._read(Path(name))


def _parser(default_section: str = configparser.DEFAULTSECT) -> configparser.RawConfigParser:
    return configparser.RawConfigParser(
        inline_comment_prefixes=(";", "#"), strict=False, default_section=default_section
    )


def _length(mark: re.Match[str], names: Mapping[str, object]) -> int:
    """How long it will be at most."""
    name, width, precision = mark.groups(default="")
    return int(width or 0) + int(precision or 0) + len(str(names.get(name, "")))


def _unknown(name: str) -> str:
    if name.startswith("ENV_"):
        return f"%({name})s is not set here; call this command with the environment of supervisord"
    return f"%({name})s is not known to supervisord, and not here"


def pairs(text: str, place: str) -> dict[str, str]:
    """KEY=value,KEY="value" as supervisord cuts it. Raises ConversionError."""
    lexer = shlex.shlex(text)
    lexer.wordchars += _WORD_CHARACTERS
    try:
        tokens = list(lexer)
    except ValueError as problem:
        raise ConversionError(f"{place}: {str(problem).lower()}") from None
    result: dict[str, str] = {}
    for at in range(0, len(tokens), 4):
        match tokens[at : at + 3]:
            case [name, "=", value]:
                result[name] = value.strip("'\"")
            case _:
                raise ConversionError(f"{place}: expected KEY=value,KEY=value; values with other signs want quotes")
    return result


def boolean(text: str, place: str) -> bool:
    """yes, true, on, 1 and their opposites. Raises ConversionError."""
    word = text.lower()
    if word not in _TRUE + _FALSE:
        raise ConversionError(f"{place}: expected true or false, got {text!r}")
    return word in _TRUE


def whole(text: str, place: str) -> int:
    """A whole number of bounded length. Raises ConversionError."""
    if not re.fullmatch(r"\s*[-+]?[0-9_]{1,12}\s*", text, re.ASCII):
        raise ConversionError(f"{place}: expected a whole number, got {text[:40]!r}")
    try:
        return int(text)
    except ValueError:
        raise ConversionError(f"{place}: expected a whole number, got {text[:40]!r}") from None


def byte_size(text: str, place: str) -> int:
    """A number of bytes, KB, MB or GB, all of them powers of two here. Raises ConversionError."""
    factor = _BYTES.get(text[-2:].lower(), 0)
    return whole(text[:-2], place) * factor if factor else whole(text, place)


def _in_words(problem: Exception) -> str:
    """The parser's own words name a line as Python writes it, with the newline in it."""
    match problem:
        case configparser.MissingSectionHeaderError():
            what = f"line {problem.lineno} is in no section: {_shown(repr(problem.line))}"
            return f"{what}; expected supervisord's configuration, or a unit, with sections such as [program:NAME]"
        case configparser.ParsingError() if problem.errors:
            number, line = problem.errors[0]
            return f"line {number} is no name=value: {_shown(line)}"
        case _:
            return " ".join(str(problem).split())


def _shown(line: str) -> str:
    """Of a line as Python writes it, which no terminal obeys: without quotes and newline, bounded."""
    return line[1:-1].removesuffix("\\n")[:_LINE_MAX]
