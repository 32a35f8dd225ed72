"""Writes the pages of docs/ that are printed from the code; --check compares instead and exits 1 on a difference."""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from supervisor.core import lifecycle

HERE = Path(__file__).resolve().parent


def lifecycle_page() -> str:
    return f"""# Lifecycle of a server

Printed by `make docs` from the table in `supervisor/core/lifecycle.py`; a test compares.

```mermaid
{lifecycle.diagram()}```

{lifecycle.explanation()}"""


PAGES: dict[str, Callable[[], str]] = {
    "lifecycle.md": lifecycle_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is not up to date")
    if parser.parse_args().check:
        return max([check(name) for name in PAGES])
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
    return 0


def check(name: str) -> int:
    path = HERE / name
    written = path.read_text() if path.exists() else ""
    difference = list(difflib.unified_diff(written.splitlines(), PAGES[name]().splitlines(), f"docs/{name}", "code"))
    if difference:
        print(*difference, f"docs/{name} is not what the code says: run `make docs`", sep="\n", file=sys.stderr)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
