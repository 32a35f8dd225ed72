"""Tells whose tree a process belongs to, by its cgroup or by the marker in its environment."""

from __future__ import annotations

from pathlib import Path

from supervisor.edge.process.scan import MARKER_NAME


def server_of(pid: int, cgroups: dict[str, str]) -> str:
    """The server's name, "" when nothing says so. `cgroups` maps the servers' cgroup paths to their names.

    The marker also names a tree of an earlier daemon: a leftover is still the server's.
    """
    folder = Path("/proc") / str(pid)
    try:
        for line in (folder / "cgroup").read_text().splitlines():
            place = line.rpartition(":")[2]
            for path, name in cgroups.items():
                if place and path.endswith(place) and place != "/":
                    return name
        for entry in (folder / "environ").read_bytes().split(b"\0"):
            if entry.startswith(MARKER_NAME.encode() + b"="):
                return entry.partition(b"=")[2].decode(errors="replace").rsplit(":", 2)[0]
    except OSError:  # gone, or another user's and we are not root
        return ""
    return ""
