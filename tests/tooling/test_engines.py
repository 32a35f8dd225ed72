"""No Python outside the fake engine knows an engine: what differs between engines is in the profiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from supervisor.profile import profile_names

ROOT = Path(__file__).resolve().parents[2] / "supervisor"
# The default of the configuration, and a demo that starts the fake engine.
KNOWN = {"config/model.py", "demo/stage.py"}
_OURS = re.compile(r"(?i)sglang[- ]supervisor")


def texts(source: str) -> Iterator[str]:
    """Every text of a program but its docstrings."""
    tree = ast.parse(source)
    bodies = [node.body for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)]
    docs = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield _OURS.sub("", node.value)


def naming(source: str) -> list[str]:
    names = re.compile(rf"(?i){'|'.join(profile_names())}|eagle")
    return [text for text in texts(source) if names.search(text)]


def test_no_engine_is_named_in_python() -> None:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if not name.startswith("simulator/") and (named := naming(path.read_text())):
            found[name] = named
    assert set(found) <= KNOWN, found


def test_a_name_would_be_found() -> None:
    assert naming('if engine == "vllm":\n    pass\n') == ["vllm"]
    assert naming('"""Of SGLang."""\nTITLE = "SGLang Supervisor"\n') == []
