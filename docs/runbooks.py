"""Prints a section for each cause: what it means, how it looks, what the supervisor does, what a person does."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

from supervisor.profile import Cause, Profile, load_profile, profile_names

HERE = Path(__file__).resolve().parent
_NEEDLES = 3  # of each profile
_NEEDLE_LETTERS = (8, 70)  # shorter ones say nothing to a person
_DOES = {
    "no": "It is given up at once (`FATAL`) where this is certain: no restart mends it. Else it is tried again.",
    "yes": "It is restarted after a pause, within the budget.",
    "maybe": "It is restarted after a pause; the same cause again and again, no further each time, ends in quarantine.",
}
_NO_FAILURE = "Nothing: this is no failure, and it explains no end and no stall."
_OURS = "It is given up at once (`FATAL`) where no retry can help, and tried again where the host refused a process."


class Runbook(NamedTuple):
    """The part written by hand."""

    means: str
    act: tuple[str, ...]
    verify: str


def runbooks() -> dict[str, Runbook]:
    """By cause. Raises KeyError where a part is missing."""
    read = tomllib.loads((HERE / "runbooks.toml").read_text())
    return {name: Runbook(one["means"], tuple(one["act"]), one["verify"]) for name, one in read.items()}


def page() -> str:
    profiles = [load_profile(name) for name in profile_names()]
    written = runbooks()
    sections = "\n".join(section(name, runbook, profiles) for name, runbook in written.items())
    listed = " · ".join(f"[{name}](#{name})" for name in written)
    return f"""# Runbooks

Printed by `make docs` from the profiles and `docs/runbooks.toml`; a test compares. There is a section for each cause
that `sglctl why` and `sglsup diagnose` name, and their line "runbook" names it. First of all, always: `sglctl why
NAME`. It has the evidence line, the bundle and what was done.

{listed}

{sections}"""


def section(name: str, runbook: Runbook, profiles: list[Profile]) -> str:
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(runbook.act, 1))
    return f"""## {name}

{runbook.means}

**In the log:** {looks(name, profiles)}

**The supervisor:** {does(profiles[0].cause(name))}

**You:**

{steps}

**Verify:** {runbook.verify}
"""


def looks(name: str, profiles: list[Profile]) -> str:
    """Texts by which it is known, of each engine."""
    found = {}
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


def does(cause: Cause | None) -> str:
    if cause is None:
        return _OURS
    if not cause.failure:
        return _NO_FAILURE
    patience = f" The pause is {cause.backoff_factor:g} times as long as usual." if cause.backoff_factor != 1 else ""
    return _DOES[cause.restart] + patience
