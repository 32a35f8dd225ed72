"""A host of several servers: who starts when, who ends first, and what one's failure means for the others."""

from datetime import datetime
from typing import Any

import pytest

from tests.e2e.gpus import GpuHost
from tests.e2e.host import Host, until
from tests.nvml import FakeNvml

CRASH = "crash:phase=weights,after=50%"


def order(host: Host, state: str, *names: str) -> list[str]:
    """The servers in the order in which they got into the state for the last time."""
    moments = {name: [one for one in host.events(name, "lifecycle") if one["after"] == state] for name in names}
    return sorted((name for name in names if moments[name]), key=lambda name: int(moments[name][-1]["id"]))


def story(host: Host, *names: str) -> list[dict[str, Any]]:
    events = [event for name in names for event in host.events(name, "lifecycle")]
    return sorted(events, key=lambda event: int(event["id"]))


def most_at_once(events: list[dict[str, Any]]) -> int:
    starting: set[str] = set()
    most = 0
    for event in events:
        (starting.add if event["after"] == "starting" else starting.discard)(event["server"])
        most = max(most, len(starting))
    return most


def timeline(events: list[dict[str, Any]], names: list[str]) -> str:
    """One row a server: `.` waits, `#` starts, `=` runs."""
    moments = [datetime.fromisoformat(event["at"]).timestamp() for event in events]
    begun, length_s = moments[0], moments[-1] - moments[0]
    marks = {"reclaiming": ".", "starting": "#", "running": "="}
    rows = []
    for name in names:
        row = [" "] * 72
        for event, at in zip(events, moments, strict=True):
            if event["server"] == name:
                column = min(71, int((at - begun) / length_s * 71))
                row[column:] = [marks[event["after"]]] * (72 - column)
        rows.append(f"{name:>6} {''.join(row)}")
    return "\n".join([f"{length_s:.1f} s in all; . waits for a slot, # starts, = runs", *rows])


@pytest.mark.slow
def test_a_boot_of_eight_servers_with_two_slots(host: Host) -> None:
    """`pytest -s` shows the timeline."""
    names = [f"s{number}" for number in range(8)]
    for number, name in enumerate(names):
        host.fake(name, priority=5 if number == 7 else 0)
    host.settings["start_slots"] = 2
    host.start()
    for name in names:
        host.wait_for(name, "lifecycle", "running", limit_s=60.0)

    events = story(host, *names)
    print(f"\n{timeline(events, names)}")
    assert most_at_once(events) == 2
    begun = order(host, "starting", *names)
    assert set(begun[:2]) == {"s0", "s1"}, "those that came first"
    turns = ["s0", "s1", "s7", "s2", "s3", "s4", "s5", "s6"]  # then by priority, then as they asked
    late = {
        name: begun.index(name) - turns.index(name) for name in names if abs(begun.index(name) - turns.index(name)) > 1
    }
    assert late == {}, "of two that have both slots either may begin first, and nobody passes anybody else"


def test_a_server_waits_for_a_slot_and_says_why(host: Host) -> None:
    host.fake("kimi", speed=20)
    host.fake("glm")
    host.settings["start_slots"] = 1
    host.start()
    host.wait_for("kimi", "lifecycle", "starting")  # it has the slot from before its spawn on
    waits = " for a start slot: kimi is starting; next in line"
    until(lambda: waits in host.ctl("status", "glm").stdout, 10.0, "the reason in status")
    assert waits in host.why("glm")

    assert host.ctl("stop", "kimi").returncode == 0
    host.wait_for("glm", "lifecycle", "running")
    assert order(host, "starting", "kimi", "glm") == ["kimi", "glm"]


@pytest.mark.slow
def test_a_server_starts_after_those_it_requires_and_ends_before_them(host: Host) -> None:
    host.fake("proxy", requires=["kimi"])
    host.fake("kimi")
    host.start()
    host.wait_for("proxy", "lifecycle", "running")
    events = story(host, "kimi", "proxy")
    told = [(event["server"], event["after"]) for event in events if event["after"] in ("starting", "running")]
    assert told == [("kimi", "starting"), ("kimi", "running"), ("proxy", "starting"), ("proxy", "running")]

    assert host.ctl("stop", "kimi").stdout == "proxy: stopping, too: it requires kimi\nkimi: stopped\n"
    assert order(host, "stopped", "kimi", "proxy") == ["proxy", "kimi"]
    assert "which it requires" in host.events("proxy", "goal")[-1]["reason"]

    assert host.ctl("start", "proxy").returncode == 0
    until(lambda: "nobody wants up" in host.ctl("status", "proxy").stdout, 10.0, "whom it waits for")
    assert host.ctl("start", "--wait", "kimi", "proxy").returncode == 0


@pytest.mark.slow
def test_a_requirement_that_failed_for_good_is_a_reason_and_no_loop(host: Host) -> None:
    """proxy is given up with it, waits for nothing, and comes by itself when kimi can be had again."""
    once = f"once={host.root}/once"
    host.fake("kimi", "--scenario", f"{CRASH},{once}", restart={"budget": 0})
    host.fake("proxy", requires=["kimi"])
    host.start()
    host.wait_for("kimi", "lifecycle", "fatal")
    fatal = host.wait_for("proxy", "lifecycle", "fatal")
    assert fatal["reason"].startswith("not started: it requires kimi, which is fatal: ")
    assert host.ctl("wait", "proxy").returncode == 1
    assert host.processes("proxy") == {}

    assert host.ctl("start", "kimi").returncode == 0
    host.wait_for("proxy", "lifecycle", "running")
    assert order(host, "running", "kimi", "proxy") == ["kimi", "proxy"]


@pytest.mark.slow
def test_members_that_live_together_start_again_together(host: Host) -> None:
    """decode dies while it serves: prefill is ended too, and they come back in their order."""
    for name in ("prefill", "decode"):
        host.fake(name)
    host.groups["pair"] = {"members": ["prefill", "decode"], "order": "listed", "together": True}
    host.start()
    host.wait_for("decode", "lifecycle", "running")
    assert order(host, "running", "prefill", "decode") == ["prefill", "decode"]
    before = host.events("decode", "lifecycle")[-1]["id"]

    assert host.ctl("signal", "KILL", "decode").returncode == 0
    host.wait_for("prefill", "lifecycle", "stopping", since=before)
    host.wait_for("prefill", "lifecycle", "running", since=before)
    host.wait_for("decode", "lifecycle", "running", since=before)
    again = [event for event in story(host, "prefill", "decode") if event["id"] > before]
    told = [(event["server"], event["after"]) for event in again if event["after"] in ("starting", "running")]
    assert told == [("prefill", "starting"), ("prefill", "running"), ("decode", "starting"), ("decode", "running")]
    ended = [event["id"] for event in again if event["after"] == "reclaiming" and event["before"] == "stopping"]
    assert max(ended) < min(event["id"] for event in again if event["after"] == "starting"), "first all end"
    remaining = {host.show(name)["budget_remaining"] for name in ("prefill", "decode")}
    assert remaining == {4}, "one budget: the failure counts once, for both"


@pytest.mark.slow
def test_an_update_of_one_restarts_those_that_live_together_once(host: Host) -> None:
    """Both have changed, one is named: one restart for both, the last one ends first."""
    for name in ("prefill", "decode", "other"):
        host.fake(name)
    host.groups["pair"] = {"members": ["prefill", "decode"], "order": "listed", "together": True}
    host.start()
    host.wait_for("decode", "lifecycle", "running")
    host.wait_for("other", "lifecycle", "running")
    before = host.events("decode", "lifecycle")[-1]["id"]

    for name in ("prefill", "decode"):
        host.servers[name]["environment"] = {"A": "1"}
    host.write_config()
    done = host.ctl("update", "prefill")
    told = ("stopped", "updated process group", "restarted")
    lines = "".join(f"{name}: {line}\n" for name in ("prefill", "decode") for line in told)
    assert (done.returncode, done.stdout) == (0, lines)

    host.wait_for("prefill", "lifecycle", "running", since=before)
    host.wait_for("decode", "lifecycle", "running", since=before)
    again = [event for event in story(host, "prefill", "decode", "other") if event["id"] > before]
    told = [(one["server"], one["after"]) for one in again if one["after"] in ("stopping", "starting", "running")]
    assert told == [
        *(("decode", "stopping"), ("prefill", "stopping")),
        *(("prefill", "starting"), ("prefill", "running"), ("decode", "starting"), ("decode", "running")),
    ]
    assert host.ctl("update").stdout.startswith("No config updates"), "nothing is left to do"


@pytest.mark.slow
def test_a_group_is_stopped_in_reverse_and_restarted_in_order(host: Host) -> None:
    for name in ("a", "b"):
        host.fake(name)
    host.groups["line"] = {"members": ["a", "b"], "order": "listed"}
    host.start()
    host.wait_for("b", "lifecycle", "running")

    assert host.ctl("restart", "--wait", "g:line").returncode == 0
    assert host.ctl("status", "g:line").stdout.count("RUNNING") == 2
    assert order(host, "running", "a", "b") == ["a", "b"]
    assert order(host, "starting", "a", "b") == ["a", "b"]

    assert host.ctl("stop", "g:line").stdout == "b: stopped\na: stopped\n"
    assert order(host, "stopping", "a", "b") == ["b", "a"]


@pytest.mark.slow
def test_a_stop_that_waits_for_others_outlives_the_daemon(host: Host) -> None:
    """kimi is to stop after proxy, which takes its time; the daemon dies meanwhile, and the next one carries it out."""
    host.fake("kimi")
    host.fake("proxy", "--scenario", "ignore-term", requires=["kimi"], stop={"grace": "4s"})
    daemon = host.start()
    host.wait_for("proxy", "lifecycle", "running")
    assert host.ctl("stop", "--no-wait", "kimi").returncode == 0
    status = host.ctl("status", "kimi").stdout
    assert "RUNNING" in status
    assert "to be stopped after proxy" in status

    daemon.kill()
    host.start()
    host.wait_for("kimi", "lifecycle", "stopped", limit_s=30.0)
    assert order(host, "stopped", "kimi", "proxy") == ["proxy", "kimi"]


@pytest.mark.slow
def test_the_order_can_be_changed_while_servers_wait(host: Host) -> None:
    """An update of one that waits does not wait for its turn itself."""
    host.fake("kimi", speed=10)
    for name in ("glm", "qwen"):
        host.fake(name)
    host.settings["start_slots"] = 1
    host.start()
    host.wait_for("kimi", "lifecycle", "starting")
    until(lambda: "second in line" in host.ctl("status", "qwen").stdout, 10.0, "the line")

    host.servers["qwen"]["priority"] = 5
    host.write_config()
    updated = host.ctl("update", limit_s=20.0)
    assert (updated.returncode, updated.stdout) == (0, "qwen: updated process group\n")
    until(lambda: "next in line" in host.ctl("status", "qwen").stdout, 10.0, "the new line")
    assert host.ctl("stop", "kimi").returncode == 0
    host.wait_for("glm", "lifecycle", "running")
    assert order(host, "starting", "kimi", "glm", "qwen") == ["kimi", "qwen", "glm"]


@pytest.mark.slow
def test_who_waits_for_devices_has_no_slot_and_who_waits_for_a_slot_has_no_device(fake_nvml: FakeNvml) -> None:
    """Three servers of one GPU each on two, with one slot: c waits for devices, and is in nobody's way."""
    fake_nvml.set_count(2)
    fake_nvml.write()
    with GpuHost(fake_nvml) as host:
        for name in "abc":
            host.engine(name, gpus={"count": 1}, autostart=name != "c")
        host.settings["start_slots"] = 1
        host.start()
        for name in "ab":
            host.wait_for(name, "lifecycle", "running")
        assert host.ctl("start", "c").returncode == 0
        host.wait_reason("c", "1 GPUs wanted, 0 to be had")

        before = host.events("b", "lifecycle")[-1]["id"]
        assert host.ctl("restart", "b").returncode == 0
        host.wait_for("b", "lifecycle", "running", since=before)
        assert host.ctl("stop", "a").returncode == 0
        host.wait_for("c", "lifecycle", "running")
        assert most_at_once(story(host, *"abc")) == 1
        assert [len(host.show(name)["gpus"]) for name in "abc"] == [0, 1, 1]


def test_a_cycle_is_refused_as_a_path(host: Host) -> None:
    host.fake("a", after=["b"])
    host.fake("b", requires=["a"])
    host.write_config()
    refused = host.refused()
    assert refused.returncode == 2
    assert refused.stderr == f"cannot use {host.config}: server.a.after: nobody can be first of a → b → a\n"
