"""`sglsup daemon`: the daemon as a process, in the foreground, and its upgrades in place."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence

from supervisor import __version__
from supervisor.config import Config, ConfigError, load, understand
from supervisor.shell import clock, logs
from supervisor.shell.daemon import Daemon
from supervisor.shell.startup import StartupProblem, run_until_ended
from supervisor.shell.upgrade.books import Upgrades
from supervisor.shell.upgrade.handover import Handover, received
from supervisor.shell.upgrade.trial import own_command

DEFAULT_CONFIG = "/etc/sglang-supervisor/supervisor.toml"
EXIT_CONFIG = 2
EXIT_AFTER_UPGRADE = 1
_STUCK_LIMIT_S = 1.0


def main(arguments: Sequence[str]) -> int:
    """`sglsup daemon -c FILE`: in the foreground until asked to end."""
    options = vars(parser().parse_args(arguments))
    left = received(os.environ)
    os.umask(0o027)  # the journal and the records are for root and our group; servers have a umask of their own
    try:
        config = understand(left.files) if left is not None and left.files else load(options["config"])
    except ConfigError as problem:
        sys.stderr.write(f"{problem}\n")
        return _refused(left)
    if options["try"]:
        sys.stdout.write(f"{__version__}\n")
        return 0
    return serve_and_upgrade(config, options["config"], autostart=not options["no_autostart"], left=left)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(prog="sglsup daemon", description="Own every server of a configuration file.")
    result.add_argument("-c", "--config", default=DEFAULT_CONFIG, metavar="FILE", help=f"default {DEFAULT_CONFIG}")
    result.add_argument("--no-autostart", action="store_true", help="start no server by itself")
    result.add_argument("--try", action="store_true", help="read the file, print the version and start nothing")
    return result


def serve_and_upgrade(config: Config, path: str, *, autostart: bool, left: Handover | None = None) -> int:
    """Run daemons until one ends for good: after an upgrade whose exec failed, the old code goes on as the next one."""
    while True:
        upgrades = Upgrades(own_command(), left)
        if left is not None:
            upgrades.unheard.listen()
        close_log = logs.configure(file=config.daemon.log_file)
        daemon = Daemon(config, path, autostart=autostart, upgrades=upgrades)
        status = serve_until_ended(daemon, left)
        close_log()
        if upgrades.next is None:
            _leave_stuck(status)
            return status
        left, config = upgrades.execute(), daemon.answers.config()


def _leave_stuck(status: int) -> None:
    """End here when a thread is in a call that does not return: the interpreter would wait for it without limit."""
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    until = clock.monotonic() + _STUCK_LIMIT_S
    for one in others:
        one.join(max(0.0, until - clock.monotonic()))
    if any(one.is_alive() for one in others):
        sys.stderr.write("sglsup: ends without waiting for a disk that does not answer\n")
        sys.stderr.flush()
        os._exit(status)


def serve_until_ended(daemon: Daemon, left: Handover | None = None) -> int:
    """Run a daemon in this process; the exit status."""
    try:
        run_until_ended(daemon.run)
    except StartupProblem as problem:
        sys.stderr.write(f"sglsup: {problem}\n")
        return _refused(left)
    return 0


def _refused(left: Handover | None) -> int:
    """systemd lets a daemon be that could not start. After an upgrade its servers run: it has to be tried again."""
    return EXIT_CONFIG if left is None else EXIT_AFTER_UPGRADE
