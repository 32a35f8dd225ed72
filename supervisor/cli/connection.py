"""Speaks HTTP/1.1 over the daemon's Unix socket.

`http.client` would do the same and import the email package for it: 20 ms more CPU in every call.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time

TYPE_CHECKING = False  # importing typing for its own sake would cost every call (bench.prices typing)
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeAlias

    Dial: TypeAlias = Callable[[], tuple[socket.socket, Callable[[], None]]]  # a connection, what to do after its end

DEFAULT_SOCKET = "/run/sglang-supervisor/control.sock"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
HEAD_BYTES_MAX = 64 * 1024
AGAIN = 3  # times a daemon is asked whether it is there that has cut an answer
AGAIN_S = 0.1
_UNIT_STATUS = "systemctl status sglang-supervisor"


class UnreachableError(Exception):
    """Nobody answers on the socket."""


class LostError(UnreachableError):
    """Somebody was there, and cut the connection: a daemon that ends, or makes way for its next version."""


class RefusedError(Exception):
    """The daemon answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Fields(dict[str, object]):
    """An object of an answer; a field that is not in it is the daemon's fault, told in one line."""

    def __missing__(self, key: str) -> object:
        raise RefusedError(502, f"cannot understand the daemon: its answer has no {key}; is it of another version?")


class Client:
    """Requests to one daemon, one connection each. `path` is what messages call it. `local`: on this host."""

    def __init__(self, path: str, dial: Dial | None = None) -> None:
        self.path = path
        self._dial = dial or self._connect
        self.local = dial is None

    def get(self, target: str, timeout_s: float | None = ANSWER_TIMEOUT_S) -> Any:
        """The JSON answer. Raises RefusedError or UnreachableError."""
        return self._json("GET", target, None, timeout_s)

    def find_again(self) -> None:
        """After a LostError: a daemon answers on the socket, the next version of it. Else as `get`."""
        for _ in range(AGAIN - 1):
            try:
                self.get("/v1/info")
            except LostError:
                time.sleep(AGAIN_S)
            else:
                return
        self.get("/v1/info")

    def post(self, target: str, body: dict[str, Any] | None = None, timeout_s: float | None = ANSWER_TIMEOUT_S) -> Any:
        """The JSON answer to a request for a change."""
        return self._json("POST", target, body or {}, timeout_s)

    def stream(self, target: str, *, forever: bool, accept: str = "*/*") -> Iterator[bytes]:
        """The answer's body piece by piece; `forever`: silence is no failure, the user's Ctrl-C ends it."""
        with self.open(target, forever=forever, accept=accept) as answer:
            yield from answer.pieces()

    def open(self, target: str, *, forever: bool, accept: str = "*/*") -> Answer:
        """The answer's head, with its body to come; to be closed."""
        return self._answer("GET", target, None, None if forever else ANSWER_TIMEOUT_S, accept)

    def _json(self, method: str, target: str, body: dict[str, Any] | None, timeout_s: float | None) -> Any:
        with self._answer(method, target, body, timeout_s, "application/json") as answer:
            return answer.json()

    def _answer(
        self, method: str, target: str, body: dict[str, Any] | None, timeout_s: float | None, accept: str
    ) -> Answer:
        try:
            connection, after = self._dial()
        except (OSError, ValueError) as error:
            advice = advise(self.path, error) if self.local else ""
            raise UnreachableError(f"cannot reach the daemon at {self.path}: {reason(error)}{advice}") from None
        answer = Answer(connection, self.path, after)
        try:
            connection.settimeout(timeout_s)
            connection.sendall(_request(method, target, body, accept), socket.MSG_NOSIGNAL)
            answer.read_head()
        except OSError as error:
            answer.close()
            raise _broken(error)(f"cannot reach the daemon at {self.path}: {reason(error)}") from None
        except BaseException:
            answer.close()
            raise
        return answer

    def _connect(self) -> tuple[socket.socket, Callable[[], None]]:
        return connected(self.path), _nothing


def connected(path: str, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """A connection to the Unix socket. Raises OSError, or ValueError for a path with a NUL byte."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # With Python's own time-out the socket does not block, and is refused at once when many are connecting.
        limit = struct.pack("ll", *divmod(round(timeout_s * 1e6), 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(path)
        connection.settimeout(timeout_s)
    except BlockingIOError as problem:
        connection.close()
        raise TimeoutError(problem.errno, f"no connection within {timeout_s:g} s") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _nothing() -> None:
    return None


class Answer:
    """An answer whose body has not been read yet."""

    def __init__(self, connection: socket.socket, path: str, after: Callable[[], None]) -> None:
        self._connection = connection
        self._after = after
        self._path = path
        self._buffer = b""
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and whatever carried it."""
        self._connection.close()
        self._after()

    def read_head(self) -> None:
        """Read up to the empty line. Raises RefusedError when the status is no success."""
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > HEAD_BYTES_MAX or not self._fill():
                kind = UnreachableError if self._buffer else LostError
                raise kind(f"cannot talk to the daemon at {self._path}: it sent no HTTP answer")
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise UnreachableError(f"cannot talk to the daemon at {self._path}: what answers is no HTTP server")
        fields = (line.partition(":") for line in lines[1:])
        self.status = int(words[1])
        self.headers = {name.lower(): value.strip() for name, _, value in fields}
        if self.status >= 300:
            raise RefusedError(self.status, _message(self._whole_body(), self.status))

    def json(self) -> Any:
        """The body as JSON."""
        body = self._whole_body()
        try:
            value = json.loads(body, object_hook=Fields)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, Fields):
            raise RefusedError(502, f"cannot understand the daemon at {self._path}: its answer is no JSON object")
        return value

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives."""
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                yield from self._chunks()
            else:
                yield from self._counted(int(self.headers.get("content-length", "0")))
        except OSError as error:
            raise _broken(error)(f"lost the daemon at {self._path}: {reason(error)}") from None
        except ValueError:
            raise UnreachableError(f"cannot talk to the daemon at {self._path}: it broke off within HTTP") from None

    def _whole_body(self) -> bytes:
        return b"".join(self.pieces())

    def _counted(self, length: int) -> Iterator[bytes]:
        while length > 0:
            if not self._buffer and not self._fill():
                raise LostError(f"lost the daemon at {self._path}: the answer ended early")
            piece, self._buffer = self._buffer[:length], self._buffer[length:]
            length -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size = int(self._line().partition(b";")[0], 16)
            if size == 0:
                return
            yield from self._counted(size)
            self._line()

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if not self._fill():
                raise LostError(f"lost the daemon at {self._path}: the answer ended early")
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _fill(self) -> bool:
        data = self._connection.recv(65536)
        self._buffer += data
        return bool(data)


def socket_path(option: str | None) -> str:
    """The path from `-s` (a path or unix:///path), the environment or the default."""
    chosen = option or os.environ.get("SGLSUP_SOCKET") or DEFAULT_SOCKET
    return chosen.removeprefix("unix://")


def reason(error: Exception) -> str:
    """Why, in the system's words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error)


def advise(path: str, error: Exception) -> str:
    """What to do next about a socket of this host that nobody could connect to."""
    match error:
        case FileNotFoundError():
            return f"; is it running ({_UNIT_STATUS})? Another socket than this is named with -s or SGLSUP_SOCKET"
        case ConnectionRefusedError():
            return f"; it has ended, and its socket is left: {_UNIT_STATUS}"
        case PermissionError():
            return f"; {_whose(path)}"
        case _:
            return ""


def _whose(path: str) -> str:
    """Who may connect, as far as the socket, or what it lies in, can be seen."""
    import grp
    import stat

    try:
        found = os.stat(path)
    except OSError:
        return f"you may not enter {os.path.dirname(path) or path}: use sudo"
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    if found.st_mode & stat.S_IWGRP:
        return f"it is for the group {group} (daemon.socket_group), become a member, or use sudo"
    return "it is for its owner alone (daemon.socket_mode): use sudo"


def _broken(error: OSError) -> type[UnreachableError]:
    return LostError if isinstance(error, ConnectionError) else UnreachableError


def _request(method: str, target: str, body: dict[str, Any] | None, accept: str) -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: daemon\r\nAccept: {accept}\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
    return head.encode("ascii") + b"\r\n" + payload


def _message(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the daemon answered with status {status}"
