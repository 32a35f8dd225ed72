"""Routers before real servers: a stop takes the server out before its signal, and nobody waits for a dead router."""

from pathlib import Path

from bench.site import free_ports
from tests.e2e import api
from tests.e2e.host import Host, until
from tests.e2e.router import configure

RELOAD = ["sh", "-c", "echo reloaded >> $0", "{}"]


def test_servers_start_without_their_router_and_stop_within_its_limit(host: Host) -> None:
    """One that listens to nobody, and an nginx whose file is kept all the same."""
    port = host.fake("kimi", "--enable-metrics")
    file, reloads = host.root / "up.conf", host.root / "reloads"
    reload = [word.format(reloads) for word in RELOAD]
    configure(
        host,
        gone={"url": f"http://127.0.0.1:{free_ports(1)[0]}", "leave_limit": "300ms", "timeout": "2s"},
        lb={"kind": "nginx", "file": str(file), "reload": reload, "upstream": "kimi"},
    )
    host.start()
    assert host.ctl("wait", "kimi", "--timeout", "60s").returncode == 0
    until(lambda: file.exists() and f"server 127.0.0.1:{port};" in file.read_text(), 20, "it is in the file")
    assert "router gone unreachable" in host.ctl("status", "kimi").stdout
    assert "router gone: unreachable (nobody listens)." in host.why("kimi")
    routers = host.ctl("routers")
    assert routers.returncode == 1
    assert routers.stdout.splitlines() == [
        "gone (gateway): unreachable, 0 servers: nobody listens",
        "lb (nginx): reachable, 1 server",
    ]

    assert host.ctl("drain", "--grace", "20s", "kimi").returncode == 0
    assert f"127.0.0.1:{port}" not in file.read_text()
    assert reloads.read_text() == "reloaded\n" * 2
    story = [(one["facet"], one["after"]) for one in _events(host, "kimi")]
    assert story.index(("router lb", "out")) < story.index(("lifecycle", "stopping"))
    assert host.show("kimi")["stop"]["kill_s"] is not None, "what the leader left is swept"
    assert host.show("kimi")["routers"][0]["state"] == "unreachable"


def _events(host: Host, name: str) -> list[dict[str, str]]:
    return list(api.get(host.socket, f"/v1/events?since=0&limit=1000&server={name}")["events"])


def test_a_router_of_an_unknown_server_is_refused_at_the_start(host: Host) -> None:
    host.fake("kimi")
    configure(host, front={"url": "http://127.0.0.1:1", "servers": ["kimmi"]})
    host.write_config()
    refused = host.refused()
    assert refused.returncode == 2
    path = Path(host.root, "conf.d", "routers.toml")
    assert refused.stderr == (
        f'cannot use {path}: router.front.servers[0]: there is no server "kimmi", did you mean "kimi"?\n'
    )
