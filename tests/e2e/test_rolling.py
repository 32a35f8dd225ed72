"""The real router before fake engines under load: rolling restarts, drains, and a router that comes and goes."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.peers import GATEWAY, OLDER_ROUTER, ROUTER
from tests.e2e import api
from tests.e2e.host import Host, until
from tests.e2e.load import Load
from tests.e2e.nginx import RealNginx
from tests.e2e.router import RealRouter, configure

TOKENS = 6000  # a third of a second at the host's speed
ENGINE = ("--enable-metrics", "--dialect", "0.5.23")


@pytest.fixture
def pair(host: Host) -> dict[str, str]:
    """Two servers; their addresses."""
    return {name: f"http://127.0.0.1:{host.fake(name, *ENGINE, sole=True)}" for name in ("a", "b")}


def gateway(router: RealRouter, **keys: Any) -> dict[str, Any]:
    return {"url": router.url, "period": "1s", "timeout": "5s", **keys}


def serving(host: Host, router: RealRouter, urls: dict[str, str]) -> None:
    """Both are healthy and have joined."""
    for name in urls:
        assert host.ctl("wait", name, "--timeout", "60s").returncode == 0, host.said()
    until(lambda: router.workers() >= set(urls.values()), 30, "the router has both")


def rolled(host: Host) -> Any:
    return api.get(host.socket, "/v1/rolling")["rolling"]


@pytest.mark.parametrize("release", [ROUTER, GATEWAY, OLDER_ROUTER])
@pytest.mark.slow
def test_a_rolling_restart_under_load_fails_no_request(
    host: Host, pair: dict[str, str], release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with RealRouter(host, release) as router:
        configure(host, front=gateway(router))
        host.start()
        serving(host, router, pair)
        pids = {name: host.show(name)["pid"] for name in pair}
        with Load(router.url, tokens=TOKENS) as load:
            until(lambda: load.answered > 20, 30, "requests are answered")
            done = host.ctl("restart", "--rolling", "a", "b", "--grace", "30s", limit_s=120)
            after = load.answered
            until(lambda: load.answered > after + 20, 30, "requests are answered afterwards")
        assert done.returncode == 0, done.stdout + done.stderr + host.said()[-4000:]
        with capsys.disabled():
            print(f"\nrouter {release}: {load.answered} requests, {len(load.failures)} failed")
        assert load.failures == []
        for name in pair:
            assert (host.show(name)["attempt"], host.show(name)["healthy"]) == (2, True)
            assert host.show(name)["pid"] != pids[name]
            assert not host.collisions(name)
        assert router.workers() == set(pair.values())


@pytest.mark.slow
def test_a_table_of_another_name_fails_no_request_and_one_that_is_gone_lets_go(
    host: Host, pair: dict[str, str]
) -> None:
    with RealRouter(host) as router:
        configure(host, front=gateway(router))
        host.start()
        serving(host, router, pair)
        with Load(router.url, tokens=TOKENS) as load:
            until(lambda: load.answered > 20, 30, "requests are answered")
            configure(host, lb=gateway(router, leave_limit="20s"))
            assert host.ctl("update").stdout == "router front: removed\nrouter lb: added\n"
            after = load.answered
            until(lambda: load.answered > after + 20, 30, "requests are answered afterwards")
        assert load.failures == []
        assert router.workers() == set(pair.values())
        configure(host)
        assert host.ctl("update").stdout == "router lb: removed\n"
        assert router.workers() == set()
        assert [host.show(name)["attempt"] for name in pair] == [1, 1]


@pytest.mark.slow
def test_a_router_that_is_killed_has_its_servers_back_and_keeps_those_of_others(
    host: Host, pair: dict[str, str]
) -> None:
    foreign = f"http://127.0.0.1:{host.fake('foreign', *ENGINE)}"
    with RealRouter(host) as router:
        configure(host, front=gateway(router, servers=["a", "b"]))
        host.start()
        serving(host, router, pair)
        assert router.workers() == set(pair.values())
        router.stop()
        host.wait_for("a", "router front", "unreachable")
        assert "router front unreachable" in host.ctl("status", "a").stdout
        assert "nobody listens" in host.ctl("routers").stdout
        router.start()
        until(lambda: router.workers() >= set(pair.values()), 60, "the router has both again")
        assert host.ctl("wait", "foreign", "--timeout", "60s").returncode == 0
        router.add(foreign)
        until(lambda: foreign in router.workers(), 30, "somebody else's worker has joined")

        assert host.ctl("stop", "a").returncode == 0
        assert router.workers() == {pair["b"], foreign}
        os.kill(host.show("b")["pid"], signal.SIGKILL)
        host.wait_for("b", "router front", "out")
        until(lambda: router.workers() == {pair["b"], foreign}, 60, "the server has joined again after its restart")


@pytest.mark.slow
def test_a_drain_leaves_the_router_and_waits_for_what_runs(host: Host, pair: dict[str, str]) -> None:
    with RealRouter(host) as router:
        configure(host, front=gateway(router))
        host.start()
        serving(host, router, pair)
        with Load(router.url, tokens=30_000) as load:  # two seconds each
            until(lambda: host.show("a")["verdict"]["value"] == "busy" or load.answered > 6, 60, "requests run")
            since = api.get(host.socket, "/v1/events")["last"]
            assert host.ctl("drain", "--no-wait", "--grace", "60s", "a").returncode == 0
            host.wait_for("a", "router front", "out", since=since)
            assert router.workers() == {pair["b"]}
            seen = []
            until(lambda: seen.append(host.show("a")) or seen[-1]["state"] == "STOPPED", 60, "the drain is over")  # type: ignore[func-returns-value]
            told = [one["description"] for one in seen if one["drain"] and one["drain"]["requests"]]
        assert any("requests running, " in text or "request running, " in text for text in told), told
        assert load.failures == []
        assert host.show("a")["stop"]["kill_s"] is None or host.show("a")["stop"]["exit_s"] is not None


@pytest.mark.slow
def test_it_stops_at_the_first_failure_and_leaves_the_others_alone(host: Host) -> None:
    flag = host.root / "broken"
    port = host.fake("a", *ENGINE)
    engine = host.servers["a"]["command"]
    host.servers["a"]["command"] = ["sh", "-c", f'test -e {flag} && exit 3; exec "$@"', "sh", *engine]
    host.servers["a"]["port"] = port
    host.fake("b", *ENGINE)
    host.fake("c", *ENGINE, autostart=False)
    host.start()
    assert host.ctl("wait", "a", "b", "--timeout", "60s").returncode == 0
    pid = host.show("b")["pid"]

    assert host.ctl("restart", "--rolling", "c", "b").stdout.splitlines()[0] == "c: skipped (it is not wanted up)"
    assert host.show("b")["pid"] != pid
    pid = host.show("b")["pid"]
    flag.touch()
    done = host.ctl("restart", "--rolling", "a", "b")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == ["a: ERROR (its start failed: exited with status 3)", "b: left alone"]
    assert "failed a, untouched b" in done.stderr
    assert host.show("b")["pid"] == pid
    flag.unlink()
    host.ctl("stop", "a")


@pytest.mark.slow
def test_a_server_that_does_not_come_back_with_its_new_configuration_gets_the_old_one_again(host: Host) -> None:
    for name in ("a", "b"):
        host.fake(name, *ENGINE)
    host.start()
    assert host.ctl("wait", "a", "b", "--timeout", "60s").returncode == 0
    pid = host.show("b")["pid"]
    engine = host.servers["a"]["command"]
    host.servers["a"]["command"] = [*engine, "--scenario", "crash:phase=weights,cause=gpu-oom-weights"]
    host.servers["b"]["environment"] = {"NEW": "1"}
    host.write_config()

    done = host.ctl("update", "--rolling")
    assert done.returncode == 1, done.stdout
    assert done.stdout.splitlines()[1].startswith("a: ERROR (its start failed: gpu-oom-weights: ")
    assert "rolled-back a, untouched b" in done.stderr
    assert done.stderr.endswith("; it runs with its old configuration again\n")
    assert (host.show("a")["state"], host.show("b")["pid"]) == ("RUNNING", pid)
    story = json.loads(host.ctl("why", "a", "--attempt", "2", "--json").stdout)
    assert (Path(story["evidence_path"]) / "manifest.json").is_file(), story
    assert "a: changed (restart needed" in host.ctl("reread").stdout

    host.servers["a"]["command"] = [*engine, "--seed", "7"]
    host.write_config()
    done = host.ctl("update", "--rolling")
    assert (done.returncode, done.stdout.count("serves again")) == (0, 2), done.stdout + done.stderr
    assert host.ctl("reread").stdout == "No config updates to processes\n"


@pytest.mark.slow
def test_a_pair_that_lives_together_goes_back_together(host: Host) -> None:
    """The change of both comes in by one restart, which fails by the first one: neither keeps half of it."""
    for name in ("a", "b"):
        host.fake(name, *ENGINE)
    host.groups["pair"] = {"members": ["a", "b"], "order": "listed", "together": True}
    host.start()
    assert host.ctl("wait", "a", "b", "--timeout", "60s").returncode == 0
    old = list(host.servers["a"]["command"])
    host.servers["a"]["command"] = [*old, "--scenario", "crash:phase=weights,cause=gpu-oom-weights"]
    host.servers["b"]["environment"] = {"NEW": "1"}
    host.write_config()

    done = host.ctl("update", "--rolling", limit_s=120)

    assert done.returncode == 1, done.stdout
    assert done.stderr.endswith("; it runs with its old configuration again\n")
    assert host.ctl("wait", "a", "b", "--timeout", "60s").returncode == 0
    pending = host.ctl("reread").stdout
    assert "a: changed (restart needed" in pending
    assert "b: changed (restart needed" in pending


@pytest.mark.slow
def test_a_rolling_restart_goes_on_after_the_death_of_the_daemon_and_ends_when_cancelled(host: Host) -> None:
    names = ("a", "b", "c")
    for name in names:
        host.fake(name, *ENGINE, sole=True)
    daemon = host.start()
    assert host.ctl("wait", *names, "--timeout", "60s").returncode == 0
    client = subprocess.Popen(
        host.client("restart", "--rolling", *names),
        env=host.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    host.wait_for("a", "rolling", "under-way")
    client.send_signal(signal.SIGINT)
    said = client.communicate(timeout=20)[1].decode()
    assert (client.returncode, "the daemon goes on" in said) == (130, True)
    daemon.kill()
    host.start()
    until(lambda: rolled(host)["members"][1]["state"] != "waiting", 60, "it is b's turn")
    assert host.ctl("rolling", "--cancel").returncode == 0
    until(lambda: rolled(host)["state"] != "running", 60, "it is over")
    assert rolled(host)["state"] == "cancelled"
    assert [one["state"] for one in rolled(host)["members"]] == ["done", "done", "untouched"]
    assert [host.show(name)["attempt"] for name in names] == [2, 2, 1]
    assert not any(host.collisions(name) for name in names)


@pytest.mark.slow
def test_a_start_that_waits_is_told_everywhere_and_left_when_the_rolling_is_cancelled(host: Host) -> None:
    port = host.fake("a", *ENGINE)
    host.fake("b", *ENGINE)
    with socket.create_server(("127.0.0.1", port)):
        host.start()
        assert host.ctl("wait", "b", "--timeout", "60s").returncode == 0
        host.wait_for("a", "start", "waiting")
        pid = host.show("b")["pid"]
        follower = subprocess.Popen(
            host.client("restart", "--rolling", "a", "b"), env=host.environment, stdout=subprocess.PIPE, text=True
        )
        until(lambda: rolled(host) and rolled(host)["members"][0]["waits"], 60, "what it waits for is told")
        reason = rolled(host)["members"][0]["waits"]
        assert reason.startswith(f"waits: port {port} is ")
        assert f"a: under-way, its start {reason}" in host.ctl("rolling").stdout
        in_the_way = reason.removeprefix("waits: ").partition(";")[0]
        assert in_the_way in host.ctl("status", "a").stdout
        assert in_the_way in host.why("a")

        assert host.ctl("rolling", "--cancel").returncode == 0
        said, _ = follower.communicate(timeout=60)
        assert (follower.returncode, rolled(host)["state"]) == (1, "cancelled")
        assert said.splitlines()[-3:] == [
            f"a: its start {reason}",
            f"a: not waited for (its start {reason})",
            "b: left alone",
        ]
        assert (host.show("b")["pid"], host.show("a")["goal"]) == (pid, "up")
    assert host.ctl("wait", "a", "--timeout", "60s").returncode == 0, "it starts as soon as it can"


@pytest.mark.slow
def test_a_rolling_restart_behind_a_real_nginx_fails_no_request(
    host: Host, pair: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with RealNginx(host) as nginx:
        configure(
            host, lb={"kind": "nginx", "file": str(nginx.upstream), "upstream": "engines", "reload": nginx.reload}
        )
        host.start()
        for name in pair:
            assert host.ctl("wait", name, "--timeout", "60s").returncode == 0, host.said()
        until(lambda: nginx.upstream.read_text().count("server 127.0.0.1:") == 2, 30, "both are in the file")
        with Load(nginx.url, tokens=TOKENS) as load:
            until(lambda: load.answered > 20, 30, "requests are answered")
            done = host.ctl("restart", "--rolling", "a", "b", "--grace", "30s", limit_s=120)
            after = load.answered
            until(lambda: load.answered > after + 20, 30, "requests are answered afterwards")
        assert done.returncode == 0, done.stdout + done.stderr
        with capsys.disabled():
            print(f"\nnginx: {load.answered} requests, {len(load.failures)} failed")
        assert load.failures == []
        assert [host.show(name)["attempt"] for name in pair] == [2, 2]
