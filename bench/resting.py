"""Other supervisors at rest: circus and systemd, each with as many children that sleep."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.peers import circus_folder, supervisord_folder
from bench.site import running, supervisord, wait_for
from tests.systemd import machine

SLEEP = "/bin/sleep 3600"


@contextmanager
def resting_supervisord(children: int) -> Iterator[psutil.Process | None]:
    """supervisord's process, once all its children run; None when it cannot be had."""
    if folder := supervisord_folder():
        with supervisord(folder, children) as (process, _client):
            yield process
    else:
        yield None


@contextmanager
def resting_circus(children: int) -> Iterator[psutil.Process | None]:
    """circusd's, without its statistics."""
    if (folder := circus_folder()) is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as scratch:
        config, output = Path(scratch) / "circus.ini", Path(scratch) / "out"
        places = f"endpoint = ipc://{scratch}/control\npubsub_endpoint = ipc://{scratch}/pubsub\nstatsd = false"
        watchers = "\n".join(f"[watcher:s{index}]\ncmd = {SLEEP}" for index in range(children))
        config.write_text(f"[circus]\n{places}\n{watchers}\n")
        with running([str(folder / "circusd"), str(config)], output) as process:
            wait_for(lambda: len(process.children()) == children, process, output)
            yield process


@contextmanager
def resting_systemd(children: int) -> Iterator[psutil.Process | None]:
    """PID 1 of a machine of its own, in whose units the children are; its journal's daemon is not counted."""
    if reason := machine.why_not():
        print(f"cannot measure systemd: {reason}; its column stays empty", file=sys.stderr)
        yield None
        return
    names = [f"s{index}.service" for index in range(children)]
    unit = f"[Service]\nExecStart={SLEEP}\n"
    with machine.Machine({f"/etc/systemd/system/{name}": unit for name in names}) as booted:
        booted.systemctl("start", *names)
        yield psutil.Process(booted.leader)
