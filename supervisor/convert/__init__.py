"""`sglsup convert`: writes a supervisord configuration, or a unit for one engine, as the daemon's own file."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor.convert.draft import Conversion, ConversionError, finished
from supervisor.convert.files import Files
from supervisor.convert.page import page, told
from supervisor.convert.supervisord import convert_supervisord
from supervisor.convert.systemd import convert_unit
from supervisor.output import for_a_reader

EXIT_COMPLETE = 0
EXIT_LOSSES = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 all of it, 1 with losses (which are told), 2 usage, or a file that its own program refuses."""
    options = parser().parse_args(arguments)
    try:
        conversion = convert(Path(options.file))
    except ConversionError as problem:
        told_why = str(problem).removeprefix(f"{os.path.abspath(options.file)}: ")
        sys.stderr.write(f"sglsup convert: cannot convert {options.file}: {told_why}\n")
        return EXIT_USAGE
    with for_a_reader():
        sys.stdout.write(page(conversion))
    sys.stderr.write("".join(f"sglsup convert: {line}\n" for line in told(conversion)))
    return EXIT_COMPLETE if conversion.complete else EXIT_LOSSES


def convert(path: Path) -> Conversion:
    """Whatever the file is. Raises ConversionError."""
    absolute = Path(os.path.abspath(path))
    if _is_unit(absolute):
        return finished(convert_unit(absolute))
    return finished(convert_supervisord(absolute, os.environ))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(
        prog="sglsup convert",
        description="Write the servers of a supervisord configuration, or of a service unit, as TOML on stdout."
        " What cannot be carried over is a comment there and a line on stderr. Nothing else is touched.",
        epilog="exit status: 0 everything carried over, 1 something was not, or a user is to be made first,"
        " 2 usage or a FILE that cannot be read",
        allow_abbrev=False,
    )
    result.add_argument("file", metavar="FILE", help="supervisord.conf, a file of its conf.d, or NAME.service")
    return result


def _is_unit(path: Path) -> bool:
    """By its sections: a name may be anything."""
    return bool(re.search(r"^\s*\[Service\]\s*$", Files().text(path), re.MULTILINE))
