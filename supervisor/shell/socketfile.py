"""Binds the control socket anew when its file has gone: else nobody could ever ask the daemon anything again."""

from __future__ import annotations

import socket

import anyio
import anyio.to_thread
import structlog

from supervisor.api import access
from supervisor.api.listeners import SocketInUseError, bind_unix
from supervisor.api.serve import Binding, Serving
from supervisor.config import DaemonConfig

log = structlog.get_logger()

LOOK_S = 5.0


class SocketFile:
    """Looks every few seconds, which costs one `lstat`. A socket of systemd's is systemd's affair."""

    def __init__(self, served: Serving, daemon: DaemonConfig, look_s: float = LOOK_S) -> None:
        self._served = served
        self._daemon = daemon
        self._look_s = look_s
        self._told = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(self._look_s)
            for binding in self._served.bindings:
                if binding.lost:
                    await self._bind(binding)

    async def _bind(self, binding: Binding) -> None:
        """Where another daemon listens by now, or something else lies, it stays: it is tried again at the next look."""
        try:
            listener = await anyio.to_thread.run_sync(self._bound, binding.path)
        except (SocketInUseError, OSError, KeyError) as problem:
            why = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
            self._tell(f"cannot listen on {binding.path} again: {why}; tried again until it can be had")
            return
        await self._served.replace(binding, listener)
        log.warning("control socket", path=binding.path, problem="its file was gone; it is bound anew")
        self._told = ""

    def _bound(self, path: str) -> socket.socket:
        group = self._daemon.socket_group
        return bind_unix(path, self._daemon.socket_mode, access.gid_of(group) if group else None)

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            log.warning("control socket", problem=problem)
