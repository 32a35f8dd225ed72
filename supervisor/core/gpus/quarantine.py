"""Says what is wrong with a device itself, so that no server should start on it."""

from __future__ import annotations

import msgspec

from supervisor.devices import Gpu, XidRule, XidTable

LOST, ROWS_PENDING, ROWS_FAILED, RECOVERY = "lost", "rows-pending", "rows-failed", "recovery"
ECC, XID, FAILURES, UNATTRIBUTED, OPERATOR = "ecc", "xid", "failures", "unattributed", "operator"
KINDS = (LOST, ROWS_PENDING, ROWS_FAILED, RECOVERY, ECC, XID, FAILURES, UNATTRIBUTED, OPERATOR)
# These hold for as long as the device says so: once an operator has overruled one, it must go before it counts again.
STANDING = (LOST, ROWS_PENDING, ROWS_FAILED, RECOVERY)


class Complaint(msgspec.Struct, frozen=True):
    """One reason to put a device out of use."""

    kind: str
    reason: str


def complaints(gpu: Gpu, known_ecc: int | None) -> tuple[Complaint, ...]:
    """What the device says of itself; `known_ecc` is the count of uncorrectable errors seen before."""
    if gpu.lost:
        return (Complaint(LOST, f"the driver can no longer reach it: {gpu.lost}"),)
    found = []
    if gpu.rows is not None and gpu.rows.failure:
        found.append(Complaint(ROWS_FAILED, "a bad row of memory could not be replaced: have the GPU replaced"))
    if gpu.rows is not None and gpu.rows.pending:
        found.append(Complaint(ROWS_PENDING, "a bad row of memory waits to be replaced: reset the GPU"))
    errors = ecc_errors(gpu)
    if known_ecc is not None and errors is not None and errors > known_ecc:
        found.append(Complaint(ECC, f"uncorrectable memory errors rose from {known_ecc} to {errors}"))
    if gpu.recovery not in (None, "none"):
        found.append(Complaint(RECOVERY, f"the driver asks for {gpu.recovery}"))
    return tuple(found)


def ecc_errors(gpu: Gpu) -> int | None:
    """Uncorrectable errors of the device's life; the count since the driver's load where that is all there is."""
    return gpu.ecc_aggregate if gpu.ecc_aggregate is not None else gpu.ecc_volatile


def xid_complaint(table: XidTable, code: int, recovery: str | None) -> Complaint | None:
    """The reason that an Xid gives; None when it is the program's fault, a consequence, or nothing to act upon."""
    rule = table.rule(code)
    if rule is None or not rule.quarantine or (rule.unless_recovery_none and recovery == "none"):
        return None
    return Complaint(XID, f"{xid_text(rule, code)}. {rule.action}")


def xid_text(rule: XidRule | None, code: int) -> str:
    """The Xid by number and name."""
    return f"Xid {code}: {rule.name}" if rule else f"Xid {code}: not in the table"
