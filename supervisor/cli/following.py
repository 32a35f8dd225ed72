"""Follows a server's log beyond an upgrade of the daemon: goes on at the byte where the answer was cut."""

from __future__ import annotations

from supervisor.cli.connection import LostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.cli.connection import Client


def followed(client: Client, server: str, query: str) -> Iterator[bytes]:
    """Pieces of the log as they are written. `server` is the path of its operations.

    LostError when the daemon is gone, or when another attempt writes another file meanwhile: then nobody knows where
    the answer was cut.
    """
    file, offset = client.get(server)["log_path"], None
    while True:
        where = query if offset is None else f"offset={offset}"
        try:
            with client.open(f"{server}/log?{where}&follow=true", forever=True) as answer:
                offset = int(answer.headers["x-log-offset"])
                for piece in answer.pieces():
                    offset += len(piece)
                    yield piece
            return
        except LostError:
            client.find_again()
            if client.get(server)["log_path"] != file:
                raise
