"""What the daemon costs by the number of its servers, from one to many; these neither log nor answer probes."""

from collections.abc import Iterator

from bench.harness import Measurement, bench
from bench.idle import compared, watch
from bench.peers import supervisord_folder
from bench.site import supervisord
from bench.sleepers import our_sleepers

COUNTS = (1, 8, 64, 256)
SETTLE_S = 30.0


@bench("growth")
def growth() -> Iterator[Measurement]:
    folder = supervisord_folder()
    for count in COUNTS:
        with our_sleepers({f"s{index}": ["sleep", "3600"] for index in range(count)}) as ours:
            own = watch(ours.daemon, SETTLE_S)
        peer = None
        if folder:
            with supervisord(folder, count) as (process, _client):
                peer = watch(process)
        yield from compared(f"{count} silent server{'s' * (count != 1)}", own, peer)
