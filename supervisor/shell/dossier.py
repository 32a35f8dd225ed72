"""Gathers what the daemon itself knows of an attempt for its evidence bundle."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from supervisor import __version__
from supervisor.actions import KeepEvidence
from supervisor.config import EnvironmentRefusedError, ServerConfig, config_hash, is_secret, mask, mask_command
from supervisor.core.gpus.views import GpusView
from supervisor.core.log.rules import rule_index
from supervisor.core.log.segments import segments
from supervisor.edge.evidence import Facts, Part, Subject
from supervisor.events import Probed
from supervisor.lines import LineCutter
from supervisor.profile import Profile
from supervisor.shell.environment import build
from supervisor.snapshot import ServerSnapshot

PROBES_KEPT = 20
TAIL_BYTES = 512 * 2**10
SPLIT_BYTES = 2 * 2**20
LINES_PER_RANK = 200
LINE_LETTERS = 2000
RANKS_MAX = 128  # a hostile log can make up any number
LAUNCHER = "launcher"


class ProbeRecord(msgspec.Struct, frozen=True):
    """One probe, by the wall clock."""

    wall: float
    probed: Probed


class Dossier:
    """One server's. `began` with each attempt."""

    def __init__(self, config: ServerConfig, profile: Profile) -> None:
        self._config = config
        self._profile = profile
        self._environment: dict[str, str] = {}
        self._probes: deque[ProbeRecord] = deque(maxlen=PROBES_KEPT)

    def began(self, environment: Mapping[str, str]) -> None:
        """A new attempt, with this environment."""
        self._environment = dict(environment)
        self._probes.clear()

    def recall(self, pid: int, own: Mapping[str, str]) -> None:
        """The environment of an attempt that an earlier daemon began, whose secrets we must know too. Blocks."""
        if self._environment:
            return
        with contextlib.suppress(OSError):  # the leader has ended, or is not ours to read
            entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            self._environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if not self._environment:
            with contextlib.suppress(EnvironmentRefusedError):
                self._environment = build(self._config, own)

    def probed(self, probed: Probed) -> None:
        """One more probe; the last ones are kept."""
        self._probes.append(ProbeRecord(time.time(), probed))

    def facts(
        self,
        action: KeepEvidence,
        snapshot: ServerSnapshot,
        subjects: Sequence[Subject],
        log_path: str,
        gpus: GpusView,
    ) -> Facts:
        """What goes into the bundle. Values are taken now; files are read later, in a thread."""
        start = snapshot.start
        documents: dict[str, Any] = {
            "facts.json": {"reason": action.reason, "wall": time.time(), "snapshot": snapshot},
            "timeline.json": start.timeline if start else (),
            "votes.json": {"verdict": snapshot.verdict, "votes": snapshot.votes, "deadlines": snapshot.deadlines},
            "probes.json": tuple(self._probes),
            "gpus.json": gpus,
            "environment.json": mask(self._environment),
            "command.json": {"command": mask_command(self._config.command), "config_hash": config_hash(self._config)},
        }
        parts = [_document(name, value) for name, value in documents.items()]
        parts += [
            Part("versions.json", lambda: {"versions.json": _json(self._versions(gpus.driver))}),
            Part("log-tail.txt", lambda: {"log-tail.txt": _tail(log_path, TAIL_BYTES)[0].decode(errors="replace")}),
            Part("log of each rank", lambda: split_by_rank(self._profile, *_tail(log_path, SPLIT_BYTES))),
        ]
        return Facts(self._config.name, tuple(subjects), tuple(parts), self._secrets())

    def _secrets(self) -> tuple[str, ...]:
        """The words that our own masks hide, wherever else they turn up: a log that prints its arguments, a title."""
        words = {value for name, value in self._environment.items() if is_secret(name)}
        shown = mask_command(self._config.command)
        for word, masked in zip(self._config.command, shown, strict=True):
            if word != masked:
                words.add(word.removeprefix(masked.rpartition("=")[0] + "="))
        return tuple(sorted(words))

    def _versions(self, driver: str) -> dict[str, str]:
        return {
            "sglang-supervisor": __version__,
            "python": platform.python_version(),
            "kernel": " ".join(os.uname()),
            "driver": driver,
            "engine": f"{self._profile.name} {engine_version(self._config.command, self._profile.name)}".strip(),
        }


def _document(name: str, value: Any) -> Part:
    return Part(name, lambda: {name: _json(value)})


def split_by_rank(profile: Profile, data: bytes, whole: bool = True) -> dict[str, str]:
    """The last lines of each rank, as `log-RANK.txt`. A line without prefix belongs to the record before it."""
    rules = rule_index(profile)
    cutter = LineCutter()
    lines = cutter.feed(data if whole else data.partition(b"\n")[2])
    if (rest := cutter.pending()) is not None:
        lines.append(rest)
    found: dict[str, deque[str]] = {}
    speaker, stamp = LAUNCHER, ""
    for line in lines:
        for segment in segments(rules, line):
            if segment.prefixed:
                speaker, stamp = segment.rank or LAUNCHER, segment.stamp
            if speaker in found or len(found) < RANKS_MAX:
                text = f"[{stamp}] {segment.message}" if segment.prefixed else segment.message
                found.setdefault(speaker, deque(maxlen=LINES_PER_RANK)).append(text[:LINE_LETTERS])
    return {f"log-{rank.replace(' ', '-')}.txt": "\n".join(kept) + "\n" for rank, kept in found.items()}


def engine_version(command: Sequence[str], name: str) -> str:
    """The version of the engine's distribution beside the command's interpreter; "" when it is not there."""
    if not command or not os.path.isabs(command[0]):
        return ""
    places = Path(command[0]).parent.parent.glob(f"lib/python3*/site-packages/{name}-*.dist-info")
    return max((place.name.removesuffix(".dist-info").partition("-")[2] for place in places), default="")


def _tail(path: str, size: int) -> tuple[bytes, bool]:
    """The end of the file, and whether that is all of it. OSError when it cannot be read."""
    with open(path, "rb") as log:
        length = log.seek(0, os.SEEK_END)
        log.seek(max(0, length - size))
        return log.read(size), length <= size


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
