"""Of eight stacks the one that is different is the one to look at."""

from __future__ import annotations

from supervisor.demo.stacks import odd_one_out


def dump(title: str, *frames: str) -> str:
    body = "".join(f"    {frame} (engine/scheduler.py:{number})\n" for number, frame in enumerate(frames, 100))
    head = f"Process 4711: {title}                 \nPython v3.12.3 (/usr/bin/python3)\n\n"
    return f'{head}Thread 4711 (idle): "MainThread"\n{body}'


WAITING = [dump(f"engine::scheduler_TP{number}", "Link.look", "Link.meet", "run") for number in range(8)]


def test_the_rank_that_is_elsewhere_is_named() -> None:
    stacks = [*WAITING[:3], dump("engine::scheduler_TP3", "Scheduler.capture", "Scheduler.init"), *WAITING[4:]]
    assert odd_one_out(stacks) == ("TP3 is in capture (called by init), the other 7 ranks are in look (called by meet)")


def test_other_processes_do_not_count() -> None:
    others = [dump("python -m engine --tp 8", "wait"), dump("engine::detokenizer", "recv")]
    assert odd_one_out([*others, *WAITING]) == ""


def test_ranks_that_are_all_in_one_place_or_all_over_tell_nothing() -> None:
    assert odd_one_out(WAITING) == ""
    assert odd_one_out([]) == ""
    assert odd_one_out([dump(f"e_TP{number}", f"f{number}") for number in range(3)]) == ""
    assert odd_one_out([dump("e_TP0", "a"), dump("e_TP1", "b")]) == "", "one against one: nobody is the odd one"


def test_only_the_main_thread_speaks() -> None:
    side = 'Thread 4712 (idle): "watchdog"\n    wait (threading.py:1)\n'
    stacks = [text + side for text in WAITING[:2]] + [dump("e_TP2", "spin") + side]
    assert odd_one_out(stacks).startswith("TP2 is in spin, the other 2 ranks")
