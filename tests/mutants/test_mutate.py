"""The mistakes themselves: one at a time, in place of the function's own code."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutate import Mutant, mutants

SOURCE = '''
class Door:
    def __init__(self, limit):
        self.limit = limit
        self.tried = 0

    def opens(self, age, key):
        """Who is old enough and has a key."""
        self.tried += 1
        if not key:
            return False
        return age >= self.limit and bool(key)

def least(one, other):
    return min(one, other) + 1
'''


def made() -> list[Mutant]:
    return list(mutants(SOURCE, "door"))


def with_mistake(function: str, what: str) -> Callable[..., object]:
    """The function with that mistake; of a class: its method, unbound."""
    names: dict[str, object] = {}
    exec(SOURCE, names)  # noqa: S102 - our own text
    (mutant,) = (one for one in made() if (one.function, one.what) == (function, what))
    *holder, name = function.split(".")
    found = getattr(names[holder[0]], name) if holder else names[name]
    found.__code__ = mutant.code  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


def test_every_mistake_is_told_with_its_place() -> None:
    assert [str(one) for one in made()] == [
        "door:5 Door.__init__: 0 plus one",
        "door:9 Door.opens: left out",
        "door:9 Door.opens: 1 plus one",
        "door:10 Door.opens: always",
        "door:10 Door.opens: not left out",
        "door:11 Door.opens: False turned",
        "door:12 Door.opens: and/or swapped",
        "door:12 Door.opens: GtE turned",
        "door:15 least: Add swapped",
        "door:15 least: min swapped",
        "door:15 least: 1 plus one",
    ]


def test_a_mistake_changes_what_the_function_does() -> None:
    assert with_mistake("least", "min swapped")(3, 7) == 8
    assert with_mistake("least", "Add swapped")(3, 7) == 2
    assert with_mistake("least", "1 plus one")(3, 7) == 5


def test_whoever_runs_a_mistake_runs_a_line_of_its_statement() -> None:
    source = """
def waits(held, free):
    if (
        held
        and not free
    ):
        return 1
    return 0
"""
    lines = {one.what: list(one.lines) for one in mutants(source, "door")}
    assert lines["always"] == [3, 4, 5]
    assert lines["not left out"] == [3, 4, 5]
    assert lines["1 plus one"] == [7]
    assert lines["0 plus one"] == [8]
