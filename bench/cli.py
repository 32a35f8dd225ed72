"""What one status call costs the client: watch loops and health checks make thousands of them."""

from collections.abc import Iterator

from bench.harness import Measurement, bench, cpu_ms
from bench.peers import supervisord_folder
from bench.site import supervisord
from bench.sleepers import our_sleepers

COUNTS = (1, 8, 64)
RUNS = 9


@bench("cli")
def cli() -> Iterator[Measurement]:
    folder = supervisord_folder()
    for count in COUNTS:
        with our_sleepers({f"s{index}": ["sleep", "3600"] for index in range(count)}) as ours:
            own = cpu_ms([*ours.client, "status"], RUNS)
        peer = None
        if folder:
            with supervisord(folder, count) as (_, client):
                peer = cpu_ms([*client, "status"], RUNS)
        what = f"sglctl status, {count} server{'s' * (count != 1)} (budget 100)"
        yield Measurement(what, "ms CPU", own, "supervisorctl status", peer)
