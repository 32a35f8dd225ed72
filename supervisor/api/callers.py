"""Tells who is at the other end of the socket, for the record: beside what the kernel vouches for, what /proc says."""

from __future__ import annotations

from supervisor import procstat
from supervisor.api.access import Peer
from supervisor.lines import printable
from supervisor.threads import Threads

LIMIT_S = 0.5
ANCESTORS = 12  # sudo, a shell, a multiplexer: the session's first process is the one that sshd started
ENVIRONMENT_BYTES = 256 * 1024
_looks = Threads("the caller's process", 16)
_SSH = b"SSH_CONNECTION="


async def describe(peer: Peer) -> str:
    """Uid and pid as of the connection; the program and the ssh client's address as far as they can be read now.

    Whoever may write his own environment may write any address into it: it is told as his word.
    """
    try:
        return await _looks.run(_described, peer, limit_s=LIMIT_S, thing=f"pid {peer.pid}")
    except TimeoutError:  # a process that is stuck in the kernel may keep its files from being read
        return peer.text


def _described(peer: Peer) -> str:
    program = _read(f"/proc/{peer.pid}/comm", 64).decode(errors="replace").strip()
    address = _ssh_address(peer.pid)
    words = f" ({printable(program)})" if program else ""
    return f"{peer.text}{words}" + (f", by its own word over ssh from {printable(address)}" if address else "")


def _ssh_address(pid: int) -> str:
    """Of the process or its nearest ancestor that has one: sudo takes the variable away."""
    for _ in range(ANCESTORS):
        if pid <= 1:
            return ""
        for entry in _read(f"/proc/{pid}/environ", ENVIRONMENT_BYTES).split(b"\0"):
            if entry.startswith(_SSH):
                return entry.removeprefix(_SSH).split(b" ")[0][:64].decode(errors="replace")
        pid = _parent(pid)
    return ""


def _parent(pid: int) -> int:
    try:
        process = procstat.read(pid)
    except OSError:
        return 0
    return process.parent if process is not None else 0


def _read(path: str, limit: int) -> bytes:
    """Nothing when it has ended, or is not ours to look at."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""
