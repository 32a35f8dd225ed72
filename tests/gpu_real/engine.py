"""The real engine as these programs start it, the processes of its tree, and a client that reads a long answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

TOKENS = 3000  # some seconds of a small model


def children_of(root: int) -> Iterator[tuple[int, bytes]]:
    """Pid and title of everybody whom the process has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                title = (entry / "cmdline").read_bytes()
                if int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1]) == root:
                    yield int(entry.name), title


def child_of(root: int, title: bytes) -> int:
    """The engine's process of that title among the leader's children."""
    for pid, words in children_of(root):
        if words.startswith(title):
            return pid
    raise SystemExit(f"no {title.decode()} found")


def scheduler_of(root: int, rank: str = "") -> int:
    """The scheduler of a rank such as `TP1`, or any."""
    return child_of(root, b"sglang::scheduler" + (f"_{rank}".encode() if rank else b""))


class Stream(threading.Thread):
    """One long answer, read as it comes."""

    def __init__(self, port: int, tokens: int = TOKENS) -> None:
        super().__init__(daemon=True)
        self.port, self.asked, self.tokens, self.ended, self.problem = port, tokens, 0, False, ""
        self._begun = threading.Event()
        self.start()
        self._begun.wait(30)

    def run(self) -> None:
        try:
            self._read()
        except (OSError, http.client.HTTPException) as problem:
            self.problem = f"{type(problem).__name__}: {problem}"

    def _read(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        asked = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": self.asked, "ignore_eos": True}}
        with contextlib.closing(connection):
            connection.request("POST", "/generate", json.dumps(asked), {"content-type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    self.tokens = json.loads(line[6:])["meta_info"]["completion_tokens"]
                    self._begun.set()
                self.ended = self.ended or line.strip() == b"data: [DONE]"
