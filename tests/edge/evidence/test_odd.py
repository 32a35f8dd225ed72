"""Of eight stacks the one that is different is the one to look at."""

from __future__ import annotations

from pathlib import Path

from supervisor.edge.evidence.odd import odd_one_out, odd_rank


def dump(*frames: str) -> str:
    body = "".join(f"    {frame} (engine/scheduler.py:{number})\n" for number, frame in enumerate(frames, 100))
    head = "Process 4711: engine::scheduler                 \nPython v3.12.3 (/usr/bin/python3)\n\n"
    return f'{head}Thread 4711 (idle): "MainThread"\n{body}'


WAITING = {f"TP{number}": dump("Link.look", "Link.meet", "run") for number in range(8)}


def test_the_rank_that_is_elsewhere_is_named() -> None:
    stacks = {**WAITING, "TP3": dump("Scheduler.capture", "Scheduler.init")}
    assert odd_one_out(stacks) == ("TP3 is in capture (called by init), the other 7 ranks are in look (called by meet)")


def test_several_odd_ranks_are_named_together() -> None:
    stacks = {**WAITING, "TP3": dump("spin"), "TP1": dump("spin")}
    assert odd_one_out(stacks) == "TP1, TP3 are in spin, the other 6 ranks are in look (called by meet)"


def test_ranks_that_are_all_in_one_place_or_all_over_tell_nothing() -> None:
    assert odd_one_out(WAITING) == ""
    assert odd_one_out({}) == ""
    assert odd_one_out({f"TP{number}": dump(f"f{number}") for number in range(3)}) == ""
    two_and_two = {f"TP{number}": dump("a" if number < 2 else "b") for number in range(4)}
    assert odd_one_out(two_and_two) == "", "as many on each side: nobody is the odd one"


def test_of_two_ranks_it_is_told_where_each_one_is() -> None:
    """Seen with a real engine: the one that is stopped in a copy, and the other in the broadcast that waits for it."""
    waits = dump("broadcast", "_exception_logger.<locals>.wrapper", "Scheduler.recv_requests")
    stacks = {"TP1": dump("foreach_copy", "execute"), "TP0": waits}
    told = "TP0 is in broadcast (called by recv_requests), TP1 in foreach_copy (called by execute)"
    assert odd_one_out(stacks) == told
    assert odd_one_out({"TP0": dump("a"), "TP1": dump("a")}) == ""
    assert odd_one_out({"TP0": dump("wrapper"), "TP1": dump("a")}) == "TP0 is in wrapper, TP1 in a"
    assert odd_one_out({"TP0": dump("(anonymous)"), "TP1": dump("a")}) == ""


def test_only_the_main_thread_speaks() -> None:
    side = 'Thread 4712 (idle): "watchdog"\n    wait (threading.py:1)\n'
    stacks = {"TP0": WAITING["TP0"] + side, "TP1": WAITING["TP1"] + side, "TP2": dump("spin") + side}
    assert odd_one_out(stacks).startswith("TP2 is in spin, the other 2 ranks")


def test_a_bundle_tells_by_the_names_of_its_files(tmp_path: Path) -> None:
    for number in range(4):
        frames = ("capture",) if number == 2 else ("look", "meet")
        (tmp_path / f"stack-scheduler-DP0-TP{number}-{4000 + number}.txt").write_text(dump(*frames))
    (tmp_path / "stack-detokenizer-4711.txt").write_text(dump("recv"))
    (tmp_path / "native-scheduler-TP9-4009.txt").write_text(dump("recv"))
    assert odd_rank(str(tmp_path)) == "DP0 TP2 is in capture, the other 3 ranks are in look (called by meet)"


def test_a_bundle_that_is_gone_or_holds_rubbish_tells_nothing(tmp_path: Path) -> None:
    assert odd_rank(str(tmp_path / "gone")) == ""
    (tmp_path / "stack-scheduler-TP0-1.txt").write_bytes(b"\xff\x00\n")
    assert odd_rank(str(tmp_path)) == ""
