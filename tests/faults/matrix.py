"""The fault matrix: all rows by what goes wrong."""

from __future__ import annotations

from tests.faults import clients, clocks, deaths, devices, disks, logs, probes, processes
from tests.faults.row import Row

MATRIX: dict[str, tuple[Row, ...]] = {
    "The daemon dies or stands still": deaths.ROWS,
    "State, journal and their disk": disks.ROWS,
    "Logs": logs.ROWS,
    "The clock": clocks.ROWS,
    "Probes": probes.ROWS,
    "Processes": processes.ROWS,
    "GPUs": devices.ROWS,
    "Clients and configuration": clients.ROWS,
}
ROWS = tuple(row for rows in MATRIX.values() for row in rows)
