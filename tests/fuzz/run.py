"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.run NAME --seconds 60`."""

from __future__ import annotations

import argparse
import logging
import site
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import structlog

from bench.peers import ATHERIS, place

_INPUT_S = 10  # one that takes longer is a finding, too
_MEMORY_MIB = 2048


def packages() -> Path:
    """Where atheris is installed, if it is: in an environment of its own, of the same Python."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return place(ATHERIS).parent / "lib" / version / "site-packages"


def main() -> None:
    """Ends by itself after the time; a finding is printed with its traceback, kept in the folder, and ends it with 77."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="for findings and what covers something new; default: a new one")
    parser.add_argument("--input", type=Path, help="run this one input alone")
    given = parser.parse_args()
    site.addsitedir(str(packages()))
    import atheris

    with atheris.instrument_imports(include=["supervisor", "xmlrpc"], enable_loader_override=False):
        from tests.fuzz.seeds import seeds
        from tests.fuzz.targets import TARGETS
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )  # what is refused is no news here
    target = TARGETS[given.target]
    if given.input is not None:
        target(given.input.read_bytes())
        return
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"fuzz-{given.target}-"))
    options = (f"-max_total_time={given.seconds}", f"-timeout={_INPUT_S}", f"-rss_limit_mb={_MEMORY_MIB}")
    corpus = _corpus(folder, seeds(given.target))
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}/", "-print_final_stats=1", str(corpus)], target)
    atheris.Fuzz()


def _corpus(folder: Path, beginnings: Iterable[bytes]) -> Path:
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(beginnings):
        (corpus / f"seed-{number}").write_bytes(seed)
    return corpus


if __name__ == "__main__":
    main()
