"""Makes small mistakes in a module, one at a time: a turned comparison, a swapped word, another number, a call left out."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from types import CodeType

import msgspec

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(msgspec.Struct, frozen=True):
    """One mistake: the function it is in, and that function's code with it."""

    module: str
    line: int
    function: str
    what: str
    code: CodeType
    lines: range
    """Whoever runs the mistake has run one of these."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.function}: {self.what}"


def mutants(source: str, module: str) -> Iterator[Mutant]:
    """Every mistake that can be made inside a function of the module."""
    for name, function, holder in _functions(ast.parse(source)):
        for node, since in list(_places(function.body, 0)):
            for what, new in _mistakes(node):
                with _put(function, node, new):
                    code = _compiled(function, holder, module)
                line = getattr(node, "lineno", since)
                yield Mutant(module, line, name, what, code, range(since, _last_line(node, line) + 1))


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef, ast.ClassDef | None]]:
    """The outermost ones, with their qualified names and their classes."""
    for top in tree.body:
        if isinstance(top, ast.FunctionDef):
            yield top.name, top, None
        elif isinstance(top, ast.ClassDef):
            yield from ((f"{top.name}.{one.name}", one, top) for one in top.body if isinstance(one, ast.FunctionDef))


def _places(nodes: list[ast.stmt] | list[ast.AST], since: int) -> Iterator[tuple[ast.AST, int]]:
    """Each node with the line that its statement begins on."""
    for node in nodes:
        begins = node.lineno if isinstance(node, ast.stmt) else since
        yield node, begins
        yield from _places(list(ast.iter_child_nodes(node)), begins)


def _last_line(node: ast.AST, line: int) -> int:
    """Of a branch: that of its condition."""
    return getattr(node.test if isinstance(node, ast.If) else node, "end_lineno", None) or line


def _compiled(function: ast.FunctionDef, holder: ast.ClassDef | None, module: str) -> CodeType:
    """The function alone, in its class if it has one, as `super()` needs it."""
    top: ast.stmt = function
    if holder is not None:
        top = ast.copy_location(ast.ClassDef(holder.name, [], [], [function], []), holder)
    code = compile(ast.Module([top], []), module, "exec")
    for name in (holder.name, function.name) if holder is not None else (function.name,):
        code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
    return code


def _mistakes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in _TURNED:
            yield f"{type(op).__name__} turned", ast.Compare(left, [_TURNED[type(op)]()], others)
        case ast.BoolOp(op=op, values=values):
            yield "and/or swapped", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not left out", operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SWAPPED:
            yield f"{type(op).__name__} swapped", ast.BinOp(left, _SWAPPED[type(op)](), right)
        case ast.Constant(value=bool() as value):
            yield f"{value} turned", ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield f"{number} plus one", ast.Constant(number + 1)
        case ast.Name(id=name, ctx=ast.Load()) if name in _NAMES:
            yield f"{name} swapped", ast.Name(_NAMES[name], ast.Load())
        case ast.If(body=body, orelse=other) | ast.IfExp(body=body, orelse=other):
            kind = type(node)
            yield "always", kind(ast.Constant(value=True), body, other)  # type: ignore[arg-type]
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "left out", ast.Pass()
        case _:
            return


@contextlib.contextmanager
def _put(tree: ast.AST, place: ast.AST, new: ast.AST) -> Iterator[None]:
    """The new node stands there meanwhile."""
    parent, field, at = _found(tree, place)
    ast.fix_missing_locations(ast.copy_location(new, place))
    _set(parent, field, at, new)
    try:
        yield
    finally:
        _set(parent, field, at, place)


def _found(tree: ast.AST, place: ast.AST) -> tuple[ast.AST, str, int | None]:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is place:
                return parent, field, None
            if isinstance(value, list):
                for at, item in enumerate(value):
                    if item is place:
                        return parent, field, at
    raise LookupError(ast.dump(place))


def _set(parent: ast.AST, field: str, at: int | None, node: ast.AST) -> None:
    if at is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[at] = node
