"""`sglsup replay`: today's rules over a recorded night, from the daemon's journal or from a server's log."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from supervisor.actions import AnyAction, Remember, StartRecord
from supervisor.actions import decode as decode_action
from supervisor.config import DEFAULT_ENGINE, Config, ConfigError, ServerConfig, load
from supervisor.core.log.skim import Skimmer
from supervisor.core.log.stamps import like, seconds
from supervisor.core.replay.page import (
    JournalReplay,
    LogReplay,
    ServerReplay,
    journal_json,
    journal_page,
    log_json,
    log_page,
)
from supervisor.core.replay.relive import Relived
from supervisor.core.replay.review import MakeServer, Step, review
from supervisor.core.resolve import resolve
from supervisor.core.server import Server
from supervisor.core.settings import Settings
from supervisor.edge.journal import Entry
from supervisor.edge.journal.reader import JournalUnreadableError, read_all
from supervisor.events import AnyEvent, LineMatched, Ticked
from supervisor.events import decode as decode_event
from supervisor.logsource import UnreadableError, log_moment, opened_log, recognise
from supervisor.output import for_a_reader
from supervisor.profile import CommandFacts, Profile, facts, load_profile, profile_names

EXIT_SAME = 0
EXIT_DIFFERENT = 1
EXIT_USAGE = 2
EXIT_UNREADABLE = 66
_JOURNAL = b"SQLite format 3\0"
# Of a log nobody knows what the probes saw: they are asked seldom, which changes no verdict and spares the time.
_PROBE_S = 5.0
_SERVING_PROBE_S = 600.0


class UsageError(Exception):
    """What was asked for does not fit the record; the message says how to ask."""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 no difference or nothing condemned, 1 otherwise, 2 usage, 66 unreadable."""
    given = parser().parse_args(arguments)
    try:
        config = load(given.config) if given.config else None
        different, page = _journal(given, config) if _is_journal(given.record) else _log(given, config)
    except ConfigError as error:
        return _refuse(str(error), EXIT_USAGE)
    except UsageError as error:
        return _refuse(str(error), EXIT_USAGE)
    except (UnreadableError, JournalUnreadableError, OSError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return _refuse(f"cannot read {given.record}: {reason}", EXIT_UNREADABLE)
    with for_a_reader():
        sys.stdout.buffer.write(page)
    return EXIT_DIFFERENT if different else EXIT_SAME


def _refuse(message: str, status: int) -> int:
    for line in message.splitlines():
        sys.stderr.write(f"sglsup replay: {line}\n")
    return status


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(
        prog="sglsup replay",
        description="Shows what today's rules decide about a recorded night, beside what was decided then.",
        epilog="exit status: 0 no difference (of a log: nothing condemned), 1 otherwise, 2 usage, 66 unreadable",
        allow_abbrev=False,
    )
    result.add_argument(
        "record", metavar="JOURNAL|LOG", help="the daemon's journal.db, or a server's log (.gz, .zst, -)"
    )
    result.add_argument(
        "-c", "--config", metavar="FILE", help="today's configuration; default: the engine's own values"
    )
    result.add_argument("--server", metavar="NAME", help="only this server; of a log: whose settings apply")
    result.add_argument("--engine", choices=profile_names(), help="default: the configured one, or recognised")
    result.add_argument(
        "--until",
        "--now",
        type=log_moment,
        metavar="T",
        help='of a log: how long its last silence went on; "now" is now',
    )
    result.add_argument("--json", action="store_true", help="one JSON object")
    return result


def _is_journal(path: str) -> bool:
    if path == "-":
        return False
    with open(path, "rb") as file:
        return file.read(len(_JOURNAL)) == _JOURNAL


# --- whose rules -------------------------------------------------------------------------------------------------


class _Rules:
    """One server's settings, and how a server with them is made."""

    def __init__(self, name: str, config: ServerConfig | None, source: str, profile: Profile) -> None:
        self.profile = profile
        command = config.command if config is not None else ()
        self.source = f"settings of {source}" if config is not None else "the engine's own settings, command unknown"
        self.facts: CommandFacts = facts(profile, command)
        self.settings: Settings = resolve(config or ServerConfig(name), profile, self.facts)

    def server(self, now: float, last_attempt: int = 0, earlier: Iterable[StartRecord] = ()) -> Server:
        """A fresh one."""
        return Server(self.settings, self.profile, self.facts, now, last_attempt, earlier)


def _rules(given: argparse.Namespace, config: Config | None, name: str, engine: str | None) -> _Rules:
    mine = config.servers.get(name) if config is not None else None
    chosen = given.engine or (mine.engine if mine is not None else None) or engine or DEFAULT_ENGINE
    return _Rules(name, mine, given.config or "", load_profile(chosen))


# --- journals ----------------------------------------------------------------------------------------------------


class _Record:
    """What a journal holds of each server."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Step]] = {}
        self.lost = 0
        self.unknown = 0

    def add(self, entry: Entry) -> None:
        """One row; an action belongs to the event before it, whose moment it has."""
        try:
            if entry.kind == "event":
                self._append(entry, decode_event(entry.payload))
            elif entry.kind == "action":
                self._act(entry, decode_action(entry.payload))
            elif entry.kind == "lost":
                self.lost += int(msgspec.json.decode(entry.payload, type=dict[str, int]).get("lost", 0))
            else:
                self.unknown += 1
        except (msgspec.DecodeError, msgspec.ValidationError):
            self.unknown += 1

    def _append(self, entry: Entry, event: AnyEvent) -> None:
        self.steps.setdefault(entry.server, []).append(Step(entry.mono, entry.wall, event))

    def _act(self, entry: Entry, action: AnyAction) -> None:
        steps = self.steps.setdefault(entry.server, [])
        if not steps or steps[-1].at != entry.mono:  # its event is not in the record
            self._append(entry, Ticked())
        steps[-1] = replace(steps[-1], then=(*steps[-1].then, action))


def _journal(given: argparse.Namespace, config: Config | None) -> tuple[int, bytes]:
    """How many decisions differ, and the page."""
    if given.until:
        raise UsageError("cannot use --until with a journal: it tells its moments itself")
    record = _Record()
    for entry in read_all(given.record):
        record.add(entry)
    if not record.steps:
        raise JournalUnreadableError("no event of any server is in it")
    if given.server and given.server not in record.steps:
        raise UsageError(f"cannot find server {given.server!r}: the journal has {', '.join(sorted(record.steps))}")
    names = [given.server] if given.server else sorted(record.steps)
    servers = tuple(_server(given, config, name, record.steps[name]) for name in names)
    replayed = JournalReplay(given.record, servers, record.lost, record.unknown)
    return replayed.differences, journal_json(replayed) if given.json else journal_page(replayed).encode()


def _server(given: argparse.Namespace, config: Config | None, name: str, steps: list[Step]) -> ServerReplay:
    rules = _rules(given, config, name, _engine_of(steps))
    keys = [action.record.key for step in steps for action in step.then if isinstance(action, Remember)]
    configured = config is not None and name in config.servers
    if keys and not configured:
        rules.settings = replace(rules.settings, history_key=keys[-1])  # of the command that nobody tells us
    make: MakeServer = rules.server
    return ServerReplay(name, rules.profile.name, rules.source, tuple(review(steps, make)), configured)


def _engine_of(steps: Iterable[Step]) -> str | None:
    """The engine whose profile has most of the rules that were recorded."""
    seen = Counter(step.event.rule for step in steps if isinstance(step.event, LineMatched))
    if not seen:
        return None
    known = {name: {rule.name for rule in load_profile(name).rules} for name in profile_names()}
    return max(known, key=lambda name: sum(count for rule, count in seen.items() if rule in known[name]))


# --- logs --------------------------------------------------------------------------------------------------------


def _log(given: argparse.Namespace, config: Config | None) -> tuple[int, bytes]:
    """How many attempts would have been ended, and the page."""
    name = _whose(given, config)
    with opened_log(given.record) as (sample, chunks):
        rules = _rules(given, config, name, recognise(sample))
        rules.settings = _seldom_probed(rules.settings)
        relived, skimmer = Relived(rules.profile, rules.server), Skimmer(rules.profile)
        for chunk in chunks:
            for lines in skimmer.feed(chunk):
                relived.read(lines)
        relived.read(skimmer.finish())
    until = seconds(like(given.until, relived.stamp)) if given.until else None
    lives = relived.conclude(until)
    if not lives:
        raise UnreadableError("no record of an engine with a time is in it, so no deadline can be applied")
    replayed = LogReplay(given.record, rules.profile.name, rules.source, relived.stamp, tuple(lives))
    return replayed.condemned, log_json(replayed) if given.json else log_page(replayed).encode()


def _whose(given: argparse.Namespace, config: Config | None) -> str:
    """The server whose settings apply to a log."""
    if config is None:
        if given.server:
            raise UsageError("cannot use --server with a log alone: name the configuration with -c")
        return "log"
    names = sorted(config.servers)
    if not given.server and len(names) == 1:
        return names[0]
    if given.server not in config.servers:
        known = f"{given.config} has {', '.join(names) or 'no server'}"
        asked = f"cannot find server {given.server!r}" if given.server else "cannot tell whose log it is: use --server"
        raise UsageError(f"{asked}: {known}")
    return str(given.server)


def _seldom_probed(settings: Settings) -> Settings:
    readiness = replace(
        settings.readiness,
        refused_interval_s=_PROBE_S,
        warming_interval_s=_PROBE_S,
        warming_interval_max_s=_PROBE_S,
        interval_s=_SERVING_PROBE_S,
    )
    return replace(settings, readiness=readiness)
