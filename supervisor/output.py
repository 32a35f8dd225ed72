"""What the commands that print pages know of their reader: how wide he sees, and that he may stop reading."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator

_WIDE = 100  # for who is no terminal
_WIDEST = 120  # longer lines are hard to read, however wide the terminal is


def columns() -> int:
    """Columns of the terminal (or $COLUMNS), as far as lines of text use them."""
    return min(shutil.get_terminal_size((_WIDE, 24)).columns, _WIDEST)


@contextlib.contextmanager
def for_a_reader() -> Iterator[None]:
    """What is printed within may find that its reader has seen enough, which is no failure of the command."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more when it ends
