"""The real router before fake engines under load: rolling restarts, drains, and a router that comes and goes."""

from typing import Any

import pytest

from tests.e2e import api
from tests.e2e.host import Host, until
from tests.e2e.load import Load
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


@pytest.mark.parametrize("older", [False, True], ids=["0.3.2", "0.1.9"])
@pytest.mark.slow
def test_a_rolling_restart_under_load_fails_no_request(
    host: Host, pair: dict[str, str], older: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with RealRouter(host, older=older) as router:
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
            print(f"\nrouter {router.python.parts[-3]}: {load.answered} requests, {len(load.failures)} failed")
        assert load.failures == []
        for name in pair:
            assert (host.show(name)["attempt"], host.show(name)["healthy"]) == (2, True)
            assert host.show(name)["pid"] != pids[name]
            assert not host.collisions(name)
        assert router.workers() == set(pair.values())
