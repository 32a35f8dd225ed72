"""Says what becomes of a supervisord configuration's sections that are no programs."""

from __future__ import annotations

import msgspec

from supervisor.config import DaemonConfig
from supervisor.config.checks import check_daemon
from supervisor.convert.ini import Ini
from supervisor.convert.values import octal

_OWN_INTERFACE = "rpcinterface:supervisor"
_DAEMON_KEYS = {
    "logfile": "the daemon logs to systemd's journal, and to log_file where that is set",
    "pidfile": "there is none: systemd knows the daemon, `sglctl pid` tells",
    "childlogdir": "servers' logs lie in log_dir",
    "minprocs": "the unit has TasksMax=infinity",
    "nodaemon": "the daemon never leaves the foreground",
}


def read_daemon(ini: Ini) -> tuple[DaemonConfig, list[str], list[str]]:
    """The daemon's table, what is lost, and remarks."""
    daemon, lost = DaemonConfig(), []
    remarks = [f"[supervisord] {key}: {why}" for key, why in _DAEMON_KEYS.items() if key in ini.names("supervisord")]
    mode = ini.text("unix_http_server", "chmod")
    if mode is not None:
        daemon = msgspec.structs.replace(daemon, socket_mode=octal(mode, "[unix_http_server] chmod"))
    owner = ini.text("unix_http_server", "chown") or ""
    if ":" in owner:
        daemon = msgspec.structs.replace(daemon, socket_group=owner.partition(":")[2])
        unknown = [text for key, text in check_daemon(daemon) if key == "daemon.socket_group"]
        lost += [f"socket_group: {text}; make it before the daemon reads this file" for text in unknown]
    place = ini.text("unix_http_server", "file")
    if place is not None:
        remarks.append(
            f"[unix_http_server] file = {place}: supervisorctl finds the daemon by"
            f" `supervisorctl -s unix://{daemon.socket}`; set socket to the old path once supervisord is gone"
        )
    if ini.raw("unix_http_server", "password") is not None:
        lost.append("[unix_http_server] username, password: who may do what follows from the caller's account")
    return daemon, lost, remarks


def read_others(ini: Ini) -> list[str]:
    """What is lost with the other sections."""
    lost = [text for section in ini.sections() for text in _section(section)]
    return lost + [f"[include] files: {pattern} matches no file" for pattern in ini.missing]


def _section(section: str) -> list[str]:
    match section.partition(":")[0]:
        case "eventlistener":
            return [f"[{section}]: there are no event listeners; hooks and webhooks tell what happens (docs/hooks.md)"]
        case "fcgi-program":
            return [f"[{section}]: it is no inference server; leave it with supervisord"]
        case "inet_http_server":
            return [f"[{section}]: TCP is for reading alone (listen); control goes by `sglctl -H ssh://USER@HOST`"]
        case "rpcinterface" if section != _OWN_INTERFACE:
            return [f"[{section}]: the interface of supervisord itself is there, its extensions are not"]
        case "program" | "group" | "supervisorctl" | "include" | "supervisord" | "unix_http_server" | "rpcinterface":
            return []
        case _:
            return [f"[{section}]: supervisord does not know it either"]
