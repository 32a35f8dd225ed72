"""Remembers one GPU from look to look: its baseline, its accounts, its Xids, its quarantine."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec

from supervisor.core.gpus.attribution import MIB, Account, account, idle_bytes
from supervisor.core.gpus.quarantine import STANDING, Complaint, complaints, ecc_errors
from supervisor.core.gpus.reclaim import DEFAULT_TOLERANCE, MOMENT_S
from supervisor.devices import DeviceRecord, Gpu, ProcessOwner, QuarantineRecord

ACCOUNTS = 32  # kept at most: of looks every few milliseconds, which only a test wants
REASON_LIMIT = 500  # characters of a quarantine that keeps finding new reasons


class Rules(msgspec.Struct, frozen=True):
    """Limits of baselines and quarantines."""

    tolerance: int = DEFAULT_TOLERANCE
    baseline_max: int = 1024 * MIB  # an idle device that holds more than this is not idle
    first_look_s: float = 90.0  # a daemon that has just begun to look does not call itself blind yet
    failures: int = 3
    failures_window_s: float = 3600.0


class Device:
    """State of one GPU. `wall_offset_s` + now is wall time, for people only."""

    def __init__(self, rules: Rules, index: int, uuid: str, wall_offset_s: float) -> None:
        self._rules = rules
        self._wall_offset_s = wall_offset_s
        self._failures: deque[float] = deque(maxlen=rules.failures)
        self._ecc: int | None = None
        self._ecc_of_life: bool | None = None  # which of the two counts that is; None: an earlier daemon's, or none yet
        self.index = index
        self.uuid = uuid
        self.gpu: Gpu | None = None
        self.accounts: tuple[Account, ...] = ()  # newest first: those of the last moment, and one before
        self.baseline: int | None = None
        self.unattributed_since: float | None = None
        self.quarantine: QuarantineRecord | None = None
        self.acknowledged: frozenset[str] = frozenset()
        self.last_xid: int | None = None
        self.last_xid_at: float | None = None

    @property
    def held(self) -> bool:
        """Whether more memory is taken than an idle device holds."""
        return bool(self.accounts) and self.accounts[0].excess > self._rules.tolerance

    def restore(self, record: DeviceRecord) -> None:
        """Takes over what an earlier daemon has stored."""
        self.baseline, self._ecc = record.baseline, record.ecc_uncorrectable
        self.quarantine, self.acknowledged = record.quarantine, frozenset(record.acknowledged)

    def record(self) -> DeviceRecord:
        """What the next daemon must know."""
        acknowledged = tuple(sorted(self.acknowledged))
        return DeviceRecord(self.index, self.uuid, self.baseline, self._ecc, self.quarantine, acknowledged)

    def observe(
        self, gpu: Gpu, at: float, owners: Mapping[int, ProcessOwner], trusted: bool, lessee: str
    ) -> QuarantineRecord | None:
        """Takes in one look; the answer is a new quarantine, if the look is the reason for one."""
        self.index, self.uuid, self.gpu = gpu.index, gpu.uuid or self.uuid, gpu
        if not lessee:
            self._learn(gpu)
        self._account(gpu, at, owners, trusted, lessee)
        return self._complain(gpu, at)

    def put_out(self, complaint: Complaint, now: float) -> QuarantineRecord | None:
        """Quarantines the device; the answer is None when it was so already, for the same reason."""
        known = self.quarantine
        if known is not None and (complaint.reason in known.reason or len(known.reason) > REASON_LIMIT):
            return None
        reason = f"{known.reason}; {complaint.reason}" if known else complaint.reason
        since = known.since_wall_s if known else now + self._wall_offset_s
        kind = known.kind if known else complaint.kind
        self.quarantine = QuarantineRecord(self.index, self.uuid, kind, reason, since)
        return self.quarantine

    def release(self) -> bool:
        """Ends the quarantine, overrules what the device itself complains of, and learns its baseline anew."""
        if self.quarantine is None:
            return False
        standing = complaints(self.gpu, self._ecc) if self.gpu else ()
        self.acknowledged = frozenset(complaint.kind for complaint in standing if complaint.kind in STANDING)
        self.quarantine, self.baseline, self.unattributed_since = None, None, None
        self._failures.clear()
        if self.gpu is not None:  # whoever releases it vouches for what it holds, even while a server has it
            self._learn(self.gpu)
        return True

    def blame(self, cause: str, now: float) -> QuarantineRecord | None:
        """A server failed because of this device, as far as one can tell; some failures in a while are enough."""
        self._failures.append(now)
        recent = [at for at in self._failures if at > now - self._rules.failures_window_s]
        if len(recent) < self._rules.failures:
            return None
        return self.put_out(Complaint("failures", f"{len(recent)} failures blamed on it, last: {cause}"), now)

    def _learn(self, gpu: Gpu) -> None:
        """The least that was held while nobody had the device. Someone else's memory must not become the norm."""
        idle = idle_bytes(gpu)
        if idle is not None and idle <= self._rules.baseline_max:
            self.baseline = idle if self.baseline is None else min(self.baseline, idle)

    def _account(self, gpu: Gpu, at: float, owners: Mapping[int, ProcessOwner], trusted: bool, lessee: str) -> None:
        newest = account(gpu, at, self.baseline or 0, owners, trusted, lessee)
        self.accounts = (newest, *_moment_before(at, self.accounts))
        named = any(holder.pid and holder.pid not in newest.ended for holder in newest.holders)
        if newest.excess <= self._rules.tolerance or named:
            self.unattributed_since = None
        elif self.unattributed_since is None:
            self.unattributed_since = at

    def _complain(self, gpu: Gpu, at: float) -> QuarantineRecord | None:
        of_life = gpu.ecc_aggregate is not None
        same = self._ecc_of_life in (None, of_life)  # the count of a life is no rise of the one since the driver's load
        found = complaints(gpu, self._ecc if same else None)
        if (same or of_life) and (errors := ecc_errors(gpu)) is not None:
            self._ecc, self._ecc_of_life = errors, of_life
        self.acknowledged &= {complaint.kind for complaint in found}
        records = [self.put_out(complaint, at) for complaint in found if complaint.kind not in self.acknowledged]
        return next((record for record in reversed(records) if record is not None), None)


def _moment_before(at: float, accounts: tuple[Account, ...]) -> tuple[Account, ...]:
    """Two looks at once (somebody asked, an Xid came) prove nothing: enough is kept to span a moment."""
    recent = tuple(account for account in accounts if account.at > at - MOMENT_S)
    return accounts[: len(recent) + 1][: ACCOUNTS - 1]
