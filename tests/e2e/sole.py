"""Runs a command as the only one of its name: a lock that all its processes inherit tells when two trees coexist.

`python sole.py LOCK CMD...`: appends a line to LOCK.collisions when any process of an earlier tree still lives, and a
line to LOCK.starts in any case; then becomes CMD. The kernel keeps the lock until the last heir of the descriptor is
gone, so no moment is missed, unlike by polling.
"""

import fcntl
import os
import sys


def main() -> None:
    path, command = sys.argv[1], sys.argv[2:]
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(path + ".collisions")
    note(path + ".starts")
    os.set_inheritable(lock, True)
    os.execvp(command[0], command)


def note(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, f"{os.environ.get('SGLSUP_TREE', '')} {os.getpid()}\n".encode())
    os.close(descriptor)


if __name__ == "__main__":
    main()
