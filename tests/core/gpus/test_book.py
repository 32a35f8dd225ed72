"""Stories of GPUs: leased, left dirty, held by strangers, gone blind, broken, released."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config import GpuPlan, OnForeign
from supervisor.core.gpus.book import Claim, DeviceBook, Finding, Lease, LeaseRefused, Rules
from supervisor.core.gpus.reclaim import combine
from supervisor.core.gpus.views import GpuView
from supervisor.devices import (
    DeviceRecord,
    Gpu,
    GpuAbsent,
    GpuBlind,
    GpuMemory,
    GpuProcess,
    GpuSample,
    ProcessOwner,
    QuarantineRecord,
    RemappedRows,
    XidSeen,
)
from supervisor.events import DevicesChecked

MIB, GIB = 1 << 20, 1 << 30
TOTAL = 140 * GIB
ALICE = ProcessOwner(20, "alice", 1000, "python train.py", start_ticks=77)
KIMI_RANK = ProcessOwner(10, "sglang", 990, "scheduler", "kimi", start_ticks=55)
KIMI = Claim("kimi", (0,))


def gpu(index: int = 0, used: int = 0, *processes: GpuProcess, **more: object) -> Gpu:
    plain = Gpu(
        index, f"GPU-{index}", "NVIDIA H200", memory=GpuMemory(TOTAL, used, TOTAL - used, 0), processes=processes
    )
    return msgspec.structs.replace(plain, **more)


class Machine:
    """A book whose clock goes on by one second with every look."""

    def __init__(self, count: int = 1, rules: Rules | None = None, contained: bool = False) -> None:
        self.book = DeviceBook(rules, wall_offset_s=1_000_000.0)
        self.now = 0.0
        self.count = count
        self.contained = contained
        self.gpus = [gpu(index) for index in range(count)]
        self.owners: tuple[ProcessOwner, ...] = ()

    def look(self, *gpus: Gpu, times: int = 1) -> tuple[QuarantineRecord, ...]:
        """`gpus` replace what was there before, by index; the others stay as they were."""
        for changed in gpus:
            self.gpus[changed.index] = changed
        return tuple(record for _ in range(times) for record in self._once())

    def _once(self) -> tuple[QuarantineRecord, ...]:
        self.now += 1.0
        sample = GpuSample(self.now, driver="580", own_pid_namespace=self.contained, devices=tuple(self.gpus))
        return self.book.observe(sample, self.owners, self.now)

    def know(self, *owners: ProcessOwner) -> None:
        self.owners = owners

    def check(self, claim: Claim = KIMI) -> Finding:
        return self.book.check(claim, self.now)[0]

    def give_up(self, claim: Claim = KIMI) -> tuple[QuarantineRecord, ...]:
        return self.book.check(claim, self.now)[1]

    def view(self, index: int = 0) -> GpuView:
        return next(view for view in self.book.view().gpus if view.index == index)


# --- free or not ---


def test_an_idle_device_is_clean_after_the_second_look() -> None:
    machine = Machine()
    machine.look()
    assert machine.check().clean is False
    assert machine.check().reason == "GPU 0: its memory is back, one more look makes sure"
    machine.look()
    assert machine.check().clean is True
    assert machine.view().state == "free"


def test_a_finding_becomes_the_servers_event() -> None:
    machine = Machine()
    machine.look(times=2)
    assert machine.check().event(3) == DevicesChecked(3, clean=True, devices=(0,))


def test_a_refusal_and_a_wait_for_the_first_look_reach_the_server() -> None:
    machine = Machine()
    assert machine.check().event(1).waiting
    machine.look(times=2)
    assert machine.check(Claim("kimi", (0, 7))).event(1).refuse


def test_one_dirty_device_is_no_mere_wait() -> None:
    machine = leaking()
    machine.look(times=2)
    assert not machine.check().event(1).waiting


def test_a_wait_beside_a_dirty_device_is_no_mere_wait_either() -> None:
    waits, held = Finding(False, "waits", (0,), waiting=True), Finding(False, "held", (1,))
    assert combine((waits, waits, Finding(True, "", (2,)))).waiting
    assert not combine((waits, held)).waiting
    assert combine((waits, held)).reason == "waits; held"


def test_devices_that_wait_for_the_same_are_told_together() -> None:
    back = [Finding(False, f"GPU {index}: its memory is back", (index,)) for index in (1, 2, 7)]
    held = Finding(False, "GPU 3: held by pid 7", (3,))
    out = Finding(False, "GPU 4 is quarantined: Xid 79", (4,))
    told = combine((back[0], held, *back[1:], out, Finding(True, "", (0,)))).reason
    assert told == "GPU 1, 2, 7: its memory is back; GPU 3: held by pid 7; GPU 4 is quarantined: Xid 79"


def test_a_server_without_devices_waits_for_none() -> None:
    machine = Machine()
    assert machine.check(Claim("cpu-only", ())).clean is True


def test_looks_from_before_the_stop_do_not_count() -> None:
    machine = Machine()
    machine.look(times=2)
    claim = msgspec.structs.replace(KIMI, after=machine.now + 0.5)
    assert machine.check(claim).reason == "GPU 0: waiting for a look at it"
    machine.look()
    assert machine.check(claim).clean is True


def test_two_looks_at_the_same_moment_are_one() -> None:
    machine = Machine()
    machine.look(gpu(0, 50 * GIB))
    machine.look(gpu(0))
    machine.now -= 0.999  # an Xid made the child look again at once
    machine.look()
    assert machine.check().clean is False
    machine.look()
    assert machine.check().clean is True


def test_looks_many_times_a_second_add_up_to_a_moment() -> None:
    machine = Machine()
    machine.look(gpu(0, 50 * GIB))
    machine.look(gpu(0))
    found = []
    for _ in range(8):
        machine.now -= 0.98
        machine.look()
        found.append(machine.check().clean)
    assert found == [False] * 4 + [True] * 4


def test_a_few_megabytes_that_nobody_lists_are_within_the_tolerance() -> None:
    machine = Machine()
    machine.look(gpu(0, 3 * MIB), times=2)  # a process that only enumerated devices
    assert machine.check().clean is True


@pytest.mark.parametrize(("tolerance", "clean"), [(100 * MIB, False), (300 * MIB, True)])
def test_the_tolerance_is_the_claims(tolerance: int, clean: bool) -> None:
    machine = Machine()
    machine.look(gpu(0, 0))
    machine.look(gpu(0, 200 * MIB), times=2)
    assert machine.check(Claim("kimi", (0,), tolerance=tolerance)).clean is clean


def test_a_claim_may_be_stricter_than_what_counts_as_held() -> None:
    machine = Machine()
    machine.look(gpu(0, 0))
    machine.look(gpu(0, 3 * MIB), times=2)
    finding = machine.check(Claim("kimi", (0,), tolerance=1 * MIB))
    assert finding.clean is False
    assert finding.reason.endswith("for 0 s")


def test_utilisation_is_not_even_known() -> None:
    assert not any("util" in field for field in Gpu.__struct_fields__)


# --- after a stop ---


def test_memory_of_a_dead_process_is_waited_for() -> None:
    """Measured: pids stay listed with all their memory for 0.1 to 0.6 s after their death."""
    machine = Machine()
    machine.look(times=2)
    machine.book.lease("kimi", GpuPlan(indices=(0,)))
    machine.know(KIMI_RANK)
    machine.look(gpu(0, 130 * GIB, GpuProcess(10, 130 * GIB)))
    machine.know()
    machine.look(gpu(0, 130 * GIB, GpuProcess(10, 130 * GIB, alive=False)))
    finding = machine.check()
    assert finding.clean is False
    assert finding.kill == ()
    assert finding.reason == "GPU 0: waiting for the memory of ended processes (10), 140 GB"
    machine.look(gpu(0), times=2)
    assert machine.check().clean is True


def test_a_process_left_behind_is_killed_by_name_and_start() -> None:
    machine = Machine()
    machine.know(KIMI_RANK)
    machine.look(gpu(0, 30 * GIB, GpuProcess(10, 30 * GIB)), times=2)
    finding = machine.check()
    assert finding.clean is False
    assert [(culprit.pid, culprit.start_ticks, culprit.kind) for culprit in finding.kill] == [(10, 55, "own")]
    assert [holder.kind for holder in finding.holders] == ["own"]
    assert "processes left behind are killed: 10" in finding.reason


def test_a_small_process_left_behind_is_killed_too() -> None:
    machine = Machine()
    machine.know(KIMI_RANK)
    machine.look(gpu(0, 5 * MIB, GpuProcess(10, 5 * MIB)), times=2)
    assert [culprit.pid for culprit in machine.check().kill] == [10]


def test_a_process_on_two_devices_is_killed_once() -> None:
    machine = Machine(2)
    machine.know(KIMI_RANK)
    machine.look(*(gpu(index, 30 * GIB, GpuProcess(10, 30 * GIB)) for index in range(2)), times=2)
    finding = machine.check(Claim("kimi", (0, 1)))
    assert len(finding.kill) == 1
    assert finding.devices == (0, 1)


def test_another_servers_memory_is_waited_for_and_never_killed() -> None:
    machine = Machine()
    machine.know(KIMI_RANK)
    machine.look(gpu(0, 30 * GIB, GpuProcess(10, 30 * GIB)), times=2)
    finding = machine.check(Claim("glm", (0,), on_foreign=OnForeign.KILL_SAME_USER, uid=990))
    assert finding.clean is False
    assert finding.kill == ()
    assert finding.reason == "GPU 0: server kimi holds 32.2 GB"


# --- strangers ---


def dirty_by_alice() -> Machine:
    machine = Machine()
    machine.know(ALICE)
    machine.look(gpu(0, 20 * GIB, GpuProcess(20, 20 * GIB)), times=2)
    return machine


def test_a_stranger_is_named_with_user_command_and_memory() -> None:
    finding = dirty_by_alice().check()
    assert finding.clean is False
    assert not finding.refuse
    assert finding.kill == ()
    assert finding.reason == "GPU 0: held by pid 20 of alice (python train.py) with 21.5 GB"
    (holder,) = finding.holders
    assert (holder.kind, holder.pid, holder.user, holder.bytes) == ("foreign", 20, "alice", 20 * GIB)


def test_the_policy_fail_refuses() -> None:
    assert dirty_by_alice().check(Claim("kimi", (0,), on_foreign=OnForeign.FAIL)).refuse


def test_the_policy_fail_does_not_refuse_for_a_process_that_has_just_gone() -> None:
    machine = dirty_by_alice()
    machine.know()  # listed as living a moment ago, and not to be found any more
    machine.look()
    finding = machine.check(Claim("kimi", (0,), on_foreign=OnForeign.FAIL))
    assert finding.clean is False
    assert not finding.refuse


def test_one_stranger_that_can_be_looked_up_is_enough_for_the_policy_fail() -> None:
    machine = Machine()
    machine.look(times=2)
    machine.know(ALICE)
    machine.look(gpu(0, 30 * GIB, GpuProcess(20, 20 * GIB), GpuProcess(21, 10 * GIB)))
    assert machine.check(Claim("kimi", (0,), on_foreign=OnForeign.FAIL)).refuse


@pytest.mark.parametrize(("uid", "killed"), [(1000, [20]), (990, []), (None, [])])
def test_the_policy_kill_same_user_kills_the_same_user_alone(uid: int | None, killed: list[int]) -> None:
    finding = dirty_by_alice().check(Claim("kimi", (0,), on_foreign=OnForeign.KILL_SAME_USER, uid=uid))
    assert [culprit.pid for culprit in finding.kill] == killed
    assert finding.clean is False


def test_a_process_that_has_just_gone_is_nobodys_and_is_not_killed() -> None:
    machine = dirty_by_alice()
    machine.know()
    machine.look()
    finding = machine.check(Claim("kimi", (0,), on_foreign=OnForeign.KILL_SAME_USER, uid=1000))
    assert finding.kill == ()
    assert finding.reason == "GPU 0: held by pid 20 with 21.5 GB"


def test_a_stranger_never_leads_to_a_quarantine() -> None:
    machine = dirty_by_alice()
    machine.look(times=300)
    assert machine.give_up() == ()
    assert machine.view().state == "in-use"


# --- memory that is nobody's ---


def leaking(rules: Rules | None = None, contained: bool = False) -> Machine:
    machine = Machine(rules=rules, contained=contained)
    machine.look(times=2)
    machine.look(gpu(0, 9 * GIB))
    return machine


def test_memory_that_nobody_holds_is_waited_for_and_then_the_device_is_out() -> None:
    machine = leaking()
    assert "held by nobody whom the driver names" in machine.check().reason
    assert machine.give_up() == ()
    machine.look(times=59)
    assert machine.give_up() == ()
    machine.look()
    (record,) = machine.give_up()
    assert (record.device, record.uuid, record.kind) == (0, "GPU-0", "unattributed")
    assert record.reason == "9.7 GB held by nobody for 60 s: reset it, or sglctl gpu release 0"
    finding = machine.check()
    assert (finding.clean, finding.quarantined) == (False, (0,))


def test_that_it_lasts_is_no_news() -> None:
    """The reason once grew by a clause a second, and the log by a line."""
    machine = leaking()
    machine.look(times=61)
    (record,) = machine.give_up()
    for _ in range(5):
        machine.look()
        assert machine.give_up() == ()
    assert machine.check().reason == f"GPU 0 is quarantined: {record.reason}"


def test_memory_of_nobodys_is_told_of_a_device_that_is_out_for_something_else() -> None:
    machine = leaking()
    machine.book.quarantine(0, "smells burnt", 5.0)
    machine.look(times=61)
    resting = msgspec.structs.replace(KIMI, rest=True)
    (record,) = machine.give_up(resting)
    assert record.reason.startswith("smells burnt; ")
    assert "held by nobody" in record.reason
    machine.look()
    assert machine.give_up(resting) == (), "that it lasts is no news"


def test_the_wait_begins_anew_when_the_memory_was_back_in_between() -> None:
    machine = leaking()
    machine.look(times=50)
    machine.look(gpu(0))
    machine.look(gpu(0, 9 * GIB), times=50)
    assert machine.give_up() == ()


def test_a_dead_process_that_keeps_its_memory_puts_the_device_out() -> None:
    machine = Machine()
    machine.look(gpu(0, 9 * GIB, GpuProcess(10, 9 * GIB, alive=False)), times=62)
    (record,) = machine.give_up()
    assert record.kind == "unattributed"


def test_in_a_container_it_may_be_a_neighbours_and_is_waited_for_without_end() -> None:
    machine = leaking(contained=True)
    machine.look(times=600)
    assert machine.give_up() == ()
    assert "somebody outside our pid namespace, perhaps" in machine.check().reason


# --- the baseline ---


def test_what_an_idle_device_holds_is_learned_as_its_baseline() -> None:
    machine = Machine()
    machine.look(gpu(0, 450 * MIB), times=2)  # a desktop, or an old driver without the second version of memory
    assert machine.view().baseline == 450 * MIB
    assert machine.check().clean is True
    machine.look(gpu(0, 9 * GIB), times=2)
    assert machine.check().clean is False


def test_the_baseline_is_the_least_ever_seen() -> None:
    machine = Machine()
    for used in (300 * MIB, 100 * MIB, 500 * MIB):
        machine.look(gpu(0, used))
    assert machine.view().baseline == 100 * MIB


def test_memory_that_was_there_before_us_is_no_baseline() -> None:
    machine = Machine()
    machine.look(gpu(0, 20 * GIB), times=2)
    assert machine.view().baseline is None
    assert machine.check().clean is False


def test_a_strangers_memory_is_no_baseline() -> None:
    machine = Machine()
    machine.know(ALICE)
    machine.look(gpu(0, 600 * MIB, GpuProcess(20, 590 * MIB)), times=2)
    assert machine.view().baseline == 10 * MIB
    assert machine.check().clean is False


def test_what_is_held_under_a_lease_teaches_nothing() -> None:
    machine = Machine()
    machine.book.lease("kimi", GpuPlan(indices=(0,)))
    machine.look(gpu(0, 700 * MIB))
    assert machine.view().baseline is None


# --- unknown is not failed ---


@pytest.mark.parametrize("report", [GpuBlind(9.0, "a driver call hangs"), GpuAbsent(9.0, "no NVML")])
def test_a_feed_that_sees_nothing_holds_up_no_start(report: GpuBlind | GpuAbsent) -> None:
    machine = Machine()
    machine.look(gpu(0, 20 * GIB))
    machine.book.observe(report, (), 9.0)
    finding = machine.check()
    assert finding.clean is None
    assert report.reason in finding.reason
    assert machine.view().state == "unknown"
    assert machine.book.view().sight == machine.book.sight != "seeing"


def test_the_first_look_is_waited_for_but_not_for_ever() -> None:
    machine = Machine()
    assert (machine.check().clean, machine.check().reason) == (False, "waiting for the first look at the GPUs")
    machine.now = 91.0  # nobody feeds this book
    assert machine.check().clean is None
    assert DeviceBook(now=5.0).view().since == 5.0


def test_a_first_look_that_sees_nothing_ends_the_wait() -> None:
    machine = Machine()
    machine.book.observe(GpuAbsent(0.2, "no NVML"), (), 0.2)
    assert machine.check().clean is None


def test_memory_that_cannot_be_read_is_unknown() -> None:
    machine = Machine()
    machine.look(gpu(0, memory=None), times=2)
    assert machine.check().clean is None


def test_a_look_that_saw_nothing_is_no_look_at_free_memory() -> None:
    machine = Machine()
    machine.look(gpu(0, memory=None))
    machine.look(gpu(0))
    assert machine.check().clean is False
    machine.look()
    assert machine.check().clean is True


def test_a_dirty_device_outweighs_an_unreadable_one() -> None:
    machine = Machine(2)
    machine.look(gpu(0, memory=None), gpu(1, 9 * GIB), times=2)
    finding = machine.check(Claim("kimi", (0, 1)))
    assert finding.clean is False
    assert "GPU 1" in finding.reason
    assert "GPU 0" not in finding.reason


def test_a_quarantine_holds_even_while_the_feed_is_blind() -> None:
    machine = Machine()
    machine.look()
    machine.book.quarantine(0, "smells burnt", machine.now)
    machine.book.observe(GpuBlind(9.0, "a driver call hangs"), (), 9.0)
    assert machine.check().clean is False
    assert machine.check().quarantined == (0,)


def test_a_device_that_the_machine_does_not_have_is_refused() -> None:
    machine = Machine()
    machine.look()
    finding = machine.check(Claim("kimi", (0, 7)))
    assert finding.refuse
    assert "there is no GPU 7: the machine has 1" in finding.reason


# --- at rest: what was ours must be back, and no more ---


def rest(machine: Machine, index: int = 0) -> Finding:
    return machine.check(Claim("kimi", (index,), rest=True))


def test_a_quarantined_device_whose_memory_is_back_does_not_hold_a_stop_back() -> None:
    machine = Machine()
    machine.look(times=2)
    machine.book.quarantine(0, "smells burnt", 5.0)
    assert rest(machine).clean is True
    assert machine.check().clean is False


def test_a_quarantined_device_that_still_holds_memory_holds_a_stop_back() -> None:
    machine = leaking()
    machine.look(times=2)
    machine.book.quarantine(0, "smells burnt", 5.0)
    assert rest(machine).clean is False


def test_of_a_lost_or_vanished_device_nobody_can_tell() -> None:
    machine = Machine(2)
    machine.look(gpu(1, lost="GPU is lost", memory=None), times=2)
    assert rest(machine, 1).clean is None
    assert rest(machine, 7).clean is None
    assert rest(machine, 7).reason == "GPU 7 is not there any more"


# --- containers ---


def test_pids_are_trusted_in_a_container_once_one_was_seen_alive() -> None:
    machine = Machine(contained=True)
    machine.look(gpu(0, 9 * GIB, GpuProcess(4711, 9 * GIB, alive=False)))
    assert not machine.book.pids_trusted
    assert not machine.book.view().pids_trusted
    machine.look(gpu(0, 9 * GIB, GpuProcess(10, 9 * GIB)))
    assert machine.book.pids_trusted


def test_outside_a_container_a_dead_pid_breaks_no_trust() -> None:
    machine = Machine()
    machine.look(gpu(0, 9 * GIB, GpuProcess(4711, 9 * GIB, alive=False)), times=5)
    assert machine.book.pids_trusted


def test_a_server_in_a_container_holds_by_lease_and_its_memory_is_waited_for_after() -> None:
    machine = Machine(contained=True)
    machine.book.lease("kimi", GpuPlan(indices=(0,)))
    machine.look(gpu(0, 9 * GIB, GpuProcess(4711, 9 * GIB, alive=False)))
    assert [(holder.server, holder.command) for holder in machine.view().holders] == [("kimi", "(by lease)")]
    assert machine.check().clean is False
    assert machine.check().kill == ()
    machine.look(gpu(0), times=2)
    assert machine.check().clean is True


# --- quarantine ---


def test_an_xid_of_the_device_puts_it_out_and_names_what_to_do() -> None:
    machine = Machine(2)
    machine.look()
    (record,) = machine.book.observe(XidSeen(1.5, 1, 79), (), 1.5)
    assert (record.device, record.kind, record.since_wall_s) == (1, "xid", 1_000_001.5)
    assert record.reason.startswith("Xid 79: GPU has fallen off the bus. Reboot the machine")
    view = machine.view(1)
    assert (view.state, view.last_xid, view.last_xid_at) == ("quarantined", 79, 1.5)
    assert view.last_xid_text == "Xid 79: GPU has fallen off the bus"
    assert machine.view(0).state == "free"


def test_an_xid_of_the_program_is_shown_and_no_more() -> None:
    machine = Machine()
    machine.look()
    assert machine.book.observe(XidSeen(1.5, 0, 31), (), 1.5) == ()
    assert machine.view().state == "free"
    assert machine.view().last_xid_text == "Xid 31: GPU memory page fault"


def test_an_xid_of_no_device_that_could_be_told_blames_none() -> None:
    machine = Machine()
    machine.look()
    assert machine.book.observe(XidSeen(1.5, -1, 79), (), 1.5) == ()


def test_an_xid_before_the_first_sample_counts() -> None:
    machine = Machine()
    machine.book.observe(XidSeen(0.5, 0, 48), (), 0.5)
    machine.look()
    assert machine.view().state == "quarantined"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"rows": RemappedRows(pending=True)}, "rows-pending"),
        ({"rows": RemappedRows(failure=True)}, "rows-failed"),
        ({"ecc_aggregate": 3}, "ecc"),
        ({"recovery": "node-reboot"}, "recovery"),
        ({"lost": "GPU is lost", "memory": None, "processes": None}, "lost"),
    ],
)
def test_what_a_device_says_of_itself_puts_it_out_once(change: dict[str, object], kind: str) -> None:
    machine = Machine()
    machine.look(gpu(0, ecc_aggregate=2, recovery="none", rows=RemappedRows()))
    (record,) = machine.look(msgspec.structs.replace(machine.gpus[0], **change))
    assert record.kind == kind
    assert machine.look(times=5) == ()
    assert machine.check().quarantined == (0,)


def ecc(life: int | None, load: int | None) -> Gpu:
    return gpu(0, ecc_aggregate=life, ecc_volatile=load)


@pytest.mark.parametrize(
    "looks",
    [
        (ecc(3, 0), ecc(None, 0), ecc(3, 0)),  # the count of its life could not be read for a moment
        (ecc(None, 0), ecc(3, 0)),  # and here could not be read yet
        (ecc(3, 0), ecc(None, 9), ecc(3, 9)),
        (ecc(None, 4), ecc(None, 0)),  # the driver was loaded anew
        (ecc(None, None), ecc(7, 7)),
    ],
)
def test_a_count_of_errors_that_could_not_be_read_is_no_rise_of_another(looks: tuple[Gpu, ...]) -> None:
    machine = Machine()
    assert [machine.look(look) for look in looks] == [()] * len(looks)


@pytest.mark.parametrize(
    "looks",
    [
        (ecc(3, 0), ecc(None, 0), ecc(4, 1)),
        (ecc(3, 0), ecc(None, None), ecc(4, 1)),
        (ecc(None, 0), ecc(None, None), ecc(None, 1)),
        (ecc(None, 4), ecc(None, 0), ecc(None, 1)),
        (ecc(None, 0), ecc(3, 0), ecc(4, 0)),
    ],
)
def test_a_rise_of_errors_is_seen_however_often_nobody_could_count(looks: tuple[Gpu, ...]) -> None:
    machine = Machine()
    for look in looks[:-1]:
        assert machine.look(look) == ()
    (record,) = machine.look(looks[-1])
    assert record.kind == "ecc"


def test_a_rise_of_errors_between_two_daemons_is_seen() -> None:
    machine = Machine()
    machine.look(ecc(3, 0))
    after = reborn(machine)
    (record,) = after.look(ecc(4, 0))
    assert record.kind == "ecc"


def test_another_device_in_its_place_has_done_nothing() -> None:
    machine = Machine()
    machine.look()
    machine.book.quarantine(0, "smells burnt", 5.0)
    machine.look(gpu(0, uuid="GPU-new"))
    assert machine.view().state == "free"
    assert [(view.uuid, view.state) for view in machine.book.view().gpus] == [
        ("GPU-new", "free"),
        ("GPU-0", "missing"),
    ]


def test_further_reasons_are_added_to_the_first() -> None:
    machine = Machine()
    machine.look()
    machine.book.observe(XidSeen(1.2, 0, 48), (), 1.2)
    (record,) = machine.book.observe(XidSeen(1.4, 0, 95), (), 1.4)
    assert record.kind == "xid"
    assert "Xid 48" in record.reason
    assert "Xid 95" in record.reason
    assert record.since_wall_s == 1_000_001.2


def test_a_storm_of_xids_does_not_grow_the_reason_without_end() -> None:
    machine = Machine()
    machine.look()
    for code in list(range(144, 151)) * 20:
        machine.book.observe(XidSeen(1.5, 0, code), (), 1.5)
    assert len(machine.view().reason) < 1000


def test_a_lost_gpu_is_called_lost() -> None:
    machine = Machine()
    machine.look(gpu(0, lost="GPU is lost", memory=None, processes=None))
    assert (machine.view().state, machine.view().holders) == ("lost", ())


def test_failures_blamed_on_a_device_put_it_out() -> None:
    machine = Machine(2)
    machine.look()
    assert machine.book.blame(1, "nccl-timeout", 10) is None
    assert machine.book.blame(1, "nccl-timeout", 20) is None
    record = machine.book.blame(1, "cuda-error", 30)
    assert record is not None
    assert record.reason == "3 failures blamed on it, last: cuda-error"
    assert machine.view(0).state == "free"


def failing(count: int, *xids: tuple[int, int]) -> Machine:
    machine = Machine(count)
    machine.look()
    machine.book.lease("kimi", GpuPlan(indices=tuple(range(count))))
    for device, xid in xids:
        machine.book.observe(XidSeen(10.0, device, xid), (), 10.0)
    return machine


def test_a_hardware_fault_on_the_only_device_is_that_devices() -> None:
    assert failing(1).book.suspects("kimi", "gpu-hardware-fault", 5.0) == (0,)
    assert failing(1).book.suspects("kimi", "gpu-oom-runtime", 5.0) == ()
    assert failing(1).book.suspects("glm", "gpu-hardware-fault", 5.0) == ()


def test_of_several_devices_the_one_with_an_xid_of_its_own_is_blamed() -> None:
    machine = failing(4, (2, 79), (3, 13))
    assert machine.book.suspects("kimi", "gpu-hardware-fault", 5.0) == (2,)
    assert machine.book.suspects("kimi", "scheduler-hang", 5.0) == (2,)
    assert machine.book.suspects("kimi", "gpu-hardware-fault", 11.0) == ()  # the Xid is of an earlier attempt
    assert failing(4).book.suspects("kimi", "gpu-hardware-fault", 5.0) == ()  # a guess would hit healthy ones


def test_an_xid_told_twice_is_one() -> None:
    machine = Machine()
    machine.look()
    assert machine.book.observe(XidSeen(10.0, 0, 79), (), 10.0)
    machine.book.release(0)
    assert machine.book.observe(XidSeen(10.4, 0, 79), (), 10.4) == ()
    assert machine.view().state == "free"
    assert machine.book.observe(XidSeen(60.0, 0, 79), (), 60.0)


@pytest.mark.parametrize(
    ("pci", "index"), [("0000:1A:00", 1), ("00000000:1a:00.0", 1), ("0001:1A:00", -1), ("gpu1", -1), ("", -1)]
)
def test_a_device_is_found_by_its_address_however_it_is_written(pci: str, index: int) -> None:
    machine = Machine(3)
    machine.look(gpu(0, pci="00000000:19:00.0"), gpu(1, pci="00000000:1A:00.0"))
    assert machine.book.device_at(pci) == index


def test_failures_long_ago_are_forgotten() -> None:
    book = Machine().book
    assert [book.blame(0, "cuda-error", at) for at in (0, 10, 4000, 4010)] == [None] * 4


def test_release_puts_it_back_into_use() -> None:
    machine = Machine()
    machine.look(times=2)
    machine.book.quarantine(0, "smells burnt", machine.now)
    assert machine.view().reason == "smells burnt"
    assert machine.book.release(0)
    assert machine.check().clean is True
    assert not machine.book.release(0)
    assert not machine.book.release(12)


def test_failures_before_a_release_count_no_more() -> None:
    book = Machine().book
    assert [book.blame(0, "cuda-error", at) is not None for at in (0.0, 10.0, 20.0)] == [False, False, True]
    assert book.release(0)
    assert [book.blame(0, "cuda-error", at) is not None for at in (30.0, 40.0, 50.0)] == [False, False, True]


def test_a_living_process_beside_an_ended_one_names_the_memory() -> None:
    """What the ended one leaves is waited for; it is not memory of nobody while somebody is there."""
    machine = dirty_by_alice()
    gone = GpuProcess(21, 5 * GIB, alive=False)
    machine.look(gpu(0, 25 * GIB, GpuProcess(20, 20 * GIB), gone), times=90)
    assert machine.give_up() == ()
    assert "alice" in machine.check().reason
    machine.look(gpu(0, 5 * GIB), times=2)
    assert machine.give_up() == (), "from now on it is nobody's, and the wait for it begins"


def test_a_release_learns_the_baseline_even_of_a_leased_device() -> None:
    """What an idle device holds was unknown when the server began: afterwards nobody seems to give it back."""
    machine = Machine()
    machine.book.lease("kimi", GpuPlan(indices=(0,)))
    machine.look(gpu(0, 500 * MIB), times=90)
    machine.check()
    assert "524 MB held by nobody" in machine.view().reason
    assert machine.book.release(0)
    assert machine.view().baseline == 500 * MIB
    machine.look(gpu(0, 500 * MIB), times=2)
    assert machine.check().clean is True


def test_a_released_device_is_not_put_out_again_for_what_was_overruled() -> None:
    machine = Machine()
    machine.look(gpu(0, rows=RemappedRows(pending=True)))
    machine.book.release(0)
    assert machine.look(times=3) == ()
    assert machine.view().state == "free"


def test_what_was_overruled_counts_again_once_it_had_gone() -> None:
    machine = Machine()
    pending = gpu(0, rows=RemappedRows(pending=True))
    machine.look(pending)
    machine.book.release(0)
    machine.look(gpu(0, rows=RemappedRows()))
    assert [record.kind for record in machine.look(pending)] == ["rows-pending"]


def test_a_new_complaint_of_a_released_device_counts() -> None:
    machine = Machine()
    machine.look(gpu(0, rows=RemappedRows(pending=True)))
    machine.book.release(0)
    failed = gpu(0, rows=RemappedRows(pending=True, failure=True))
    assert [record.kind for record in machine.look(failed)] == ["rows-failed"]


def test_release_learns_the_baseline_anew() -> None:
    """Some hundred megabytes that the driver keeps since an MPS server came: the operator says that it is all right."""
    machine = leaking()
    machine.look(gpu(0, 900 * MIB), times=62)
    assert machine.give_up()
    machine.book.release(0)
    machine.look(times=2)
    assert machine.check().clean is True


# --- what survives the daemon ---


def reborn(machine: Machine) -> Machine:
    """A new daemon on the same machine."""
    stored = msgspec.json.encode(machine.book.records())
    after = Machine(machine.count)
    after.gpus = machine.gpus
    after.book.restore(msgspec.json.decode(stored, type=tuple[DeviceRecord, ...]))
    return after


def test_quarantine_baseline_and_error_counts_survive() -> None:
    machine = Machine()
    machine.look(gpu(0, 300 * MIB, ecc_aggregate=2), times=2)
    machine.book.quarantine(0, "smells burnt", 5.0)
    after = reborn(machine)
    assert after.check().quarantined == (0,)  # before anything was seen
    (record,) = after.look(gpu(0, 900 * MIB, ecc_aggregate=3))  # an error while no daemon was there
    assert "rose from 2 to 3" in record.reason
    assert after.view().baseline == 300 * MIB
    assert after.view().quarantined_since_wall_s == 1_000_005.0


def test_what_was_overruled_survives() -> None:
    machine = Machine()
    machine.look(gpu(0, rows=RemappedRows(pending=True)))
    machine.book.release(0)
    assert reborn(machine).look() == ()


def test_a_quarantine_follows_its_device_when_indices_move() -> None:
    machine = Machine(3)
    machine.look()
    machine.book.quarantine(2, "smells burnt", 5.0)
    after = reborn(machine)
    after.gpus = [msgspec.structs.replace(gpu(1), index=0), msgspec.structs.replace(gpu(2), index=1)]  # 0 is gone
    after.look()
    assert [(view.index, view.uuid, view.state) for view in after.book.view().gpus] == [
        (0, "GPU-1", "free"),
        (1, "GPU-2", "quarantined"),
        (0, "GPU-0", "missing"),
    ]


def test_a_missing_device_keeps_its_record_and_returns_to_it() -> None:
    machine = Machine(2)
    machine.look()
    machine.book.quarantine(1, "smells burnt", 5.0)
    both = machine.gpus
    machine.gpus = both[:1]
    machine.look()
    assert len(machine.book.records()) == 2
    machine.gpus = both
    machine.look()
    assert machine.view(1).state == "quarantined"


def test_a_missing_device_can_be_released() -> None:
    machine = Machine(2)
    machine.look()
    machine.book.quarantine(1, "smells burnt", 5.0)
    machine.gpus = machine.gpus[:1]
    machine.look()
    assert machine.book.release(1)


def test_a_device_lost_at_start_has_no_uuid_and_is_known_by_its_index() -> None:
    machine = Machine(2)
    machine.look()
    machine.book.quarantine(1, "smells burnt", 5.0)
    machine.look(Gpu(1, lost="GPU is lost"))
    assert machine.view(1).uuid == "GPU-1"
    assert len(machine.book.records()) == 2


# --- leases ---


def lease(machine: Machine, server: str, plan: GpuPlan) -> tuple[int, ...]:
    given_devices = machine.book.lease(server, plan)
    assert isinstance(given_devices, Lease), given_devices
    return given_devices.devices


def refusal(machine: Machine, server: str, plan: GpuPlan) -> LeaseRefused:
    refused = machine.book.lease(server, plan)
    assert isinstance(refused, LeaseRefused)
    return refused


def test_named_devices_are_given_in_their_order_and_shown() -> None:
    machine = Machine(4)
    machine.look()
    assert lease(machine, "kimi", GpuPlan(indices=(3, 1))) == (3, 1)
    assert machine.book.leased("kimi") == (3, 1)
    assert (machine.view(3).state, machine.view(3).server) == ("leased", "kimi")
    machine.book.release_lease("kimi")
    assert machine.view(3).state == "free"


def test_a_lease_tells_cuda_to_number_devices_as_nvml_does() -> None:
    environment = Lease("kimi", (3, 1)).environment
    assert environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3,1"}


def test_no_device_is_given_twice() -> None:
    machine = Machine(2)
    machine.look()
    lease(machine, "kimi", GpuPlan(indices=(0, 1)))
    assert refusal(machine, "glm", GpuPlan(indices=(1,))).reason == "GPU 1 is leased to kimi"
    assert lease(machine, "kimi", GpuPlan(indices=(0, 1))) == (0, 1)  # its own again


def test_a_quarantined_device_is_not_given_and_the_reason_is_told() -> None:
    machine = Machine(2)
    machine.look()
    machine.book.quarantine(1, "smells burnt", 5.0)
    refused = refusal(machine, "kimi", GpuPlan(indices=(0, 1)))
    assert (refused.reason, refused.quarantined) == ("GPU 1 is quarantined: smells burnt", (1,))
    assert machine.book.leased("kimi") == ()


def test_a_device_that_is_not_there_is_not_given() -> None:
    machine = Machine(2)
    machine.look()
    refused = refusal(machine, "kimi", GpuPlan(indices=(5,)))
    assert (refused.reason, refused.refuse) == ("there is no GPU 5: the machine has 2", True)


def test_named_devices_are_given_while_nothing_can_be_seen() -> None:
    assert lease(Machine(), "kimi", GpuPlan(indices=(5,))) == (5,)


def test_any_four_are_four_healthy_ones_and_the_free_ones_first() -> None:
    machine = Machine(8)
    machine.know(ALICE)
    machine.look(gpu(1, 9 * GIB, GpuProcess(20, 9 * GIB)))
    machine.book.quarantine(0, "smells burnt", 5.0)
    lease(machine, "glm", GpuPlan(indices=(2,)))
    assert lease(machine, "kimi", GpuPlan(count=4)) == (3, 4, 5, 6)
    assert lease(machine, "qwen", GpuPlan(count=2)) == (1, 7)  # the held one only when no other is left


def test_any_four_stay_the_same_while_they_are_healthy() -> None:
    machine = Machine(4)
    machine.look()
    lease(machine, "glm", GpuPlan(indices=(0,)))
    assert lease(machine, "kimi", GpuPlan(count=2)) == (1, 2)
    machine.book.release_lease("glm")
    assert lease(machine, "kimi", GpuPlan(count=2)) == (1, 2)
    machine.book.observe(XidSeen(2.0, 1, 79), (), 2.0)
    assert lease(machine, "kimi", GpuPlan(count=2)) == (0, 2)
    assert machine.book.leased("glm") == ()


def test_who_gets_other_devices_gives_the_old_ones_back() -> None:
    machine = Machine(4)
    machine.look()
    assert lease(machine, "kimi", GpuPlan(indices=(0, 1))) == (0, 1)
    assert lease(machine, "kimi", GpuPlan(indices=(2,))) == (2,)
    assert machine.book.leased("kimi") == (2,)
    assert lease(machine, "glm", GpuPlan(indices=(0, 1))) == (0, 1)


def test_who_is_refused_other_devices_keeps_what_he_has() -> None:
    machine = Machine(4)
    machine.look()
    lease(machine, "kimi", GpuPlan(indices=(0, 1)))
    lease(machine, "glm", GpuPlan(indices=(2,)))
    refusal(machine, "kimi", GpuPlan(indices=(2, 3)))
    assert machine.book.leased("kimi") == (0, 1)


def test_since_when_the_feed_sees_is_not_changed_by_another_look() -> None:
    machine = Machine()
    machine.look(times=3)
    assert (machine.book.view().sight, machine.book.view().since) == ("seeing", 1.0)
    machine.book.observe(GpuBlind(9.0, "a driver call hangs"), (), 9.0)
    machine.book.observe(GpuBlind(12.0, "still"), (), 12.0)
    view = machine.book.view()
    assert (view.sight, view.since, view.reason) == ("blind", 9.0, "still")


def test_too_few_healthy_devices_are_counted_out() -> None:
    machine = Machine(4)
    machine.look()
    machine.book.quarantine(0, "smells burnt", 5.0)
    lease(machine, "glm", GpuPlan(indices=(1,)))
    refused = refusal(machine, "kimi", GpuPlan(count=3))
    assert refused.reason == "3 GPUs wanted, 2 to be had: 1 are quarantined, 1 leased to others"
    assert (refused.quarantined, refused.refuse) == ((), False)  # when the other server ends there will be three
    refused = refusal(machine, "kimi", GpuPlan(count=4))
    assert (refused.quarantined, refused.refuse) == ((0,), False)
    assert refusal(machine, "kimi", GpuPlan(count=5)).refuse


def test_any_four_of_an_unseen_machine_cannot_be_chosen() -> None:
    machine = Machine()
    machine.book.observe(GpuBlind(1.0, "a driver call hangs"), (), 1.0)
    reason = refusal(machine, "kimi", GpuPlan(count=4)).reason
    assert reason == "cannot choose 4 GPUs: the GPU feed is blind: a driver call hangs"


def test_an_empty_plan_is_an_empty_lease() -> None:
    assert lease(Machine(), "cpu-only", GpuPlan()) == ()


def test_a_lease_of_an_earlier_daemon_is_taken_over() -> None:
    machine = Machine(2)
    machine.look()
    machine.book.adopt(Lease("kimi", (1,)))
    assert refusal(machine, "glm", GpuPlan(indices=(1,))).reason == "GPU 1 is leased to kimi"


# --- always ---

LOOKS = st.lists(
    st.tuples(st.sampled_from(["free", "held", "leaked", "ended", "unreadable", "lost"]), st.booleans()), max_size=12
)


def appearing(state: str) -> Gpu:
    match state:
        case "held":
            return gpu(0, 9 * GIB, GpuProcess(20, 9 * GIB))
        case "leaked":
            return gpu(0, 9 * GIB)
        case "ended":
            return gpu(0, 9 * GIB, GpuProcess(20, 9 * GIB, alive=False))
        case "unreadable":
            return gpu(0, memory=None, processes=None)
        case "lost":
            return gpu(0, memory=None, processes=None, lost="GPU is lost")
        case _:
            return gpu(0)


@settings(max_examples=150)
@given(looks=LOOKS)
def test_clean_means_seen_free_twice_and_blind_never_means_dirty(looks: Iterable[tuple[str, bool]]) -> None:
    machine = Machine()
    machine.know(ALICE)
    free_in_a_row = 0
    for state, blind in looks:
        machine.look(appearing(state))
        free_in_a_row = free_in_a_row + 1 if state == "free" else 0
        if blind:
            machine.book.observe(GpuBlind(machine.now, "a driver call hangs"), (), machine.now)
        finding = machine.check()
        if finding.clean:
            assert free_in_a_row >= 2
        if blind and not finding.quarantined:
            assert finding.clean is None
        if state in ("held", "leaked", "ended") and not blind:
            assert finding.clean is False
            assert finding.reason
        assert msgspec.json.decode(msgspec.json.encode(machine.book.view())) is not None
