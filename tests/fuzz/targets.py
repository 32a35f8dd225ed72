"""What is fuzzed: each target takes any bytes, and raises only when the product does what it must not.

What a target allows is the product's own refusal (a `ConfigError`, a status 400); anything else that is raised is a bug.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from supervisor import actions as a
from supervisor import events as e
from supervisor.api.supervisord.codec import MalformedCallError, decode, encode
from supervisor.api.supervisord.methods import METHODS
from supervisor.config import ConfigError, config_hash, load
from supervisor.convert import convert
from supervisor.convert.draft import ConversionError
from supervisor.convert.page import page
from supervisor.core.lint import lint
from supervisor.core.log.grammar import LogReader
from supervisor.core.log.live import LiveReader
from supervisor.core.replay.review import Step, review
from supervisor.core.resolve import resolve
from supervisor.core.server import Server
from supervisor.core.settings import Settings
from supervisor.diagnose import diagnose
from supervisor.edge.inspect.__main__ import encoded
from supervisor.edge.inspect.models import model_facts
from supervisor.lines import LineCutter
from supervisor.logsource import UnreadableError
from supervisor.preflight import DeviceFacts, Inspected, Looked, MachineFacts, Request, load_rules
from supervisor.preflight.rules import MODEL
from supervisor.profile import Profile, facts, load_profile, profile_names
from supervisor.shell.devices import Devices
from supervisor.shell.states import StateStore
from supervisor.shell.trees import TreeStore
from tests.fuzz.calls import call_of
from tests.fuzz.http import Door
from tests.fuzz.seeds import BETWEEN, posted

Target = Callable[[bytes], None]
_NOW = 1000.0
_SETTINGS = Settings(name="kimi", engine="sglang", port=30000, gpus=(0, 1))
_TICKS = 30
_MODEL_FILES = ("config.json", "model.safetensors.index.json", "model.safetensors")
_STARTED = ("python", "-m", "sglang.launch_server", "--model-path", "/m", "--tp", "2", "--context-length", "4096")
_MACHINE = MachineFacts(devices=(DeviceFacts(0, "", 1 << 30, 1 << 30), DeviceFacts(1, "", 1 << 30, 1 << 30)))


@cache
def folder() -> Path:
    """Where targets put the files that the product is to read."""
    path = Path(tempfile.mkdtemp(prefix="sglsup-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


# --- logs ------------------------------------------------------------------------------------------------------------


def log(data: bytes) -> None:
    """Whatever a log holds and however it is cut: the same records, clean text, and a diagnosis."""
    profile = load_profile(profile_names()[data[0] % len(profile_names())]) if data else load_profile("sglang")
    size, text = 1 + (data[1] if len(data) > 1 else 0), data[2:]
    whole = _records(profile, [text])
    assert whole == _records(profile, [text[at : at + size] for at in range(0, len(text), size)]), "cut differently"
    for match in whole:
        assert not any(
            ord(letter) < 32 or ord(letter) == 127 for letter in match.text.replace("\n", "").replace("\t", "")
        )
        assert e.decode(e.encode(match)) == match
    reader = LiveReader(profile, 1)
    live = [match for step in reader.feed(text) for match in step] + reader.finish()
    assert all(match in whole for match in live), "the live reader invents records"
    with contextlib.suppress(UnreadableError):
        outcome, _, _ = diagnose(io.BytesIO(text))
        msgspec.json.encode(outcome)


def _records(profile: Profile, parts: list[bytes]) -> list[e.LineMatched]:
    reader, cutter = LogReader(profile, 1), LineCutter()
    found = [match for part in parts for line in cutter.feed(part) if not line.partial for match in reader.read([line])]
    return found + reader.finish()


# --- files of people -------------------------------------------------------------------------------------------------


def config(data: bytes) -> None:
    """A configuration file is used or refused, with every problem in one line of its own."""
    path = folder() / "supervisor.toml"
    path.write_bytes(data)
    try:
        servers = load(path).servers
    except ConfigError as refused:
        servers = {}
        _told(refused.problems)
    for server in servers.values():
        profile = load_profile(server.engine)
        resolve(server, profile, facts(profile, server.command, server.host))
        assert config_hash(server)


def _told(problems: tuple[str, ...]) -> None:
    """A refusal says why, in one line each."""
    assert problems
    assert all(problem and "\n" not in problem for problem in problems)


def converter(data: bytes) -> None:
    """A file of supervisord's or systemd's becomes a configuration that can be read, or is refused."""
    path = folder() / ("kimi.service" if data[:1] == b"u" else "supervisord.conf")
    path.write_bytes(data[1:])
    try:
        conversion = convert(path)
    except ConversionError as refused:
        _told((str(refused),))
        return
    written = folder() / "converted.toml"
    written.write_text(page(conversion))
    load(written)


def model(data: bytes) -> None:
    """A model's folder as others have left it: what is wrong is told, and the rules judge the rest."""
    place = folder() / "model"
    place.mkdir(exist_ok=True)
    for name, part in zip(_MODEL_FILES, data.split(BETWEEN), strict=False):
        headed = name == _MODEL_FILES[-1] and part[:1] == b"{"  # its length before it, which no fuzzer guesses
        (place / name).write_bytes(struct.pack("<Q", len(part)) + part + bytes(8) if headed else part)
    request = Request("/bin/sh", models={MODEL: str(place)})
    looked = Looked(models=(model_facts(MODEL, str(place), request),), machine=_MACHINE)
    answer = msgspec.json.decode(encoded(looked), type=Looked)
    profile = load_profile("sglang")
    known = Inspected("kimi", _STARTED, facts(profile, _STARTED), looked=answer)
    for finding in lint(known, load_rules("sglang")):
        assert finding.what


# --- requests --------------------------------------------------------------------------------------------------------


def xmlrpc(data: bytes) -> None:
    """A body is a call or refused; what it asks with can be answered with."""
    try:
        method, parameters = decode(call_of(data[1:]) if data[:1] == b"\x00" else data)
    except MalformedCallError:
        return
    assert isinstance(method, str)
    for parameter in parameters:
        encode(parameter)


@cache
def _door() -> Door:
    door = Door(folder())
    atexit.register(door.close)
    return door


def http(data: bytes) -> None:
    """Whatever comes to the socket: an answer below 500, or the end of the connection."""
    if data[:1] == b"\x01":
        _door().knock(posted(call_of(data[1:], tuple(METHODS))), stays=True)
    else:
        _door().knock(data)


# --- our own files ---------------------------------------------------------------------------------------------------


def saved(data: bytes) -> None:
    """A server's record, of whatever age or damage: the next daemon goes on, with it or without it."""
    (folder() / "kimi.json").write_bytes(data[1:])
    record = StateStore(folder(), "boot").read("kimi")
    if record is None:
        return
    profile = load_profile("sglang")
    server = Server(_SETTINGS, profile, facts(profile, ()), _NOW, record.number)
    server.restore(record, _NOW, tree_lives=bool(data[0] % 2))
    _go_on(server)
    msgspec.json.encode(server.save("boot"))
    msgspec.json.encode(server.snapshot())


def _go_on(server: Server) -> None:
    """Ticks and a stop, unanswered: whatever was saved, it comes to something."""
    now = _NOW
    for count in range(_TICKS):
        deadline = server.deadline()
        if deadline is None:
            break
        now = max(now, min(deadline, now + 1e6))
        server.handle(e.Ticked() if count != _TICKS // 2 else e.StopRequested("test"), now)


def notes(data: bytes) -> None:
    """Notes of trees and the devices' records are read or moved aside."""
    for name in ("trees", "devices"):
        (folder() / name).mkdir(exist_ok=True)
    (folder() / "trees" / "kimi.json").write_bytes(data)
    records, problems = TreeStore(folder() / "trees").read()
    assert len(records) + len(problems) <= 1
    (folder() / "devices" / "devices.json").write_bytes(data)
    Devices(folder() / "devices", lambda _: "", lambda: None).view()


def journal(data: bytes) -> None:
    """Rows of a journal in any order are replayed: an odd one differs, and breaks nothing."""
    steps = list(_steps(data))
    profile = load_profile("sglang")

    def make(now: float, last: int, earlier: object) -> Server:
        return Server(_SETTINGS, profile, facts(profile, ()), now, last, earlier)  # type: ignore[arg-type]

    if steps:
        for _ in review(steps, make):
            pass


def _steps(data: bytes) -> Iterator[Step]:
    now = _NOW
    for row in data.split(b"\n"):
        seconds, _, payload = row.partition(b" ")
        now += min(100.0, float(seconds)) if seconds.isdigit() else 0.0
        with contextlib.suppress(msgspec.DecodeError):
            yield Step(now, now, e.decode(payload), _actions(payload))


def _actions(payload: bytes) -> tuple[a.AnyAction, ...]:
    return (a.CheckDevices(len(payload) % 3),) if len(payload) % 2 else ()


TARGETS: dict[str, Target] = {
    one.__name__: one for one in (log, config, converter, model, xmlrpc, http, saved, notes, journal)
}
