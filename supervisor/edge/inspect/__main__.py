"""The child: reads a request from standard input, becomes the server's user, looks, and writes what it saw."""

from __future__ import annotations

import grp
import json
import os
import pwd
import sys

import msgspec

from supervisor.edge.inspect.look import look
from supervisor.preflight import Looked, Request


def main() -> None:
    """One request, one answer."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        become(request.user, request.group)
    except (KeyError, OSError) as problem:
        answer = Looked(skipped=(f"everything on disk: cannot become user {request.user}: {problem}",))
    else:
        answer = look(request)
    sys.stdout.buffer.write(encoded(answer))


def encoded(answer: Looked) -> bytes:
    """Names of files and what JSON holds may be no UTF-8: what cannot be told is a question mark."""
    return json.dumps(msgspec.to_builtins(answer), ensure_ascii=False).encode("utf-8", "replace")


def become(user: str, group: str) -> None:
    """For good. Without a name, and for our own, nothing changes."""
    account = pwd.getpwnam(user) if user else None
    gid = grp.getgrnam(group).gr_gid if group else account.pw_gid if account else os.getgid()
    if account is None or (account.pw_uid == os.geteuid() and gid == os.getegid()):
        return
    os.initgroups(account.pw_name, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)


if __name__ == "__main__":
    main()
