"""Groups and dependencies are written out, and what cannot be is told with file, key and a way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.config import Config, GroupOrder
from supervisor.config.groups import Ties, members, ties

Loaded = Callable[..., Config]
Problems = Callable[..., tuple[str, ...]]


def servers(**keys: str) -> str:
    """One table for each name, with its keys."""
    return "".join(f'[server.{name}]\ncommand = ["e"]\n{text}\n' for name, text in keys.items())


def test_a_group_has_members_in_their_order(loaded: Loaded) -> None:
    config = loaded(servers(a="", b="") + '[group.pair]\nmembers = ["b", "a"]\norder = "listed"\ntogether = true')

    group = config.groups["pair"]
    assert (group.name, group.members, group.order, group.together) == ("pair", ("b", "a"), GroupOrder.LISTED, True)
    assert members(config, "pair") == ("b", "a")


def test_without_groups_nothing_depends_on_anything(loaded: Loaded) -> None:
    assert ties(loaded(servers(a="", b=""))) == {"a": Ties(), "b": Ties()}


def test_a_server_names_whom_it_comes_after_and_whom_it_needs(loaded: Loaded) -> None:
    found = ties(loaded(servers(a="", b="", c='after = ["a"]\nrequires = ["b"]')))

    assert found["c"] == Ties(after=("a",), requires=("b",))
    assert found["c"].before == ("b", "a")
    assert found["a"] == Ties()


def test_a_group_stands_for_its_members(loaded: Loaded) -> None:
    text = servers(a="", b="", c='requires = ["g:pair", "a"]') + '[group.pair]\nmembers = ["a", "b"]'
    assert ties(loaded(text))["c"].requires == ("a", "b")


def test_the_order_of_a_group_ties_each_to_the_one_before(loaded: Loaded) -> None:
    text = servers(a="", b="", c="") + '[group.line]\nmembers = ["b", "c", "a"]\norder = "listed"'
    found = ties(loaded(text))

    assert (found["b"].after, found["c"].after, found["a"].after) == ((), ("b",), ("c",))


def test_members_that_restart_together_know_each_other(loaded: Loaded) -> None:
    text = servers(a="", b="", c="") + '[group.pair]\nmembers = ["a", "c"]\ntogether = true'
    found = ties(loaded(text))

    assert (found["a"].group, found["a"].mates) == ("pair", ("c",))
    assert (found["b"].group, found["b"].mates) == ("", ())


@pytest.mark.parametrize(("order", "gang"), [("any", "pair"), ("listed", "")])
def test_members_that_start_at_once_are_a_gang(loaded: Loaded, order: str, gang: str) -> None:
    text = servers(a="", b="") + f'[group.pair]\nmembers = ["a", "b"]\ntogether = true\norder = "{order}"'
    assert [tie.gang for tie in ties(loaded(text)).values()] == [gang, gang]


def test_slots_and_priorities_are_numbers(loaded: Loaded, tmp_path: Path) -> None:
    daemon = f'[daemon]\nstate_dir = "{tmp_path}/s"\nlog_dir = "{tmp_path}/l"\nstart_slots = 2\n'
    config = loaded(daemon + servers(a="priority = 10", b="priority = -1", c=""))

    assert config.daemon.start_slots == 2
    assert [server.priority for server in config.servers.values()] == [10, -1, 0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            servers(kimi="", b='after = ["kimmi"]'),
            'server.b.after[0]: there is no server "kimmi", did you mean "kimi"?',
        ),
        (servers(b='requires = ["zzz"]'), 'server.b.requires[0]: there is no server "zzz"'),
        (
            servers(a="", b='requires = ["g:piar"]') + '[group.pair]\nmembers = ["a"]',
            'server.b.requires[0]: there is no group "piar", did you mean "pair"?',
        ),
        (
            servers(a="", b='after = ["pair"]') + '[group.pair]\nmembers = ["a"]',
            'server.b.after[0]: "pair" is a group, write "g:pair"',
        ),
        (servers(a="") + "[group.x]", 'group.x.members: expected a list such as ["a", "b"], got none'),
        (
            servers(glm="") + '[group.x]\nmembers = ["gml"]',
            'group.x.members[0]: there is no server "gml", did you mean "glm"?',
        ),
        (servers(a="") + '[group.x]\nmembers = ["a", "a"]', "group.x.members[1]: names a twice"),
        (
            servers(a="", b="") + '[group.a]\nmembers = ["b"]',
            "group.a: there is a server of this name: a would mean both",
        ),
        (
            servers(a="") + '[group."x y"]\nmembers = ["a"]',
            'group."x y": expected a name of 1-64 letters, digits, ".", "_" or "-", not "all"; the first a letter or digit',
        ),
        (
            servers(a="", b="", c="")
            + '[group.x]\nmembers = ["a", "b"]\ntogether = true\n[group.y]\nmembers = ["c", "b"]\ntogether = true',
            "group.y.members[1]: b restarts together with group x already",
        ),
        (servers(a='after = ["a"]'), "server.a.after: nobody can be first of a → a"),
        (
            servers(a='after = ["b"]', b='requires = ["c"]', c='after = ["a"]', d='after = ["a"]'),
            "server.a.after: nobody can be first of a → b → c → a",
        ),
        (
            servers(x='after = ["a"]', a='requires = ["b"]', b='after = ["a"]'),
            "server.a.requires: nobody can be first of a → b → a",
        ),
        (
            servers(a='after = ["b"]', b="") + '[group.line]\nmembers = ["a", "b"]\norder = "listed"',
            "server.a.after: nobody can be first of a → b → a",
        ),
        (
            servers(a="", b="")
            + '[group.x]\nmembers = ["a", "b"]\norder = "listed"\n[group.y]\nmembers = ["b", "a"]\norder = "listed"',
            "group.y.order: nobody can be first of a → b → a",
        ),
        (servers(a="") + '[group.x]\nmembers = "a"', 'group.x.members: expected a list, got "a"'),
        (servers(a="") + '[group.x]\nmembres = ["a"]', 'group.x.membres: unknown key, did you mean "members"?'),
        (
            servers(a="") + '[group.x]\nmembers = ["a"]\norder = "reverse"',
            'group.x.order: expected one of "any", "listed", got "reverse"',
        ),
        ("[[group]]", "group: expected tables such as [group.NAME]"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(problems: Problems, text: str, told: str) -> None:
    assert problems(text) == (told,)


def test_the_file_that_holds_the_key_is_blamed(problems: Problems, tmp_path: Path) -> None:
    (line,) = problems(servers(a=""), x='[group.x]\nmembers = ["b"]')
    assert line == f'cannot use {tmp_path}/conf.d/x.toml: group.x.members[0]: there is no server "b"'

    (line,) = problems(servers(a=""), x='[group.x]\nmembers = ["a"]', y='[group.x]\nmembers = ["a"]')
    assert line == (f"cannot use {tmp_path}/conf.d/y.toml: group.x: is already defined in {tmp_path}/conf.d/x.toml")


def test_a_long_chain_is_no_cycle(loaded: Loaded, problems: Problems) -> None:
    chain = {f"s{n}": f'after = ["s{n - 1}"]' if n else "" for n in range(1500)}
    assert ties(loaded(servers(**chain)))["s1499"].after == ("s1498",)

    (told,) = problems(servers(**chain | {"s0": 'after = ["s1499"]'}))
    assert told.startswith("server.s0.after: nobody can be first of s0 → s1499 → s1498 →")
