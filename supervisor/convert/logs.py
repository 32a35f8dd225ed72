"""Turns a supervisord program's log options into a server's: where its output lies is the daemon's affair."""

from __future__ import annotations

import msgspec

from supervisor.config import LogConfig
from supervisor.convert.draft import Draft
from supervisor.convert.ini import boolean, byte_size, whole
from supervisor.convert.options import Options, as_it_is

_BACKUPS = 10
_SEGMENT_MIN = 2**20  # the least that `rotate_size` takes
_NOWHERE = ("none", "off", "/dev/null")


def with_log(draft: Draft, options: Options) -> Draft:
    """The draft with a limit for its logs where the program had one of its own."""
    log = _limits(draft.config.log, options)
    return (
        draft.having(msgspec.structs.replace(draft.config, log=log))
        .losing(*_lost(options))
        .remarking(*_different(options))
    )


def _limits(log: LogConfig, options: Options) -> LogConfig:
    """As much on the disk as before, in segments of the same size. 0 was no limit: the default is one."""
    size = options.get("stdout_logfile_maxbytes", byte_size)
    if not size or size < _SEGMENT_MIN:
        return log
    backups = options.get("stdout_logfile_backups", whole)
    kept = _BACKUPS if backups is None else max(backups, 0)
    return msgspec.structs.replace(log, rotate_size_bytes=size, size_bytes=max(size * (kept + 1), 2 * size))


def _lost(options: Options) -> list[str]:
    lost = []
    for stream in ("stdout", "stderr"):
        if options.get(f"{stream}_syslog", boolean):
            lost.append(f"{stream}_syslog: a server's output goes to its log file alone")
        if options.get(f"{stream}_events_enabled", boolean) or options.has(f"{stream}_capture_maxbytes"):
            lost.append(f"{stream}_capture_maxbytes, {stream}_events_enabled: there are no events made of output")
    return lost


def _different(options: Options) -> list[str]:
    remarks = []
    for stream in ("stdout", "stderr"):
        place = options.get(f"{stream}_logfile", as_it_is)
        if place and place.lower() in _NOWHERE:
            remarks.append(
                f"{stream}_logfile = {place}: its output is kept, it is what phases and causes are read from"
            )
        elif place and place.lower() != "auto":
            remarks.append(f"{stream}_logfile = {place}: `sglctl tail NAME` reads its log, which is in log_dir")
    if options.has("stderr_logfile") and not options.get("redirect_stderr", boolean):
        remarks.append("stderr_logfile: both streams are in one file, in the order in which they were written")
    return remarks
