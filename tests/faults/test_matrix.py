"""Every row of the fault matrix (docs/faults.md): something goes wrong, and what must hold does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import clocks, deaths, disks, logs, probes, processes
from tests.faults.row import Row, missing, tried

ROWS = (*deaths.ROWS, *disks.ROWS, *logs.ROWS, *clocks.ROWS, *probes.ROWS, *processes.ROWS)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.fault, marks=() if row.quick else (pytest.mark.slow,)) for row in ROWS]
)
def test_what_must_hold_does(row: Row, nvml_library: Path) -> None:
    if lacking := missing(row):
        pytest.skip(lacking)
    seen = tried(row, nvml_library.parent)
    print(f"{seen.what}; status in {seen.status_s * 1000:.0f} ms at worst")
