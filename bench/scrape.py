"""What a scrape of 64 servers costs: our writer beside prometheus-client's, on the same samples."""

import statistics
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from bench.harness import Measurement, bench
from supervisor.metrics.page import page
from tests.metrics import fleet

SERVERS = 64
ROUNDS = 15


class Same(Collector):
    """The families of a page, as a custom collector would answer them."""

    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))

    def collect(self) -> Iterator[Metric]:
        yield from self._families


@bench("scrape")
def scrape() -> Iterator[Measurement]:
    control = fleet.many(SERVERS)
    first = milliseconds(lambda: page(control))
    registry = CollectorRegistry()
    registry.register(Same(page(control)))
    ours = [milliseconds(lambda: page(control)) for _ in range(ROUNDS)]
    peer = [milliseconds(lambda: generate_latest(registry)) for _ in range(ROUNDS)]
    samples = page(control).count("\n")
    name = "prometheus-client, writing alone"
    yield Measurement(
        f"a scrape of {SERVERS} servers, {samples} lines", "ms CPU", statistics.median(ours), name,
        statistics.median(peer), budget=10,
    )  # fmt: skip
    yield Measurement("the same, the first one of a daemon", "ms CPU", first, name, statistics.median(peer))
    yield Measurement("its size", "KB", len(page(control)) / 1000, name, len(generate_latest(registry)) / 1000)


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)
