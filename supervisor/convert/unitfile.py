"""Reads a systemd unit as systemd does: sections, continuations, repeated keys, its own quoting of words."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from pathlib import Path

from supervisor.convert.draft import ConversionError
from supervisor.convert.files import Files, Room

_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ",
    "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip
_NUMBERED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})", re.ASCII)
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"\$\$|\$\{{({_NAME})\}}", re.ASCII)
_ALONE = re.compile(rf"\$({_NAME})", re.ASCII)


class Unit:
    """The settings of a unit, each with its values in the order in which they stand."""

    def __init__(self, path: Path) -> None:
        """With the drop-ins that lie beside it, in the order of their names."""
        self.name = path.name
        self.drop_ins = sorted(path.parent.glob(f"{glob.escape(path.name)}.d/*.conf"))
        self._values: dict[tuple[str, str], list[str]] = {}
        self.files = Files()
        self.room = Room()
        for file in (path, *self.drop_ins):
            self._read(file)

    def _read(self, path: Path) -> None:
        section = ""
        for line in _lines(self.files.text(path)):
            if header := re.fullmatch(r"\[(.+)\]", line):
                section = header[1]
                continue
            key, equals, value = line.partition("=")
            if not equals or not section:
                raise ConversionError(f"{path}: {line[:80]!r} is no setting of a unit")
            self._add(section, key.strip(), value.strip())

    def _add(self, section: str, key: str, value: str) -> None:
        """An empty value takes back what was set before."""
        values = self._values.setdefault((section, key), [])
        if value:
            values.append(self._specified(value, key))
        else:
            values.clear()

    def all(self, key: str, section: str = "Service") -> list[str]:
        return self._values.get((section, key), [])

    def last(self, key: str, section: str = "Service") -> str | None:
        """The value of a setting that has one; the last one counts."""
        values = self.all(key, section)
        return values[-1] if values else None

    def keys(self, section: str) -> list[str]:
        return [key for (part, key), values in self._values.items() if part == section and values]

    @property
    def stem(self) -> str:
        """The name without its type, and an instance's without its template."""
        stem = self.name.rpartition(".")[0] or self.name
        return stem.partition("@")[2] or stem.rstrip("@")

    def _specified(self, value: str, key: str) -> str:
        """With the specifiers that follow from the name alone."""
        full = self.name
        stem = full.rpartition(".")[0] or full
        prefix, _, instance = stem.partition("@")
        self.room.take(key, len(value) + value.count("%") * len(full))
        known = {"%": "%", "n": full, "N": stem, "p": prefix, "i": instance, "I": instance.replace("-", "/")}

        def replaced(found: re.Match[str]) -> str:
            letter = found[1]
            if letter in "iI" and not instance:
                raise ConversionError(
                    f"{key}: %{letter} is an instance's name; convert a copy called NAME@INSTANCE.service"
                )
            if letter not in known:
                raise ConversionError(f"{key}: %{letter} is only known to systemd; write its value into a copy")
            return known[letter]

        return re.sub(r"%([A-Za-z%])", replaced, value)


def words(text: str, place: str) -> list[str]:
    """A value cut at its blanks, with systemd's quotes and escapes. Raises ConversionError."""
    result: list[str] = []
    word: list[str] = []
    quote, begun, at = "", False, 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter.isspace() and not quote:
            result += ["".join(word)] if begun else []
            word, begun = [], False
            continue
        begun = True
        if letter == quote:
            quote = ""
        elif not quote and letter in "\"'":
            quote = letter
        elif letter == "\\":
            escaped, at = _escaped(text, at)
            word.append(escaped)
        else:
            word.append(letter)
    if quote:
        raise ConversionError(f"{place}: a quote is not closed")
    return result + (["".join(word)] if begun else [])


def expanded(word: str, environment: Mapping[str, str], room: Room) -> list[str]:
    """A word of a command with ${NAME} replaced, `$NAME` alone cut at its blanks; KeyError for what is not known."""
    alone = _ALONE.fullmatch(word)
    names = [alone[1]] if alone else [found[1] for found in _VARIABLE.finditer(word) if found[1]]
    room.take("ExecStart", len(word) + sum(len(environment[name]) for name in names))
    if alone:
        return environment[alone[1]].split()
    return [_VARIABLE.sub(lambda found: environment[found[1]] if found[1] else "$", word)]


def _lines(text: str) -> list[str]:
    """Logical lines: a backslash at the end joins the next one, comments in between are skipped."""
    result: list[str] = []
    unfinished: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not unfinished):
            continue
        if line.endswith("\\"):
            unfinished.append(f"{line[:-1]} ")
            continue
        result.append("".join((*unfinished, line)).strip())
        unfinished = []
    return [line for line in (*result, "".join(unfinished).strip()) if line]


def _escaped(text: str, at: int) -> tuple[str, int]:
    """What the escape after a backslash means, and where it goes on. systemd keeps one that it does not know."""
    if at < len(text) and text[at] in _ESCAPES:
        return _ESCAPES[text[at]], at + 1
    numbered = _NUMBERED.match(text, at)
    code = 0
    if numbered is not None:
        code = int(numbered[4], 8) if numbered[4] else int(numbered[0][1:], 16)
    if numbered is None or code == 0 or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        return "\\", at
    return chr(code), numbered.end()
