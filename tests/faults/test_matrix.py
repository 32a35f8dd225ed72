"""Every row of the fault matrix (docs/faults.md): something goes wrong, and what must hold does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.matrix import ROWS
from tests.faults.row import Row, missing, tried


def parameter(row: Row) -> object:
    return pytest.param(
        row, id=row.trial.__name__ + "-cgroup" * row.cgroups, marks=[] if row.quick else [pytest.mark.slow]
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("row", [parameter(row) for row in ROWS])
def test_what_must_hold_does(row: Row, nvml_library: Path) -> None:
    if lacking := missing(row):
        pytest.skip(lacking)
    seen = tried(row, nvml_library.parent)
    print(f"{seen.what}; status in {seen.status_s * 1000:.0f} ms at worst, {seen.journal_rows} rows of journal")
