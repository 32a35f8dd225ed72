"""A server with bad manners: `python -S -E bad_server.py PORT HEALTH [--well-until FILE] [--manner MANNER]`.

Standard library only, and quick to start. HEALTH says how `/health` answers once FILE exists (without a FILE: at once);
before, it answers 200. The manners are those of its processes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LIFE_S = 300  # whoever escapes his test must not haunt the machine
BOMB_AT_ONCE = 150
BOMB_LIFE_S = 0.15  # of each process: about a thousand forks a second
HUGE_BYTES = 100 * 2**20
GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def main() -> None:
    port, health = int(sys.argv[1]), sys.argv[2]
    well_until, manner = option("--well-until"), option("--manner")
    threading.Timer(LIFE_S, os._exit, (9,)).start()
    if manner:
        MANNERS[manner](port, health, well_until)
    serve(port, health, well_until)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


# --- /health ---------------------------------------------------------------------------------------------------------


def serve(port: int, health: str, well_until: str) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        kind = "ok" if well_until and not os.path.exists(well_until) else health
        threading.Thread(target=answer, args=(connection, kind), daemon=True).start()


def answer(connection: socket.socket, kind: str) -> None:
    try:
        with connection:
            connection.recv(65536)
            ANSWERS[kind](connection)
    except OSError:
        return


def hang(connection: socket.socket) -> None:
    connection.recv(1)  # as long as the client has patience


def dribble(connection: socket.socket) -> None:
    """A byte a second, of an answer that is no end of bytes long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b".")
        time.sleep(1)


def redirect(connection: socket.socket) -> None:
    host = f"http://127.0.0.1:{sys.argv[1]}/health"
    connection.sendall(f"HTTP/1.1 302 Found\r\nlocation: {host}\r\ncontent-length: 0\r\n\r\n".encode())


def huge(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % HUGE_BYTES)
    for _ in range(HUGE_BYTES // 2**16):
        connection.sendall(bytes(2**16))


def endless_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"x-more: " + b"y" * 4096 + b"\r\n")


ANSWERS: dict[str, Callable[[socket.socket], None]] = {
    "ok": lambda connection: connection.sendall(GOOD),
    "hang": hang,
    "dribble": dribble,
    "redirect": redirect,
    "huge": huge,
    "endless-head": endless_head,
}


# --- processes -------------------------------------------------------------------------------------------------------


def bomb(*_: object) -> None:
    """Processes that fork and end, on and on; never more than BOMB_AT_ONCE live. Each token is one life."""
    reading, writing = os.pipe()
    os.write(writing, b"." * BOMB_AT_ONCE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to be waited for
    if os.fork() == 0:
        while True:
            os.read(reading, 1)
            if os.fork():
                continue
            if os.fork():
                time.sleep(BOMB_LIFE_S)
                os._exit(0)
            os.setsid()
            time.sleep(BOMB_LIFE_S)
            os.write(writing, b".")
            os._exit(0)


def zombies(*_: object) -> None:
    """Children that have ended and that nobody waits for; one of them left a child of its own."""
    for number in range(5):
        if os.fork() == 0:
            if number == 0 and os.fork() == 0:
                time.sleep(LIFE_S)
            os._exit(0)


def headless(port: int, health: str, well_until: str) -> None:
    """At SIGUSR1 the first thread ends and the process lives on: /proc calls it a zombie without a command line."""
    import ctypes

    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
    threading.Thread(target=serve, args=(port, health, well_until)).start()
    signal.sigwait((signal.SIGUSR1,))
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit of this thread alone


def titles(*_: object) -> None:
    """Another name every 10 ms, with what a parser of /proc trips over."""
    import ctypes

    def rename() -> None:
        for number in range(LIFE_S * 100):
            ctypes.CDLL(None).prctl(15, f"a) b ({number % 9} R 1".encode(), 0, 0, 0)
            with open("/proc/self/comm", "wb") as file:
                file.write(b") Z 1 (\n\xff")
            time.sleep(0.01)

    threading.Thread(target=rename, daemon=True).start()


def deaf(*_: object) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


MANNERS: dict[str, Callable[..., None]] = {
    "bomb": bomb,
    "zombies": zombies,
    "headless": headless,
    "titles": titles,
    "deaf": deaf,
}

if __name__ == "__main__":
    main()
