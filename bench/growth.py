"""What the daemon costs by the number of its servers, from one to many; these neither log nor answer probes."""

from collections.abc import Iterator

from bench.harness import Measurement, bench
from bench.idle import compared, watch
from bench.resting import resting_supervisord
from bench.sleepers import our_sleepers

COUNTS = (1, 8, 64, 256)
SETTLE_S = 30.0


@bench("growth")
def growth() -> Iterator[Measurement]:
    for count in COUNTS:
        with our_sleepers({f"s{index}": ["sleep", "3600"] for index in range(count)}) as ours:
            own = watch(ours.daemon, SETTLE_S)
        with resting_supervisord(count) as process:
            peer = watch(process) if process else None
        yield from compared(f"{count} silent server{'s' * (count != 1)}", own, "supervisord", peer)
