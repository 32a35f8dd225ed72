"""A followed log goes on at the very byte after its answer was cut, or ends when nobody can know where that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from supervisor.cli.connection import Client, LostError, UnreachableError
from supervisor.cli.following import followed

SERVER = "/v1/servers/kimi"


class Cut:
    """An answer with so much of a log, cut behind it unless it is the last one."""

    def __init__(self, data: bytes, offset: int, *, last: bool) -> None:
        self.headers = {"x-log-offset": str(offset)}
        self._data, self._last = data, last

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def pieces(self) -> Iterator[bytes]:
        yield from (self._data[at : at + 3] for at in range(0, len(self._data), 3))
        if not self._last:
            raise LostError("lost the daemon")


class Script:
    """A daemon that is upgraded after each of these answers; `files` is what the server writes to, look by look."""

    def __init__(self, answers: list[bytes], files: list[str], *, gone: bool = False) -> None:
        self._answers, self._files, self._gone = answers, files, gone
        self.asked: list[str] = []
        self._offset = 100

    def get(self, target: str) -> Any:
        assert target == SERVER
        return {"log_path": self._files.pop(0)}

    def find_again(self) -> None:
        if self._gone:
            raise UnreachableError("cannot reach the daemon")

    def open(self, target: str, *, forever: bool) -> Cut:
        assert forever
        self.asked.append(target.removeprefix(f"{SERVER}/log?"))
        data, at = self._answers.pop(0), self._offset
        self._offset += len(data)
        return Cut(data, at, last=not self._answers)


def read(script: Script) -> bytes:
    return b"".join(followed(cast(Client, script), SERVER, "lines=2"))


def test_it_goes_on_at_the_byte_where_it_was_cut() -> None:
    script = Script([b"one two", b"", b" three"], ["1.log"] * 3)
    assert read(script) == b"one two three"
    assert script.asked == ["lines=2&follow=true", "offset=107&follow=true", "offset=107&follow=true"]


def test_another_attempts_file_ends_it() -> None:
    with pytest.raises(LostError):
        read(Script([b"one", b"two"], ["1.log", "2.log"]))


def test_a_daemon_that_is_gone_ends_it() -> None:
    with pytest.raises(UnreachableError, match="cannot reach"):
        read(Script([b"one", b"two"], ["1.log"] * 2, gone=True))
