"""What the page tells, to whom, and what it never does."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.gpus.views import GpusView
from supervisor.snapshot import DiagnosisView, FacetView, ServerSnapshot, StartupView
from supervisor.web.page import content, document
from supervisor.web.pieces import quoted
from tests.api.fake import FakeControl, snapshot
from tests.metrics import fleet
from tests.web import crowd
from tests.web.test_markup import Reader

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=x style=x \x1b[31m\u202e"


def page(*servers: ServerSnapshot, full: bool = False) -> str:
    return document(fleet.control(*servers), full=full)


class Spaced(Reader):
    """Elements part words."""

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.text += " "

    def handle_endtag(self, name: str) -> None:
        self.text += " "


def text(html: str) -> str:
    return re.sub(r" ([,;.:])", r"\1", " ".join(Spaced(html).text.split()))


def test_the_table_tells_each_server() -> None:
    told = text(page())

    assert "weights for 5 m 8 s 74% slow: TP5 silent for 41 s, stalled in 6 m 19 s" in told
    assert "in about 2 m 16 s" in told
    assert "gpu-oom-kv-pool, given up 15 m ago" in told


def test_slow_ranks_that_have_no_room_are_counted() -> None:
    start = fleet.starting().start
    assert start is not None
    slow = msgspec.structs.replace(start, lagging=tuple(f"TP{number}" for number in range(7)))

    assert "slow: TP0, TP1, TP2, TP3 and 3 more silent" in text(
        page(msgspec.structs.replace(fleet.starting(), start=slow))
    )


def test_what_needs_somebody_comes_first() -> None:
    html = page()
    alarms = html[html.index('class="alarms"') : html.index("</ul>", html.index('class="alarms"'))]

    assert re.findall(r'href="(#[^"]+)"', alarms) == ["#server-draft-7b", "#gpus"]
    assert fleet.REMEDY in alarms
    assert 'class="alarms"' not in document(quiet_control(), full=False)


def quiet_control() -> FakeControl:
    control = fleet.control(fleet.running())
    control.view = GpusView("absent", 0.0, "NVML finds no GPU")
    return control


def test_a_deadline_that_is_near_is_an_alarm() -> None:
    near = page(msgspec.structs.replace(fleet.starting(), deadline=fleet.NOW + 5))
    assert "kimi-k2 is called stalled in 5 s" in text(near)
    assert "kimi-k2 is called stalled" not in text(page())


def test_a_paused_server_that_is_down_and_a_degraded_one_that_serves_are_not_forgotten() -> None:
    paused = FacetView("on", fleet.NOW - 600, "pause asked by alice")
    down = fleet.running(lifecycle=FacetView("stopped", fleet.NOW - 60), maintenance=paused, ready_since=None)
    assert "is down, wanted up and paused: it starts with sglctl resume qwen3-32b" in text(page(down))
    for quiet in (msgspec.structs.replace(down, goal="down"), fleet.running(maintenance=paused)):
        assert "it starts with" not in text(page(quiet))
    degraded = fleet.running(verdict=FacetView("degraded", fleet.NOW - 5, "user text"))
    assert "serves, and is degraded; more tells sglctl why qwen3-32b" in text(page(degraded))
    assert "user text" not in text(page(degraded))


def test_a_start_that_is_overdue_is_called_so_and_no_first_start() -> None:
    """Of one that stands still nothing is foretold, and it is not the first."""
    start = fleet.starting().start
    assert start is not None
    late = msgspec.structs.replace(start, phase="draft-graph", since=fleet.NOW - 600, ranks=())
    told = text(page(msgspec.structs.replace(fleet.starting(), start=late)))
    assert "Ready overdue" in told
    assert "Ready first start" in text(page(msgspec.structs.replace(fleet.starting(), deadlines=(), start=late)))


def test_who_waits_for_its_devices_for_long_is_not_forgotten() -> None:
    """Who has them may be somebody's secret; that somebody has them is not."""
    looking = msgspec.structs.replace(fleet.starting(), turn="", lifecycle=FacetView("reclaiming", fleet.NOW - 3, "x"))
    assert "for its devices and ports: sglctl" not in text(page(looking))
    for changed, told in ({"goal": "up"}, True), ({"goal": "down"}, False), ({"turn": "waits for a"}, False):
        lifecycle = FacetView("reclaiming", fleet.NOW - 40, "GPU 0: held by pid 4711 of bob")
        shown = text(page(msgspec.structs.replace(looking, lifecycle=lifecycle, **changed)))
        assert ("has waited 40 s for its devices and ports: sglctl why kimi-k2 tells who has them" in shown) is told
        assert "bob" not in shown


def test_what_rests_is_not_said_to_be_killed_and_what_exited_is_called_so() -> None:
    """The step at which its end was over is no state of a server that rests."""
    down = fleet.running(lifecycle=FacetView("stopped", fleet.NOW - 60), stop_stage="kill", ready_since=None)
    for goal, ended, word in (("down", None, "stopped"), ("up", fleet.fatal().exit, "exited"), ("up", None, "stopped")):
        told = page(msgspec.structs.replace(down, goal=goal, exit=ended))
        assert f'data-state="{word}"' in told
        assert "being killed" not in text(told)
        assert "for 1 m" in text(told)


def test_a_restart_that_has_not_come_is_not_told_as_done() -> None:
    waiting = msgspec.structs.replace(fleet.starting(), attempt=2, lifecycle=FacetView("backoff", fleet.NOW - 5))
    assert "then restarted" not in text(page(waiting))
    assert "then restarted" in text(page(fleet.starting()))


def test_a_gpu_out_of_use_says_so_beside_whose_it_is() -> None:
    shown = fleet.control()
    view = shown.gpus()
    leased = msgspec.structs.replace(view.gpus[-1], server="kimi-k2")
    shown.view = msgspec.structs.replace(view, gpus=(*view.gpus[:-1], leased))
    assert "GPU 9 quarantined, of kimi-k2" in text(document(shown, full=False))


def test_the_worst_of_a_bad_night_comes_first() -> None:
    html = document(crowd.control(), full=False)
    alarms = html[html.index('class="alarms"') - 4 : html.index("</ul>", html.index('class="alarms"'))]

    assert re.findall(r'<li class="(\w+)">', alarms) == ["bad"] * 4 + ["warning"] * 3
    told = text(alarms)
    assert f"{crowd.LONG} stalled in verify-graph: TP3 still in verify-graph" in told
    assert "embeddings runs and takes no requests (degraded)" in told
    assert "The GPUs have not been seen for 15 m" in told
    assert alarms.count("<code>sglctl ") >= alarms.count('href="#server-'), "each leads to the next command"


def test_a_stalled_attempt_is_called_stalled_while_it_is_ended() -> None:
    told = text(page(crowd.stalled()))

    assert "stalled, keeping evidence for 4 s" in told
    assert "TP3 still in verify-graph." in told


def test_who_waits_for_its_turn_says_for_whom() -> None:
    waits = "waits for a start slot: kimi is starting; next in line, about 6 m"
    waiting = msgspec.structs.replace(
        fleet.starting(), lifecycle=FacetView("reclaiming", fleet.NOW - 90, "from a log"), turn=waits
    )
    told = page(waiting)
    assert "waiting 1 m 30 s for a start slot: kimi is starting; next in line, about 6 m" in text(told)
    assert 'data-state="waiting"' in told
    assert "reclaiming" not in text(told)
    looking = page(msgspec.structs.replace(waiting, turn="", turn_came=fleet.NOW - 2))
    assert "its devices and ports for 2 s" in text(looking), "the wait for its turn is no part of it"
    assert 'data-state="checking"' in looking
    new = msgspec.structs.replace(waiting, attempt=0, start=None, incidents=(), diagnosis=None)
    assert "Its turn to start has not come." in text(page(new))


def test_work_on_a_server_is_shown() -> None:
    paused = fleet.running(maintenance=FacetView("on", fleet.NOW - 600, "pause asked by alice"))
    assert "paused for 10 m" in text(page(paused))
    assert "paused" not in text(page())


def test_the_same_failure_again_and_again_takes_one_row() -> None:
    told = text(page(crowd.stalled()))

    assert told.count("scheduler-hang in verify-graph after 10 m 40 s") == 1
    assert "the same 4 times before, first 57 m 40 s ago (attempt 7)" in told
    assert "the same" not in text(page(fleet.starting())), "two different failures are two rows"


def test_a_server_that_runs_and_cannot_be_used_is_not_called_running() -> None:
    unready = fleet.running(readiness=FacetView("failure", fleet.NOW - 5), verdict=FacetView("stalled", fleet.NOW - 5))

    assert 'data-state="not ready"' in page(unready)
    assert "qwen3-32b stalled" in text(page(unready))
    degraded = msgspec.structs.replace(unready, verdict=FacetView("degraded", fleet.NOW - 5))
    assert "runs and takes no requests (degraded)" in text(page(degraded))
    assert "Ready no" in text(page(degraded))


def test_the_tab_tells_how_many_serve() -> None:
    assert "<title>1/3 serving - SGLang Supervisor</title>" in page()


def test_incidents_tell_cause_remedy_and_what_was_done() -> None:
    told = text(page(fleet.fatal()))

    assert "gpu-oom-kv-pool in memory-pool after 1 m 35 s, 15 m 5 s ago (attempt 4)" in told
    assert f"To do: {fleet.REMEDY}" in told
    assert "exit status 1; no process left after 400 ms; 9 killed; GPU memory back after 1 s; then given up" in told


def test_memory_of_gpus_that_it_does_not_have_is_not_spoken_of() -> None:
    assert "GPU memory back" not in text(page(msgspec.structs.replace(fleet.fatal(), gpus=())))


def test_the_legend_explains_only_what_is_drawn() -> None:
    drawn = "ready, as usual", "called stalled", "pale: the usual start"
    first = msgspec.structs.replace(fleet.starting(), deadline=None, deadlines=())

    assert [words in page(fleet.starting()) for words in drawn] == [True] * 3
    assert [words in page(first) for words in drawn] == [False] * 3


def test_only_what_needs_a_look_is_open() -> None:
    opened = re.findall(r'<details id="server-([^"]+)" class="server" open>', page())

    assert opened == ["kimi-k2", "draft-7b"]


def test_gpus_by_owner() -> None:
    told = text(page())

    assert "134.2 of 151.4 GB" in told
    assert "6.4 GB held by somebody else" in told
    assert "Xid 79: the GPU has fallen off the bus" in told


@pytest.mark.parametrize(
    ("sight", "said"), [("absent", "No GPU on this host."), ("blind", "The driver has not answered for")]
)
def test_gpus_that_cannot_be_seen(sight: str, said: str) -> None:
    control = fleet.control(fleet.running())
    control.view = GpusView(sight, fleet.NOW - 60, "hangs")

    assert said in text(document(control, full=False))


def test_an_empty_configuration_is_said() -> None:
    assert "No server is configured." in text(document(FakeControl(), full=False))


# --- who may see what ------------------------------------------------------------------------------------------------


def test_over_tcp_neither_evidence_nor_reasons_nor_paths_nor_commands() -> None:
    html, whole = page(), page(full=True)

    for secret in (
        "Not enough memory",
        "start asked by uid",
        "/var/lib/sglang-supervisor/evidence",
        "train.py",
        "alice",
    ):
        assert secret not in html
        assert secret in whole
    assert "ssh -L" in html
    assert "ssh -L" not in whole


def test_who_was_given_up_before_a_launch_is_not_called_unstarted() -> None:
    """A missing program, as the checks before a start find it: there is no attempt to tell of."""
    failed = snapshot("kimi", "fatal", attempt=0, start=None, diagnosis=DiagnosisView("launch-failed", "no"))
    html = text(page(failed))
    assert "It is fatal (launch-failed). Why, sglctl why kimi tells on the host." in html
    assert "not been started" not in html
    assert "It has not been started yet." in text(page(snapshot("kimi", "stopped", attempt=0, start=None, exit=None)))


def test_lines_are_shown_while_starting_and_never_once_it_serves() -> None:
    line = "[2025-11-29 02:14:10 TP0] Load weight begin."
    running = fleet.running(start=fleet.starting(line=line).start)

    assert line in page(fleet.starting(line=line))
    assert line not in page(running, full=True)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("server_args=(api_key='sk-12', tp=8)", "server_args=(api_key='***', tp=8)"),
        ("HF_TOKEN=hf_abc --api-key sk-12 --tp 8", "HF_TOKEN=*** --api-key *** --tp 8"),
        ("api_key='sk-12 cut off", "api_key='***"),
        ("max_total_num_tokens=812000", "max_total_num_tokens=812000"),
        ("Load weight begin.", "Load weight begin."),
        ("x" * 1_000_000, "x" * 200),
        ("x" * 195 + " api_key=sk-1234567890", "x" * 195 + " api_"),
    ],
)
def test_lines_are_quoted_without_secrets_and_cut(line: str, shown: str) -> None:
    assert quoted(line) == shown


# --- hostile text ----------------------------------------------------------------------------------------------------


def hostile(text_: str) -> ServerSnapshot:
    """Everything that a log or a configuration can bring in."""
    made = fleet.starting(line=text_)
    assert made.start is not None
    ranks = tuple(msgspec.structs.replace(rank, rank=text_[:20] + rank.rank) for rank in made.start.ranks)
    lagging = (text_, ranks[5].rank)
    start: StartupView = msgspec.structs.replace(made.start, laggard=text_, ranks=ranks, phase=text_, lagging=lagging)
    found = fleet.oom(1).diagnosis
    assert found is not None
    diagnosis = msgspec.structs.replace(found, cause=text_, remedy=text_, evidence=text_)
    incident = msgspec.structs.replace(
        fleet.oom(1), diagnosis=diagnosis, reason=text_, phase=text_, evidence_path=text_
    )
    lifecycle = FacetView("starting", 100.0, text_)
    return msgspec.structs.replace(made, start=start, incidents=(incident,), lifecycle=lifecycle, diagnosis=diagnosis)


ALLOWED = set("html head meta title link script noscript body a p div header h1 h2 h3 h4 span main".split())  # noqa: SIM905
ALLOWED |= set("ul ol li section table caption thead tbody tr th td b time svg rect line text".split())  # noqa: SIM905
ALLOWED |= {"details", "summary", "pre", "code", "footer"}


def assert_harmless(html: str) -> None:
    tags = Reader(html).tags
    assert {name for name, _ in tags} <= ALLOWED
    assert [attributes for name, attributes in tags if name == "script"] == [{"src": "/app.js", "defer": None}]
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcdoc", "action")]
        assert (attributes.get("href") or "/").startswith(("/", "#"))
        assert (attributes.get("src") or "/").startswith("/")


@pytest.mark.parametrize("full", [False, True])
def test_hostile_text_stays_text(full: bool) -> None:
    html = page(hostile(HOSTILE), full=full)

    assert_harmless(html)
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "<script>alert" not in html


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_any_text_stays_text(text_: str) -> None:
    assert_harmless(page(hostile(text_), full=True))


def test_everything_comes_from_here_and_nothing_is_inline() -> None:
    html = page()

    assert re.findall(r"(?:src|href)=\"(?!/|#)", html) == []
    assert "<style" not in html
    assert html.count("<script") == 1
    assert '<script src="/app.js" defer></script>' in html


def test_without_javascript_it_loads_itself_again() -> None:
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in page()


def test_every_heading_level_and_label_is_there() -> None:
    html = page()

    assert html.count("<h1") == 1
    assert '<html lang="en">' in html
    assert html.count('scope="col"') >= 6
    for target in re.findall(r'href="#([^"]+)"', html):
        assert f'id="{target}"' in html


def test_sixty_four_servers_fit() -> None:
    """The changing part of a host that starts everything at once: bounded, since it is sent again and again."""
    assert len(content(fleet.many(64), full=False)) < 64 * 40_000
    assert len(content(fleet.control(snapshot("a", "stopped")), full=False)) < 12_000


def test_a_start_that_only_its_log_calls_ready_says_what_is_missing_and_not_what_a_log_says() -> None:
    start = msgspec.structs.replace(fleet.starting().start, phase="healthy", stage="serving", lagging=())
    unheard = msgspec.structs.replace(
        fleet.starting(), start=start, port=31099, verdict=FacetView("dead", fleet.NOW - 2, "quoted from a log")
    )
    told = text(page(unheard))
    assert "ready by its log for 5 m 8 s, but no probe at port 31099 has succeeded" in told
    assert "quoted from a log" not in told
