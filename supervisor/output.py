"""Lets whoever reads a command's output stop reading: head, less, a closed terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def for_a_reader() -> Iterator[None]:
    """What is printed within may find that its reader has seen enough, which is no failure of the command."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more when it ends
