"""A daemon as on a kernel before 6.15: `python recording.py CONFIG` records exit statuses whatever this kernel tells."""

import sys

from supervisor.config import load
from supervisor.daemon import serve_until_ended
from supervisor.shell import logs
from supervisor.shell.daemon import Daemon


def main() -> int:
    logs.configure()
    return serve_until_ended(Daemon(load(sys.argv[1]), sys.argv[1], record_exits=True))


if __name__ == "__main__":
    sys.exit(main())
