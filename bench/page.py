"""The status page in a browser: its weight and its first paint, beside supervisord's page."""

import statistics
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Measurement, bench
from bench.peers import supervisord_folder
from bench.site import free_ports, running, wait_for
from tests.metrics import fleet
from tests.web.browser import PROGRAM, Browser, browser
from tests.web.site import site

ROUNDS = 7
PEER = "supervisord's page"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
WEIGHT = """
performance.getEntriesByType('navigation')[0].transferSize
  + performance.getEntriesByType('resource').filter(e => e.responseEnd).reduce((sum, e) => sum + e.transferSize, 0)
"""


@bench("page")
def status_page() -> Iterator[Measurement]:
    if PROGRAM is None:
        return
    with browser() as tab:
        with site(fleet.control) as shown:
            own = [look(tab, shown.url) for _ in range(ROUNDS)]
        peer = peers(tab)
    for what, unit, at in (("weight, all requests", "KB", 0), ("first contentful paint, median", "ms", 1)):
        theirs = statistics.median(one[at] for one in peer) if peer else None
        yield Measurement(
            f"status page of 4 servers, {what}", unit, statistics.median(o[at] for o in own), PEER, theirs
        )


def look(tab: Browser, url: str) -> tuple[float, float]:
    """Kilobytes and milliseconds of one visit with an empty cache."""
    tab.forget()
    tab.open(url)
    tab.until(PAINT)
    return tab.run(WEIGHT) / 1000, tab.run(PAINT)


def peers(tab: Browser) -> list[tuple[float, float]]:
    """The same of a supervisord with four programs; none where it cannot be had."""
    folder = supervisord_folder()
    if folder is None:
        return []
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    with tempfile.TemporaryDirectory() as scratch:
        programs = "\n".join(f"[program:s{index}]\ncommand=sleep 3600" for index in range(4))
        config = Path(scratch) / "supervisord.conf"
        config.write_text(
            f"[supervisord]\nnodaemon=true\nlogfile={scratch}/log\npidfile={scratch}/pid\n"
            f"[inet_http_server]\nport=127.0.0.1:{port}\n"
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface\n"
            f"{programs}\n"
        )
        with running([str(folder / "supervisord"), "-c", str(config)], Path(scratch) / "out") as daemon:
            wait_for(lambda: answers(url), daemon, Path(scratch) / "out")
            return [look(tab, url) for _ in range(ROUNDS)]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
            return bool(answer.status == 200)
    except OSError:
        return False
