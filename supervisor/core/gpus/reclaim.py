"""Decides whether a server may start on its devices, or who must go first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from supervisor.config import OnForeign
from supervisor.core.gpus.attribution import FOREIGN, MIB, OWN, SERVER, Account, seen_by
from supervisor.devices import ProcessOwner
from supervisor.events import DevicesChecked, Holder
from supervisor.units import format_bytes, format_duration

DEFAULT_TOLERANCE = 64 * MIB
MOMENT_S = 0.1  # memory must be back in two looks, and they must be this far apart


class Claim(msgspec.Struct, frozen=True):
    """A server wants to know whether its devices are free. `uid` is the user that its processes run as.

    Looks from before `after` do not count: the memory may have been taken, or given back, since. `rest`: no start is
    wanted, only that the memory is back. Memory without a name is waited for during `limit_s`.
    """

    server: str
    devices: tuple[int, ...]
    tolerance: int = DEFAULT_TOLERANCE
    on_foreign: OnForeign = OnForeign.WAIT
    uid: int | None = None
    after: float = 0.0
    rest: bool = False
    limit_s: float = 60.0


class Culprit(msgspec.Struct, frozen=True):
    """A process to be killed; pid and start time name it beyond doubt."""

    pid: int
    start_ticks: int
    kind: str  # own: left behind by the server · foreign: the policy says so
    command: str = ""
    user: str = ""


class Finding(msgspec.Struct, frozen=True):
    """`clean` None: nobody can tell, so nothing is held against the start. `refuse`: waiting is not wanted.

    `waiting`: not clean, but it says nothing about the server itself either.
    """

    clean: bool | None
    reason: str = ""
    devices: tuple[int, ...] = ()
    holders: tuple[Holder, ...] = ()
    kill: tuple[Culprit, ...] = ()
    refuse: bool = False
    quarantined: tuple[int, ...] = ()
    unaccounted: tuple[int, ...] = ()  # devices that hold memory which belongs to nobody we could name or wait for
    waiting: bool = False

    def event(self, attempt: int) -> DevicesChecked:
        """As the server's state machine gets it."""
        return DevicesChecked(
            attempt,
            self.clean,
            self.reason,
            self.holders,
            self.devices,
            self.quarantined,
            waiting=self.waiting,
            refuse=self.refuse,
        )


class Look(msgspec.Struct, frozen=True):
    """What is known of one device: its accounts, newest first, at least those of the last moment and one before."""

    device: int
    accounts: tuple[Account, ...]
    unattributed_since: float | None
    owners: dict[int, ProcessOwner]
    pids_trusted: bool


def judge(claim: Claim, look: Look, now: float) -> Finding:
    """The finding on one device that is neither quarantined nor out of sight."""
    accounts = tuple(account for account in look.accounts if account.at >= claim.after)
    if not accounts:
        return _not_yet(look, "waiting for a look at it")
    newest = accounts[0]
    if newest.used is None:
        return Finding(None, f"GPU {look.device}: its memory cannot be read", (look.device,))
    holders = seen_by(claim.server, newest.holders)
    own = tuple(holder for holder in holders if holder.kind == OWN and holder.pid not in (0, *newest.ended))
    if own:
        return _left_over(look, own, holders)
    if newest.excess > claim.tolerance:
        return _held(claim, look, newest, holders, now)
    if not _settled(look.accounts, claim.tolerance):
        return _not_yet(look, "its memory is back, one more look makes sure")
    return Finding(True, "", (look.device,), holders)


def _settled(accounts: tuple[Account, ...], tolerance: int) -> bool:
    span_s = accounts[0].at - accounts[-1].at
    return span_s >= MOMENT_S and all(account.used is not None and account.excess <= tolerance for account in accounts)


def combine(findings: tuple[Finding, ...]) -> Finding:
    """One finding on all devices: clean when all are, unknown when the rest is clean."""
    states = [finding.clean for finding in findings]
    clean = False if False in states else (None if None in states else True)
    return Finding(
        clean=clean,
        reason="; ".join(_reasons(finding for finding in findings if finding.clean is clean and finding.reason)),
        devices=tuple(device for finding in findings for device in finding.devices),
        holders=tuple(holder for finding in findings for holder in finding.holders),
        kill=tuple({culprit.pid: culprit for finding in findings for culprit in finding.kill}.values()),
        refuse=any(finding.refuse for finding in findings),
        quarantined=tuple(device for finding in findings for device in finding.quarantined),
        unaccounted=tuple(device for finding in findings for device in finding.unaccounted),
        waiting=clean is False and all(finding.waiting for finding in findings if finding.clean is False),
    )


def _reasons(findings: Iterable[Finding]) -> Iterator[str]:
    """Each once: eight devices that wait for the same are one of them."""
    alike: dict[str, list[int]] = {}
    for finding in findings:
        prefix = f"GPU {finding.devices[0]}: " if finding.devices else ""
        devices = alike.setdefault(finding.reason.removeprefix(prefix), [])
        if prefix and finding.reason.startswith(prefix):
            devices.append(finding.devices[0])
    for text, devices in alike.items():
        yield f"GPU {', '.join(map(str, devices))}: {text}" if devices else text


def _not_yet(look: Look, reason: str) -> Finding:
    return Finding(False, f"GPU {look.device}: {reason}", (look.device,))


def _left_over(look: Look, own: tuple[Holder, ...], holders: tuple[Holder, ...]) -> Finding:
    names = ", ".join(f"{holder.pid} ({format_bytes(holder.bytes)})" for holder in own)
    kill = tuple(_culprit(holder, OWN, look) for holder in own)
    text = f"GPU {look.device}: processes left behind are killed: {names}"
    return Finding(False, text, (look.device,), holders, kill)


def _held(claim: Claim, look: Look, newest: Account, holders: tuple[Holder, ...], now: float) -> Finding:
    foreign = tuple(holder for holder in holders if holder.kind == FOREIGN)
    server = next((holder for holder in holders if holder.kind == SERVER), None)
    if server is not None:
        text = f"server {server.server} holds {format_bytes(server.bytes)}"
        return Finding(False, f"GPU {look.device}: {text}", (look.device,), holders)
    if foreign:
        return _foreign(claim, look, foreign, holders)
    if newest.ended:
        pids = ", ".join(str(pid) for pid in newest.ended)
        text = f"waiting for the memory of ended processes ({pids}), {format_bytes(newest.excess)}"
        return Finding(False, f"GPU {look.device}: {text}", (look.device,), holders, unaccounted=(look.device,))
    since = look.unattributed_since if look.unattributed_since is not None else now
    whose = "nobody whom the driver names" if look.pids_trusted else "somebody outside our pid namespace, perhaps"
    text = f"{format_bytes(newest.excess)} held by {whose} for {format_duration(now - since)}"
    return Finding(False, f"GPU {look.device}: {text}", (look.device,), holders, unaccounted=(look.device,))


def _foreign(claim: Claim, look: Look, foreign: tuple[Holder, ...], holders: tuple[Holder, ...]) -> Finding:
    text = f"GPU {look.device}: held by {', '.join(_describe(holder) for holder in foreign)}"
    match claim.on_foreign:
        case OnForeign.WAIT:
            return Finding(False, text, (look.device,), holders)
        case OnForeign.FAIL:
            # One that nobody could look up has probably just ended: the next look tells.
            known = any(holder.pid in look.owners for holder in foreign)
            return Finding(False, text, (look.device,), holders, refuse=known)
        case OnForeign.KILL_SAME_USER:
            same = tuple(holder for holder in foreign if claim.uid is not None and _uid(holder, look) == claim.uid)
            kill = tuple(_culprit(holder, FOREIGN, look) for holder in same)
            return Finding(False, text, (look.device,), holders, kill)


def _uid(holder: Holder, look: Look) -> int | None:
    owner = look.owners.get(holder.pid)
    return owner.uid if owner else None


def _culprit(holder: Holder, kind: str, look: Look) -> Culprit:
    owner = look.owners.get(holder.pid)
    return Culprit(holder.pid, owner.start_ticks if owner else 0, kind, holder.command, holder.user)


def _describe(holder: Holder) -> str:
    who = f"pid {holder.pid}" + (f" of {holder.user}" if holder.user else "")
    what = f" ({holder.command[:80]})" if holder.command else ""
    return f"{who}{what} with {format_bytes(holder.bytes)}"
