"""Becomes the command of its arguments, with the descriptors that the socket at its first one hands out.

As systemd does: from descriptor 3 on, named in LISTEN_FDNAMES.
"""

import os
import socket
import sys


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(sys.argv[1])
        names, descriptors, _, _ = socket.recv_fds(asked, 4096, 16)
    apart = [os.dup(one) for one in (*descriptors, *descriptors)][len(descriptors) :]  # none of them is where one goes
    for place, descriptor in enumerate(apart, 3):
        os.dup2(descriptor, place)
    if apart:
        told = {"LISTEN_FDS": str(len(apart)), "LISTEN_FDNAMES": names.decode(), "LISTEN_PID": str(os.getpid())}
        os.environ.update(told)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
