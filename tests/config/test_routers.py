"""Routers are read strictly: unknown servers, addresses, files and what one kind has and another has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.config import Config, KeyChange, RouterChange, RouterKind, differences, routed

Loaded = Callable[..., Config]
Problems = Callable[..., tuple[str, ...]]

SERVERS = '[server.a]\ncommand = ["e"]\n[server.b]\ncommand = ["e"]\n[group.pair]\nmembers = ["b", "a"]\n'


def router(text: str) -> str:
    return f"{SERVERS}[router.front]\n{text}\n"


def test_a_gateway_has_an_address_and_all_servers_unless_it_names_some(loaded: Loaded) -> None:
    config = loaded(router('url = "http://127.0.0.1:30000"\nleave_limit = "30s"'))
    front = config.routers["front"]
    assert (front.name, front.kind, front.leave_limit_s) == ("front", RouterKind.GATEWAY, 30.0)
    assert routed(config, front) == ("a", "b")


def test_groups_stand_for_their_members(loaded: Loaded) -> None:
    config = loaded(router('url = "http://r"\nservers = ["g:pair", "a"]'))
    assert routed(config, config.routers["front"]) == ("b", "a")


def test_nginx_has_a_file_a_name_and_a_command(loaded: Loaded, tmp_path: Path) -> None:
    front = loaded(router(f'kind = "nginx"\nfile = "{tmp_path}/up.conf"')).routers["front"]
    assert (front.upstream_name, front.reload) == ("front", ("nginx", "-s", "reload"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", 'router.front.url: expected an address such as "http://127.0.0.1:30000"'),
        ('url = "127.0.0.1:1"', 'router.front.url: expected an address such as "http://127.0.0.1:30000"'),
        ('url = "http://r"\nservers = ["c"]', 'router.front.servers[0]: there is no server "c"'),
        ('url = "http://r"\nservers = ["a", "g:pear"]', 'router.front.servers[1]: there is no group "g:pear", did you mean "g:pair"?'),
        ('url = "http://r"\nkind = "haproxy"', 'router.front.kind: expected one of "gateway", "webhook", "nginx", got "haproxy"'),
        ('url = "http://r"\nfile = "/x"', "router.front.file: is for routers of kind nginx; this one is of kind gateway"),
        ('url = "http://r"\nperiod = "0s"', "router.front.period: expected more than no time"),
        ('url = "http://r"\nhost = "a b"', 'router.front.host: expected a name or an address of this host, got "a b"'),
        ('url = "http://r"\nheaders = {"a b" = "c"}', 'router.front.headers."a b": expected a header\'s name and a value of printable ASCII characters'),
        ('url = "http://r"\nservres = []', 'router.front.servres: unknown key, did you mean "servers"?'),
        ('kind = "nginx"', 'router.front.file: expected a path that begins with "/", got ""'),
        ('kind = "nginx"\nfile = "/x"\nreload = []', 'router.front.reload: expected a command such as ["nginx", "-s", "reload"]'),
        ('kind = "nginx"\nfile = "/x"\nupstream = "a;b"', 'router.front.upstream: expected a name that nginx takes, got "a;b"'),
        ('kind = "nginx"\nfile = "/x"\nurl = "http://r"', "router.front.url: nginx has none: it reads the file"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_with_its_key(problems: Problems, text: str, problem: str) -> None:
    assert problems(router(text)) == (problem,)


def test_two_routers_do_not_write_one_file(problems: Problems) -> None:
    text = '[router.{}]\nkind = "nginx"\nfile = "/x"\n'
    assert problems(SERVERS + text.format("one") + text.format("two")) == (
        "router.two.file: is already written by router one",
    )


def test_a_router_in_two_files_and_one_that_is_no_table(problems: Problems, tmp_path: Path) -> None:
    (problem,) = problems(router('url = "http://r"'), more='[router.front]\nurl = "http://s"\n')
    where = f"cannot use {tmp_path}/conf.d/more.toml: router.front"
    assert problem == f"{where}: is already defined in {tmp_path}/supervisor.toml"
    assert problems(f"{SERVERS}[[router]]\n") == ("router: expected tables such as [router.NAME]",)


def test_a_change_is_told_key_by_key_without_what_may_be_secret(loaded: Loaded) -> None:
    secret = 'kind = "webhook"\nurl = "https://u:p@host/T0/SECRET"\nheaders = {X = "SECRET"}'
    before, after = loaded(SERVERS), loaded(router(secret))
    found = differences(before, after)
    assert found.servers == ()
    assert (found.daemon, found.routers) == ((), (RouterChange("front", "available"),))
    assert differences(after, before).routers == (RouterChange("front", "disappeared"),)
    assert differences(after, after).routers == ()
    other = loaded(router('url = "http://u:p@host/T1/SECRET"\nperiod = "3s"'))
    (change,) = differences(after, other).routers
    assert change == RouterChange(
        "front",
        "changed",
        (
            KeyChange("headers", "***", None, "live"),
            KeyChange("kind", "webhook", None, "live"),
            KeyChange("period", None, 3.0, "live"),
            KeyChange("url", "https://host", "http://host", "live"),
        ),
    )
