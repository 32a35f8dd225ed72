"""What one call of the client costs: it is run from loops and health checks."""

import sys
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Measurement, bench, compile_ours, cpu_ms
from bench.peers import supervisord_folder

OURS = str(Path(sys.executable).parent / "sglctl")


@bench("client")
def client() -> Iterator[Measurement]:
    compile_ours()
    folder = supervisord_folder()
    peer = cpu_ms([str(folder / "supervisorctl"), "--help"]) if folder else None
    yield Measurement("sglctl --help", "ms CPU", cpu_ms([OURS, "--help"]), "supervisorctl --help", peer)
    bare = cpu_ms([sys.executable, "-c", "pass"])
    imported = cpu_ms([sys.executable, "-c", "import supervisor.cli.main"])
    yield Measurement("import supervisor.cli.main", "ms CPU", imported, "bare interpreter", bare)
