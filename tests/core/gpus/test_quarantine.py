"""What is the device's fault, what the program's, and what says nothing."""

import pytest

from supervisor.core.gpus.quarantine import complaints, ecc_errors, xid_complaint, xid_text
from supervisor.devices import Gpu, RemappedRows, XidFault, xid_table

TABLE = xid_table()


@pytest.mark.parametrize("code", [8, 11, 13, 31, 32, 43, 45, 68, 69, 171, 172])
def test_the_programs_faults_and_consequences_leave_the_device_in_use(code: int) -> None:
    rule = TABLE.rule(code)
    assert rule is not None
    assert rule.fault is not XidFault.DEVICE
    assert xid_complaint(TABLE, code, None) is None


@pytest.mark.parametrize(
    "code", [48, 62, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 140, 143, 145, 149, 154, 155, 156, 157, 158]
)
def test_the_devices_faults_put_it_out_of_use_and_say_what_to_do(code: int) -> None:
    rule = TABLE.rule(code)
    assert rule is not None
    assert rule.fault is XidFault.DEVICE
    complaint = xid_complaint(TABLE, code, None)
    assert complaint is not None
    assert complaint.kind == "xid"
    assert complaint.reason == f"Xid {code}: {rule.name}. {rule.action}"


def test_an_xid_that_the_table_does_not_know_is_shown_and_no_more() -> None:
    assert xid_complaint(TABLE, 9999, None) is None
    assert xid_text(TABLE.rule(9999), 9999) == "Xid 9999: not in the table"


def test_the_driver_itself_may_say_that_nothing_is_left_to_do() -> None:
    assert xid_complaint(TABLE, 154, "none") is None
    assert xid_complaint(TABLE, 154, "node-reboot") is not None
    assert xid_complaint(TABLE, 79, "none") is not None  # no other row listens to it


def test_the_table_is_whole_and_speaks_to_people() -> None:
    codes = [rule.code for rule in TABLE.xid]
    assert codes == sorted(set(codes))
    for rule in TABLE.xid:
        assert rule.meaning.endswith(".")
        assert rule.action.endswith((".", ")."))
        assert rule.quarantine == (rule.fault is XidFault.DEVICE)


def kinds(gpu: Gpu, known_ecc: int | None = None) -> list[str]:
    return [complaint.kind for complaint in complaints(gpu, known_ecc)]


def test_a_healthy_device_and_one_that_tells_nothing_have_no_complaint() -> None:
    assert kinds(Gpu(0, rows=RemappedRows(), ecc_volatile=0, ecc_aggregate=5, recovery="none"), 5) == []
    assert kinds(Gpu(0)) == []


def test_a_lost_device_is_nothing_but_lost() -> None:
    (complaint,) = complaints(Gpu(0, lost="GPU is lost", rows=RemappedRows(pending=True)), None)
    assert complaint.reason == "the driver can no longer reach it: GPU is lost"


def test_rows_and_recovery() -> None:
    assert kinds(Gpu(0, rows=RemappedRows(pending=True))) == ["rows-pending"]
    assert kinds(Gpu(0, rows=RemappedRows(failure=True, pending=True))) == ["rows-failed", "rows-pending"]
    assert kinds(Gpu(0, recovery="gpu-reset")) == ["recovery"]
    assert kinds(Gpu(0, recovery="action-42")) == ["recovery"]


@pytest.mark.parametrize(
    ("known", "volatile", "aggregate", "rises"),
    [
        (None, 4, 9, False),  # history, from before we came
        (9, 4, 9, False),
        (9, 5, 10, True),
        (4, 5, None, True),
        (4, None, None, False),
        (4, 0, None, False),  # the driver was loaded anew: its count begins again
    ],
)
def test_uncorrectable_errors_count_when_they_rise(
    known: int | None, volatile: int | None, aggregate: int | None, rises: bool
) -> None:
    gpu = Gpu(0, ecc_volatile=volatile, ecc_aggregate=aggregate)
    assert kinds(gpu, known) == (["ecc"] if rises else [])


def test_the_count_of_the_whole_life_is_preferred() -> None:
    assert ecc_errors(Gpu(0, ecc_volatile=1, ecc_aggregate=7)) == 7
    assert ecc_errors(Gpu(0, ecc_volatile=1)) == 1
    assert ecc_errors(Gpu(0)) is None
