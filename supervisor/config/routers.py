"""What is wrong with the tables of those who hand requests out; and which servers each of them has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.config.groups import GROUP_MARK, members
from supervisor.config.model import Config, RouterConfig, RouterKind
from supervisor.config.names import name_problem, there_is_no
from supervisor.config.reader import Problems, join, shown
from supervisor.config.web import header_problems, is_address

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+", re.ASCII)
_UPSTREAM = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


def routed(config: Config, router: RouterConfig) -> tuple[str, ...]:
    """The servers that a router of this configuration is told of, all of them when it names none."""
    found: dict[str, None] = {}
    for name in router.servers:
        group = name.removeprefix(GROUP_MARK)
        if name.startswith(GROUP_MARK) and group in config.groups:
            found |= dict.fromkeys(members(config, group))
        elif name in config.servers:
            found[name] = None
    return tuple(found) if router.servers else tuple(config.servers)


def check_routers(config: Config) -> Problems:
    """What is wrong with each of them, and files that two of them write."""
    problems: Problems = []
    files: dict[str, str] = {}
    for name, router in config.routers.items():
        path = join("router", name)
        problems += [(f"{path}.{key}" if key else path, text) for key, text in _problems(config, router)]
        if router.file and files.setdefault(router.file, name) != name:
            problems.append((f"{path}.file", f"is already written by router {files[router.file]}"))
    return problems


def _problems(config: Config, router: RouterConfig) -> Iterator[tuple[str, str]]:
    if text := name_problem(router.name):
        yield "", text
    for index, name in enumerate(router.servers):
        known = config.groups if name.startswith(GROUP_MARK) else config.servers
        if name.removeprefix(GROUP_MARK) not in known:
            yield f"servers[{index}]", _unknown(name, config)
    if router.host and not _HOST.fullmatch(router.host):
        yield "host", f"expected a name or an address of this host, got {shown(router.host)}"
    for key, seconds in (
        ("period", router.period_s),
        ("timeout", router.timeout_s),
        ("leave_limit", router.leave_limit_s),
    ):
        if seconds <= 0:
            yield key, "expected more than no time"
    yield from _place(router)
    yield from header_problems("headers", router.headers)


def _unknown(name: str, config: Config) -> str:
    what = "group" if name.startswith(GROUP_MARK) else "server"
    return there_is_no(what, name, [*config.servers, *(f"{GROUP_MARK}{one}" for one in config.groups)])


def _place(router: RouterConfig) -> Iterator[tuple[str, str]]:
    """Where the router is: an address for those that are asked, a file for nginx."""
    if router.kind is not RouterKind.NGINX:
        if not is_address(router.url):
            yield "url", 'expected an address such as "http://127.0.0.1:30000"'  # not shown: it may hold a secret
        if router.file:
            yield "file", f"is for routers of kind nginx; this one is of kind {router.kind}"
        return
    if router.url:
        yield "url", "nginx has none: it reads the file"
    if not router.file.startswith("/") or "\0" in router.file:
        yield "file", f'expected a path that begins with "/", got {shown(router.file)}'
    if not _UPSTREAM.fullmatch(router.upstream_name):
        yield "upstream", f"expected a name that nginx takes, got {shown(router.upstream_name)}"
    if not router.reload or not router.reload[0] or any("\0" in word for word in router.reload):
        yield "reload", 'expected a command such as ["nginx", "-s", "reload"]'
