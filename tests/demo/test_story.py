"""The demo's judgement: what it tells of a good run, and which line names what went wrong in a bad one."""

from __future__ import annotations

from itertools import count

from supervisor.api import wire
from supervisor.demo.stage import DRAFTED, PLAIN, STALL_PHASE
from supervisor.demo.story import Look, Observation, Story, Telling
from supervisor.snapshot import FacetView, StartupView
from tests.shell.made import BEGAN, at, rank, server, span, startup

RANKS = tuple(f"TP{number}" for number in range(8))
HELD = Look(11, 8 * 10**11)
EVIDENCE = ("facts.json", "log-tail.txt", "stack-1.txt", "stack-2.txt")
KEPT = HELD._replace(evidence=EVIDENCE, odd_one_out="TP3 is in hang, the other 7 ranks are in wait")
GONE = Look(0, 0, EVIDENCE)
NUMBERS = count(1)


def event(seconds: float, name: str, change: str, reason: str = "", attempt: int = 1) -> wire.Event:
    before, after = change.split(" -> ")
    return wire.Event(next(NUMBERS), at(seconds), name, "lifecycle", before, after, reason, attempt)


def stuck(*through: str) -> StartupView:
    spans = tuple(span(name, STALL_PHASE, 9.0, 10.5 if name in through else None) for name in RANKS)
    bar = rank("TP0", STALL_PHASE, 9.0, done=11, total=23)
    return startup(bar, *(rank(name, STALL_PHASE, 9.0) for name in RANKS[1:]), spans=spans, last_progress=10.0)


def stalled(now: float = 14.1, **fields: object) -> wire.Server:
    fields = {"start": stuck(), "last_progress": 10.0, "verdict": FacetView("stalled", 14.0)} | fields
    return server(DRAFTED, "stopping", "stalled in draft-graph", now=now, **fields)


class Run:
    """A story under way."""

    def __init__(self) -> None:
        self.story = Story(BEGAN, 600.0)
        self.told: list[Telling] = []

    def see(self, now: float, look: Look, *events: wire.Event, servers: tuple[wire.Server, ...] = ()) -> None:
        self.told += self.story.observe(Observation(at(now), servers, events), look)

    def texts(self) -> list[str]:
        return [telling.text for telling in self.told]


def started(now: float = 9.5) -> Run:
    it = Run()
    it.see(1.0, Look(0, 0), event(1.0, PLAIN, "reclaiming -> starting"), event(1.0, DRAFTED, "reclaiming -> starting"))
    it.see(8.0, HELD, event(8.0, PLAIN, "starting -> running", "healthy 7.0 s after the start"))
    it.see(now, HELD, servers=(server(DRAFTED, now=now, start=stuck(), last_progress=10.0),))
    return it


def verdict(it: Run, reason: str = "stalled in draft-graph: no progress for 4 s") -> None:
    it.see(14.0, HELD, event(14.0, DRAFTED, "starting -> stopping", reason), servers=(stalled(),))


def good_run() -> Run:
    it = started()
    verdict(it)
    it.see(14.2, KEPT, servers=(stalled(14.2, evidence_path="/tmp/d/evidence"),))
    it.see(14.4, GONE, event(14.3, DRAFTED, "stopping -> reclaiming"), event(14.3, DRAFTED, "reclaiming -> backoff"))
    it.see(16.3, Look(0, 0), event(16.3, DRAFTED, "reclaiming -> starting", attempt=2))
    again = startup(rank("TP0", "healthy"), spans=(span("TP0", STALL_PHASE, 20.0, 21.5),))
    it.see(26.0, Look(0, 0), servers=(server(DRAFTED, now=26.0, attempt=2, start=again),))
    it.see(27.3, Look(0, 0), event(27.3, DRAFTED, "starting -> running", "healthy 11.0 s after the start", 2))
    return it


def test_a_good_run_has_no_problems_and_tells_its_times() -> None:
    it = good_run()
    assert it.story.done
    assert it.story.problems == []
    assert dict(it.story.summary()) == {
        "stall found": "4.0 s after the last progress (4 s are allowed)",
        "tree empty": "0.3 s after that, the evidence being kept meanwhile",
        "second start": "11.0 s until healthy, 1.5 s of them in draft-graph",
    }


def test_a_good_run_is_told_in_order() -> None:
    texts = good_run().texts()
    wanted = [
        "starts (attempt 1)",
        "healthy 7.0 s after the start",
        "stalled in draft-graph: no progress for 4 s",
        "none of its 8 ranks has left draft-graph; the bar stands at 11 of 23 batch sizes",
        "the stacks tell who holds them up: TP3 is in hang, the other 7 ranks are in wait",
        "silent for 4.0 s; 4 s are allowed in this demo, 10 m unless configured",
        "evidence kept before the kill: 2 stacks and 2 more files in /tmp/d/evidence",
        "killed, proven empty 0.3 s after the verdict: 11 processes, 800 GB of make-believe GPU memory",
        "starts again (attempt 2)",
        "healthy 11.0 s after the start",
    ]
    assert [text for text in texts if text in wanted] == ["starts (attempt 1)", *wanted]


def test_a_rank_that_alone_is_behind_is_named_with_what_the_others_needed() -> None:
    it = started()
    others = tuple(name for name in RANKS if name != "TP3")
    it.see(
        14.2,
        KEPT,
        event(14.0, DRAFTED, "starting -> stopping", "stalled in draft-graph"),
        servers=(stalled(14.2, start=stuck(*others), evidence_path="/e"),),
    )
    assert "TP3 never left draft-graph; 7 others took 1.5 s for it and wait" in it.texts()


def test_the_explanation_comes_before_the_end_even_when_all_is_seen_at_once() -> None:
    it = started()
    it.see(
        14.5,
        GONE,
        event(14.0, DRAFTED, "starting -> stopping", "stalled in draft-graph"),
        event(14.3, DRAFTED, "stopping -> reclaiming"),
        servers=(stalled(14.5, evidence_path="/e"),),
    )
    texts = it.texts()
    assert texts.index(next(text for text in texts if text.startswith("silent for"))) < texts.index(
        next(text for text in texts if text.startswith("killed, proven empty"))
    )
    assert it.story.problems == []


def test_processes_that_are_left_are_a_problem() -> None:
    it = started()
    verdict(it)
    it.see(14.4, HELD, event(14.3, DRAFTED, "stopping -> reclaiming"), servers=(stalled(evidence_path="/e"),))
    assert any("11 processes and 800 GB" in problem for problem in it.story.problems)
    assert it.story.done


def test_a_stall_without_evidence_is_a_problem() -> None:
    it = started()
    verdict(it)
    it.see(14.4, Look(0, 0), event(14.3, DRAFTED, "stopping -> reclaiming"), servers=(stalled(),))
    assert any("no evidence" in problem for problem in it.story.problems)


def test_a_stall_in_another_phase_is_a_problem() -> None:
    it = started()
    verdict(it, "stalled in weights: no progress for 600 s")
    assert it.story.problems == ["kimi was to stall in draft-graph, but: stalled in weights: no progress for 600 s"]


def test_a_stall_that_is_found_late_is_a_problem() -> None:
    it = started()
    it.see(
        24.2,
        KEPT,
        event(24.0, DRAFTED, "starting -> stopping", "stalled in draft-graph"),
        servers=(stalled(24.2, evidence_path="/e"),),
    )
    assert any(problem.startswith("the stall was found only after 14.0 s") for problem in it.story.problems)


def test_a_healthy_server_that_is_stopped_is_a_problem() -> None:
    it = started()
    it.see(12.0, HELD, event(12.0, PLAIN, "running -> stopping", "stalled while serving"))
    assert it.story.problems == ["llama was stopped though nothing was wrong with it: stalled while serving"]


def test_a_second_stall_is_a_problem() -> None:
    it = good_run()
    it.see(30.0, HELD, event(30.0, DRAFTED, "starting -> stopping", "stalled in draft-graph", 2))
    assert len(it.story.problems) == 1


def test_a_stall_that_never_came_is_a_problem() -> None:
    it = started()
    it.see(12.0, HELD, event(12.0, DRAFTED, "starting -> running", "healthy"))
    assert it.story.problems == ["kimi became healthy in attempt 1 without having stalled"]


def test_a_server_that_was_given_up_is_a_problem() -> None:
    it = started()
    it.see(12.0, HELD, servers=(server(PLAIN, "fatal", "exited with status 1"),))
    assert it.story.problems == ["llama is fatal: exited with status 1"]
    assert it.story.done


def test_phases_are_minor_news_which_a_live_view_shows_by_itself() -> None:
    it = Run()
    it.see(2.0, HELD, wire.Event(1, at(2.0), PLAIN, "phase", "launch", "weights", "", 1))
    assert [(telling.text, telling.minor) for telling in it.told] == [("phase weights", True)]
    assert it.told[0].at_s == 2.0
