"""The clues that a log gives about what went wrong, each with the stage it happened in."""

from __future__ import annotations

from collections import Counter

import msgspec

from supervisor.core.log.grammar import TRACEBACK
from supervisor.core.log.stamps import seconds
from supervisor.events import LineMatched
from supervisor.profile import Profile, Signature

# Of the classes of `profiles/causes.toml`: those that are concluded, too, without a line that names them.
NO_EVIDENCE = "insufficient-evidence"
EXTERNAL = "external-termination"
HOST_OOM = "host-oom-killed"
PEER_DEATH = "peer-rank-death"  # the class of what survivors say: whom we saw die first is the better witness

_VICTIM_PENALTY = 30
_KEPT = 500
_PER_SIGNATURE = 24
_TOGETHER_S = 3.0
_ALIVE_AFTER_S = 15.0
_ALIVE_SIGNS = 4  # signs of life that disprove an end when the lines carry no time
_UNKNOWN_TRACEBACK = Signature(name=TRACEBACK, cause=NO_EVIDENCE, weight=15)


class Clue(msgspec.Struct):
    """A signature seen in the log."""

    signature: Signature
    match: LineMatched
    stage: str
    authoritative: bool = False  # the engine itself says that it ends
    disproved: bool = False  # it lived on

    @property
    def weight(self) -> int:
        """What it says about the cause."""
        return self.signature.weight - (_VICTIM_PENALTY if self.signature.victim else 0)

    @property
    def told_stage(self) -> str:
        """The stage that the functions of its traceback tell."""
        return self.match.fields.get("stage", "")

    @property
    def severity(self) -> str:
        """An end that the server survived was an error."""
        severity = "fatal" if self.authoritative and self.signature.severity == "error" else self.signature.severity
        return "error" if self.disproved and severity == "fatal" else severity

    @property
    def cause(self) -> str:
        """The class, by where it happened."""
        return self.signature.by_stage.get(self.stage, self.signature.cause)

    def restart(self, stage: str, served: bool) -> str:
        """Whether a restart can help, as far as the signature itself says; "served" = after requests were answered."""
        by_stage = self.signature.restart_by_stage
        if served and self.stage == stage and "served" in by_stage:
            return by_stage["served"]
        return by_stage.get(stage, self.signature.restart)


class ClueBook:
    """All clues of one attempt, in the order of the log; bounded, whatever the log repeats."""

    def __init__(self, profile: Profile) -> None:
        self._signatures = {signature.name: signature for signature in profile.signatures}
        self._rules = {rule.name: rule for rule in profile.rules}
        self._last_words = profile.grammar.last_words
        self._clues: list[Clue] = []
        self._counts: Counter[str] = Counter()
        self._signs = 0
        self.served = False  # requests were answered
        self.said_fatal = False  # the engine has said that it ends
        self.leader_ends = False  # the leader itself has said so: its end is its own doing
        self.draining = False
        self.asked_to_end = False  # by us: what the log says of a signal from now on is its echo, and no cause

    def all(self) -> list[Clue]:
        """Every clue that counts."""
        if not self.said_fatal:
            return self._clues
        return [clue for clue in self._clues if not clue.signature.quiet_only]

    def count(self, name: str) -> int:
        """How often a signature was seen."""
        return self._counts[name]

    def observe(self, match: LineMatched, stage: str) -> None:
        """Takes one match in."""
        rule = self._rules.get(match.rule)
        if rule is not None:
            self.said_fatal |= rule.hint == "fatal"
            self.leader_ends |= rule.hint == "fatal" and not match.rank
            self.draining |= rule.hint == "drain"
            self.served |= rule.life or rule.hint == "ready"
            if rule.life or (rule.enter and rule.hint != "restart") or rule.bar:
                self._lives(match)
            return
        signature = self._signatures.get(match.rule)
        if signature is None and match.rule == TRACEBACK:
            signature = _UNKNOWN_TRACEBACK
        if signature is not None:
            self._note(signature, match, stage)

    def _note(self, signature: Signature, match: LineMatched, stage: str) -> None:
        stage = match.fields.get("stage") or (signature.certain_stage and signature.stage) or stage or signature.stage
        if (signature.stages and stage not in signature.stages) or (self.asked_to_end and signature.cause == EXTERNAL):
            return
        if signature.closes:
            self._clues = [clue for clue in self._clues if clue.signature.name != signature.closes]
            return
        signature = self._sharpened(signature, match)
        self._counts[signature.name] += 1
        if len(self._clues) >= _KEPT or self._counts[signature.name] > _PER_SIGNATURE:
            return
        header = match.fields.get("header", "")
        said = any(words in header for words in self._last_words)
        self.said_fatal |= said
        self._clues.append(Clue(signature, match, stage, authoritative=said))

    def _sharpened(self, signature: Signature, match: LineMatched) -> Signature:
        """What the same text means when it is repeated, comes from several ranks at once, or tells of long silence."""
        if signature.together and self._others_at_once(signature, match):
            together = self._signatures[signature.together]
            for clue in self._clues:
                clue.signature = together if clue.signature is signature else clue.signature
            return together
        if signature.clock and self._clock_gap(signature, match) > signature.clock_limit_s:
            return self._signatures[signature.beyond]
        if signature.repeated and self._counts[signature.name] + 1 >= signature.repeated_count:
            return self._signatures[signature.repeated]
        return signature

    def _others_at_once(self, signature: Signature, match: LineMatched) -> bool:
        """Whether another tensor-parallel rank of the same group has said the same within seconds."""
        same = [clue for clue in self._clues if clue.signature.name in (signature.name, signature.together)]
        return any(
            clue.match.rank != match.rank
            and _group(clue.match.rank) == _group(match.rank)
            and abs(seconds(clue.match.stamp) - seconds(match.stamp)) <= _TOGETHER_S
            for clue in same
        )

    def _clock_gap(self, signature: Signature, match: LineMatched) -> float:
        begin, end = (seconds(match.fields.get(name, "")) for name in signature.clock)
        return (end - begin) % 86400.0 if match.fields.get(signature.clock[0]) else 0.0

    def _lives(self, match: LineMatched) -> None:
        """A sign of life: ends that were only guessed from a text, and lie well before it, were none."""
        self._clues = [clue for clue in self._clues if not clue.signature.explains_hang]
        for clue in self._clues:
            if clue.authoritative or clue.disproved or clue.signature.severity != "fatal":
                continue
            gap = seconds(match.stamp) - seconds(clue.match.stamp)
            timed = match.stamp and clue.match.stamp
            self._signs += 0 if timed else 1
            clue.disproved = gap > _ALIVE_AFTER_S if timed else self._signs >= _ALIVE_SIGNS


def _group(rank: str) -> str:
    """The rank's words without the last one: ranks of one group run the same collectives."""
    return rank.rpartition(" ")[0]
