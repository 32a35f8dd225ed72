"""Reads from an engine's source which options its command line takes, without importing it.

Two ways to declare them are known: `parser.add_argument("--name", …)`, and fields of a class annotated with
`Annotated[type, "help"]` (or a short name for it), from which the engine makes options at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from supervisor.preflight import FlagFacts

_ENOUGH = 50  # options; fewer mean that the engine declares them in a way that is not known here
_ANNOTATED = ("A", "Annotated")
_METADATA = "Arg"
_SIGNS = (b"add_argument", b": A[", b"Annotated[")
_BOTH_WAYS = "BooleanOptionalAction"


class _Found:
    def __init__(self) -> None:
        self.known: set[str] = set()
        self.deprecated: dict[str, str] = {}
        self.complete = True

    def add(self, names: Iterable[str], deprecated: str, *, both_ways: bool) -> None:
        for name in names:
            self.known.add(name)
            if both_ways and name.startswith("--"):
                self.known.add(f"--no-{name[2:]}")
            if deprecated:
                self.deprecated[name] = deprecated


def read_options(sources: Iterable[bytes]) -> FlagFacts | None:
    """All options declared in the sources; None when there are too few to be all of them."""
    found = _Found()
    found.add(("-h", "--help"), "", both_ways=False)
    for source in sources:
        if not any(sign in source for sign in _SIGNS):  # most files of a package: a parse is slow
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            found.complete = False
            continue
        for node in ast.walk(tree):
            _visit(node, found)
    if len(found.known) < _ENOUGH:
        return None
    return FlagFacts(tuple(sorted(found.known)), found.deprecated, found.complete)


def _visit(node: ast.AST, found: _Found) -> None:
    match node:
        case ast.Call(func=ast.Attribute(attr="add_argument")):
            _argument(node, found)
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Subscript(value=ast.Name(id=alias)) as note):
            if alias in _ANNOTATED and isinstance(note.slice, ast.Tuple):
                _field(name, note.slice.elts[1:], found)
        case _:
            pass


def _argument(call: ast.Call, found: _Found) -> None:
    names = [word for argument in call.args if (word := _text(argument)) is not None]
    if len(names) == len(call.args):
        found.add((name for name in names if name.startswith("-")), _deprecation(call), both_ways=_both_ways(call))
    elif not _passed_on(call):
        found.complete = False


def _passed_on(call: ast.Call) -> bool:
    """`add_argument(*names, **kwargs)`: the maker of options from annotated fields, which are read themselves."""
    return all(isinstance(argument, ast.Starred) for argument in call.args)


def _field(name: str, notes: list[ast.expr], found: _Found) -> None:
    for note in notes:
        if _text(note) is not None:
            found.add([_option(name)], _deprecated_help(_text(note) or ""), both_ways=False)
            return
        if isinstance(note, ast.Call) and isinstance(note.func, ast.Name) and note.func.id == _METADATA:
            _annotated(name, note, found)
            return


def _annotated(name: str, note: ast.Call, found: _Found) -> None:
    given = {keyword.arg: keyword.value for keyword in note.keywords}
    if isinstance(given.get("no_cli"), ast.Constant) and _constant(given["no_cli"]) is True:
        return
    names = [_text(given["cli_name"]) if "cli_name" in given else _option(name)]
    if isinstance(aliases := given.get("aliases"), ast.List):
        names += [_text(alias) for alias in aliases.elts]
    elif aliases is not None:
        found.complete = False
    if None in names:
        found.complete = False
    told = _deprecation(note, given.get("action_kwargs"))
    found.add([word for word in names if word], told, both_ways=_both_ways(note))


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


# --- what a declaration says about itself ----------------------------------------------------------------------------


def _deprecation(call: ast.Call, action_values: ast.expr | None = None) -> str:
    """By its action's name or by its help; the note names what to use instead where the source does."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    instead = _text(given.get("new_flag")) or _entry(action_values, "new_flag")
    action = given.get("action")
    by_action = isinstance(action, ast.Name) and action.id.startswith("Deprecated")
    by_help = _deprecated_help(_text(given.get("help")) or _first_text(given.get("help")))
    if not by_action:
        return by_help
    return f"use {instead} instead" if instead else by_help or "it will be removed"


def _deprecated_help(text: str) -> str:
    start = text.lower().lstrip("([* ")
    return " ".join(text.split())[:200] if start.startswith(("deprecated", "note: deprecated")) else ""


def _both_ways(call: ast.Call) -> bool:
    actions = (keyword.value for keyword in call.keywords if keyword.arg == "action")
    return any(_BOTH_WAYS in ast.unparse(action) for action in actions)


def _first_text(node: ast.expr | None) -> str:
    """The beginning of a text that is put together at run time."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return _text(node.values[0]) or ""
    if isinstance(node, ast.BinOp):
        return _text(node.left) or _first_text(node.left)
    return ""


def _entry(node: ast.expr | None, key: str) -> str:
    if not isinstance(node, ast.Dict):
        return ""
    pairs: Iterator[tuple[ast.expr | None, ast.expr]] = zip(node.keys, node.values, strict=True)
    return next((_text(value) or "" for name, value in pairs if _text(name) == key), "")


def _text(node: ast.expr | None) -> str | None:
    value = _constant(node)
    return value if isinstance(value, str) else None


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
