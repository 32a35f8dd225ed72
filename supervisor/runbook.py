"""`sglsup runbook CAUSE`: what a cause means, how it looks, what the supervisor does, what a person does."""

from __future__ import annotations

import argparse
import difflib
import importlib.resources
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from supervisor.output import columns, for_a_reader
from supervisor.profile import Cause, Profile, Signature, load_profile, profile_names

EXIT_USAGE = 2
_NEEDLES = 3  # of each profile
_NEEDLE_LETTERS = (8, 70)  # shorter ones say nothing to a person
_DOES = {
    "no": "It is given up at once (`FATAL`) where this is certain: no restart mends it. Else it is tried again.",
    "yes": "It is restarted after a pause, within the budget.",
    "maybe": "It is restarted after a pause; the same cause again and again, no further each time, ends in quarantine.",
}
_NOT_THERE = (
    " Where `why` says that no restart can help, because it comes back with every start, it is given up (`FATAL`) "
    "where that is certain."
)
_NO_FAILURE = "Nothing: this is no failure, and it explains no end and no stall."
_OURS = "It is given up at once (`FATAL`) where no retry can help, and tried again where the host refused a process."


class Runbook(NamedTuple):
    """The part written by hand."""

    means: str
    act: tuple[str, ...]
    verify: str


def main(arguments: Sequence[str]) -> int:
    """Print the runbook of a cause, or the names of all; 2 for a cause that there is not."""
    given, written = parser().parse_args(arguments), runbooks()
    if given.cause and given.cause not in written:
        near = difflib.get_close_matches(given.cause, written, n=1)
        meant = f'did you mean "{near[0]}"?' if near else "`sglsup runbook` lists them"
        sys.stderr.write(f"sglsup runbook: there is no cause {given.cause!r}; {meant}\n")
        return EXIT_USAGE
    with for_a_reader():
        sys.stdout.write(_told(given.cause, written) if given.cause else "".join(f"{name}\n" for name in written))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(
        prog="sglsup runbook",
        description="Tells what a person does about a cause that `sglctl why` or `sglsup diagnose` names.",
        epilog="exit status: 0 printed, 2 usage, or there is no such cause",
        allow_abbrev=False,
    )
    result.add_argument("cause", nargs="?", metavar="CAUSE", help="such as gpu-oom-kv-pool; without it all are listed")
    return result


def _told(cause: str, written: dict[str, Runbook]) -> str:
    told = section(cause, written[cause], [load_profile(name) for name in profile_names()])
    return "".join(f"{_wrapped(line)}\n" for line in told.splitlines()) if sys.stdout.isatty() else told


def _wrapped(line: str) -> str:
    """As wide as a terminal; what goes on hangs below the text of an item. A pipe gets Markdown as it is."""
    hanging = "   " if line[:1].isdigit() else ""
    wrap = textwrap.TextWrapper(columns(), subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return wrap.fill(line)


def runbooks() -> dict[str, Runbook]:
    """By cause. Raises KeyError where a part is missing."""
    read = tomllib.loads(importlib.resources.files("supervisor").joinpath("runbooks.toml").read_text("utf-8"))
    return {name: Runbook(one["means"], tuple(one["act"]), one["verify"]) for name, one in read.items()}


def page() -> str:
    """All of them, as a page of the documentation."""
    profiles = [load_profile(name) for name in profile_names()]
    written = runbooks()
    sections = "\n".join(section(name, runbook, profiles) for name, runbook in written.items())
    listed = " · ".join(f"[{name}](#{name})" for name in written)
    return f"""# Runbooks

Printed by `make docs` from the profiles and `supervisor/runbooks.toml`; a test compares. There is a section for each
cause that `sglctl why` and `sglsup diagnose` name; where only the program is installed, `sglsup runbook CAUSE` prints
it. First of all, always: `sglctl why NAME`. It has the evidence line, the bundle and what was done.

{listed}

{sections}"""


def section(name: str, runbook: Runbook, profiles: list[Profile]) -> str:
    """One of them, in Markdown."""
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(runbook.act, 1))
    return f"""## {name}

{runbook.means}

**In the log:** {looks(name, profiles)}

**The supervisor:** {does(profiles[0].cause(name), hopeless=hopeless(name, profiles))}

**You:**

{steps}

**Verify:** {runbook.verify}
"""


def looks(name: str, profiles: list[Profile]) -> str:
    """Texts by which it is known, of each engine."""
    found: dict[str, None] = {}
    for profile in profiles:
        pointing = [one for one in profile.signatures if name in (one.cause, *one.by_stage.values())]
        needles = [needle for one in sorted(pointing, key=lambda one: -one.weight) for needle in one.needles]
        least, most = _NEEDLE_LETTERS
        telling = [one.strip() for one in needles if least <= len(one.strip()) <= most and "`" not in one]
        found |= dict.fromkeys(telling[:_NEEDLES])
    return (
        ", ".join(f"`{needle}`" for needle in found)
        or "nothing that names it; it follows from how the server ended or stands."
    )


def does(cause: Cause | None, *, hopeless: bool = False) -> str:
    """What happens without anybody. None: a cause of ours, in no profile. `hopeless`: at times no restart helps."""
    if cause is None:
        return _OURS
    if not cause.failure:
        return _NO_FAILURE
    patience = f" The pause is {cause.backoff_factor:g} times as long as usual." if cause.backoff_factor != 1 else ""
    return _DOES[cause.restart] + (_NOT_THERE if hopeless and cause.restart != "no" else "") + patience


def hopeless(name: str, profiles: list[Profile]) -> bool:
    """Whether a text that leads to this cause says of one stage at least that no restart helps there."""
    return any(answer == "no" for profile in profiles for one in profile.signatures for answer in _answers(one, name))


def _answers(signature: Signature, cause: str) -> Iterator[str]:
    """What it says about restarts in the stages where it means this cause."""
    elsewhere = [stage for stage, other in signature.by_stage.items() if other != cause]
    if signature.cause == cause or cause in signature.by_stage.values():
        yield signature.restart
    if signature.cause == cause:
        yield from (answer for stage, answer in signature.restart_by_stage.items() if stage not in elsewhere)
    else:
        meant = (stage for stage, other in signature.by_stage.items() if other == cause)
        yield from (signature.restart_by_stage.get(stage, "") for stage in meant)
