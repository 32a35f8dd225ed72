"""The environment that a server's processes get, from the daemon's own, the user's account, file and configuration."""

from __future__ import annotations

import pwd
from collections.abc import Mapping

from supervisor.config import EnvironmentRefusedError, ServerConfig, read_env_file

# systemd's words to us are not for our children: a server that said READY=1 or fed the watchdog would lie for us.
_OURS = (
    "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "FDSTORE",
    "INVOCATION_ID", "JOURNAL_STREAM", "MAINPID", "MANAGERPID", "SYSTEMD_EXEC_PID", "CREDENTIALS_DIRECTORY",
    "STATE_DIRECTORY", "LOGS_DIRECTORY", "RUNTIME_DIRECTORY", "SGLSUP_SOCKET", "SGLSUP_TREE", "VIRTUAL_ENV",
    "PYTHONHOME",
)  # fmt: skip
_KEPT_FOR_OTHERS = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build(config: ServerConfig, own: Mapping[str, str], devices: tuple[int, ...] = ()) -> dict[str, str]:
    """The complete environment. `own` is the daemon's; another user's server gets a clean one of that account.

    stdout is a file, so Python would hold its lines back and SGLang's progress bars would come as ASCII: both are
    switched unless the configuration says otherwise (seen with SGLang 0.5.x).
    """
    result = _base(config, own)
    result.setdefault("PATH", _PATH)
    result |= {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    if devices:
        # By bus order, as NVML counts: the driver's default order sorts by speed.
        result |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
    if config.env_file:
        result |= read_env_file(config.env_file)
    return result | config.environment


def _base(config: ServerConfig, own: Mapping[str, str]) -> dict[str, str]:
    if not config.user:
        return {name: value for name, value in own.items() if name not in _OURS}
    try:
        account = pwd.getpwnam(config.user)
    except KeyError:
        raise EnvironmentRefusedError(f"cannot become user {config.user}: there is no such user") from None
    kept = {name: own[name] for name in _KEPT_FOR_OTHERS if name in own}
    return kept | {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or "/bin/sh",
    }


def for_helpers(own: Mapping[str, str]) -> dict[str, str]:
    """What a program gets that works for us and is no server: our own environment without systemd's words to us."""
    return {name: value for name, value in own.items() if name not in _OURS}
