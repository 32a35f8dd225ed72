"""Reads a server's env_file: NAME=VALUE lines."""

from __future__ import annotations

from pathlib import Path


class EnvironmentRefusedError(ValueError):
    """The environment cannot be made; the text says why."""


def read_env_file(path: str) -> dict[str, str]:
    """NAME=VALUE lines as systemd's EnvironmentFile has them: comments, blank lines, `export`, matching quotes."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise EnvironmentRefusedError(f"cannot read the env_file {path}: {problem}") from None
    return env_of(text, path)


def env_of(text: str, path: str) -> dict[str, str]:
    """The same of its text."""
    result: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ")
        if not stripped or stripped[0] in "#;":
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not name.strip().replace("_", "a").isalnum():
            raise EnvironmentRefusedError(f"cannot use the env_file {path}: line {number} is not NAME=VALUE")
        result[name.strip()] = _unquoted(value.strip())
    return result


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value
