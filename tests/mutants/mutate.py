"""Makes small mistakes in a module, one at a time: a turned comparison, a swapped word, another number, a call left out."""

from __future__ import annotations

import ast
import copy
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

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.function}: {self.what}"


def mutants(source: str, module: str) -> Iterator[Mutant]:
    """Every mistake that can be made inside a function of the module."""
    tree = ast.parse(source)
    for number, (node, _) in enumerate(_places(tree)):
        for which in range(len(list(_mistakes(node)))):
            changed = copy.deepcopy(tree)
            place, function = list(_places(changed))[number]
            what, new = list(_mistakes(place))[which]
            _put(changed, place, new)
            code = compile(ast.fix_missing_locations(changed), module, "exec")
            yield Mutant(module, getattr(node, "lineno", 0), function, what, _find(code, function.split(".")))


def _places(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """Nodes inside of functions, each with the qualified name of its outermost function."""
    found: list[tuple[ast.AST, str]] = []
    for top in tree.body:
        holders = top.body if isinstance(top, ast.ClassDef) else [top]
        for holder in holders:
            if isinstance(holder, ast.FunctionDef):
                name = f"{top.name}.{holder.name}" if isinstance(top, ast.ClassDef) else holder.name
                found += [(node, name) for statement in holder.body for node in ast.walk(statement)]
    return found


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


def _put(tree: ast.AST, place: ast.AST, new: ast.AST) -> None:
    ast.copy_location(new, place)
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is place:
                setattr(parent, field, new)
            elif isinstance(value, list) and any(item is place for item in value):
                value[[item is place for item in value].index(True)] = new


def _find(code: CodeType, path: list[str]) -> CodeType:
    for name in path:
        code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
    return code
