"""Operations on a server's past: why it is as it is, the timeline of a start, evidence bundles."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Annotated

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from starlette.responses import Response, StreamingResponse

from supervisor.api import wire
from supervisor.api.control import Clock
from supervisor.api.files import Arguments, Found, in_thread
from supervisor.api.lastwords import archived_as, last_words
from supervisor.api.operation import Call, Operation, RefusedError, answer
from supervisor.api.retelling import Failure
from supervisor.api.story import is_past, sentences
from supervisor.api.wire.moments import iso
from supervisor.api.words import state_of
from supervisor.edge.evidence import Bundle, bundles, tar
from supervisor.edge.evidence.odd import odd_rank
from supervisor.snapshot import IncidentView, ServerSnapshot

STORY_EVENTS = 20
CHUNK_BYTES = 64 * 1024
PACK_LIMIT_S = 60.0
PACKED_AT_ONCE = 2  # each costs a thread, CPU time and as much temporary disk as the bundle has
FACTS = "facts.json"
_GZIP = "application/gzip"

_packers: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("packers of bundles")


class AttemptQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which attempt; the newest one unless told."""

    attempt: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None


class KeptFacts(msgspec.Struct, frozen=True):
    """What a bundle remembers of its server, and when that was."""

    wall: float
    snapshot: ServerSnapshot


# --- the story -------------------------------------------------------------------------------------------------------


async def tell_story(call: Call) -> Response:
    snapshot, clock = call.snapshot, call.control.clock()
    failure = await _failure(call, snapshot)
    rows = await call.control.events(None, call.name, STORY_EVENTS)
    if failure is not None and call.query.attempt is None and is_past(snapshot, failure.incident, clock):
        failure = msgspec.structs.replace(failure, brief=True)
    incident = failure.incident if failure and not failure.brief else None
    view = incident.diagnosis if incident else snapshot.diagnosis
    log_path = incident.log_path if incident else snapshot.log_path
    return answer(
        wire.Story(
            name=snapshot.name,
            state=state_of(snapshot).name,
            sentences=sentences(snapshot, clock, failure),
            diagnosis=None if view is None else wire.diagnosis(view),
            evidence_path=incident.evidence_path if incident else snapshot.evidence_path,
            log_path=log_path,
            log_segments=await _kept(archived_as, log_path),
            events=tuple(wire.event(row) for row in rows),
            told=incident.attempt if incident else None,
            odd_rank=failure.odd_rank if failure and not failure.brief else "",
            incidents=tuple(wire.incident(one, clock) for one in snapshot.incidents),
        )
    )


async def _failure(call: Call, snapshot: ServerSnapshot) -> Failure | None:
    """The asked attempt's, or the last one: it is told beyond the next start."""
    wanted: int | None = call.query.attempt
    known = {one.attempt: one for one in snapshot.incidents}
    if wanted is not None and wanted not in known:
        remembered = ", ".join(map(str, known)) or "none"
        raise RefusedError(404, f"no failure of attempt {wanted} of {call.name} is remembered; there are: {remembered}")
    incident: IncidentView | None = known[wanted] if wanted else snapshot.incidents[-1] if known else None
    if incident is None:
        return None
    if (
        incident.attempt == snapshot.attempt and snapshot.stop is not None
    ):  # the proof that its memory is back came later
        incident = msgspec.structs.replace(incident, stop=snapshot.stop)
    path = incident.evidence_path
    odd = await _kept(odd_rank, path) if path else ""
    words = await _kept(last_words, incident.log_path)
    return Failure(incident, odd, words, on_gpus=bool(snapshot.gpus))


# --- the timeline ----------------------------------------------------------------------------------------------------


async def show_timeline(call: Call) -> Response:
    """Of the present or last attempt from memory, of an earlier one from its evidence."""
    snapshot, wanted = call.snapshot, call.query.attempt
    if wanted is None or wanted == snapshot.attempt:
        return answer(wire.timeline(snapshot, call.control.clock()))
    found = await _bundle(call, wanted)
    facts = await _kept(_facts, found)
    if facts is None:
        raise RefusedError(404, f"the evidence of attempt {wanted} of {call.name} does not tell its timeline")
    then = Clock(facts.snapshot.at, facts.wall)
    told = wire.timeline(facts.snapshot, then)
    return answer(msgspec.structs.replace(told, ended=_ended(snapshot, call.control.clock(), wanted) or told.at))


def _ended(snapshot: ServerSnapshot, clock: Clock, attempt: int) -> str | None:
    """When an earlier attempt ended, as far as its failure is remembered: its facts were kept before that."""
    return next((iso(clock.wall_of(one.ended)) for one in snapshot.incidents if one.attempt == attempt), None)


def _facts(found: Bundle) -> KeptFacts | None:
    """None when the file is not there, was cut, or is of another version."""
    try:
        return msgspec.json.decode(Path(found.path, FACTS).read_bytes(), type=KeptFacts)
    except (OSError, msgspec.DecodeError):
        return None


# --- bundles ---------------------------------------------------------------------------------------------------------


async def list_bundles(call: Call) -> Response:
    found = await _bundles(call)
    causes = {one.attempt: one.diagnosis.cause for one in call.snapshot.incidents if one.diagnosis is not None}
    told = tuple(wire.bundle(one, causes.get(one.attempt, "")) for one in found)
    return answer(wire.Bundles(call.name, told))


async def fetch_bundle(call: Call) -> Response:
    """The evidence of an attempt, the newest unless told, as one archive."""
    found = await _bundle(call, call.query.attempt)
    limiter = _packers.get(None) or anyio.CapacityLimiter(PACKED_AT_ONCE)
    _packers.set(limiter)
    async with limiter:
        try:
            packed = await in_thread(_packed, found, limit_s=PACK_LIMIT_S)
        except OSError as problem:
            raise RefusedError(500, f"cannot pack {found.path}: {problem.strerror or problem}") from None
    name = f"{call.name}-{found.attempt:06d}.tar.gz"
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return StreamingResponse(_pieces(packed), media_type=_GZIP, headers=headers)


async def _bundle(call: Call, attempt: int | None) -> Bundle:
    found = [one for one in await _bundles(call) if attempt in (None, one.attempt)]
    if not found:
        which = f"attempt {attempt} of {call.name}" if attempt else call.name
        raise RefusedError(404, f"no evidence of {which} is kept")
    return next((one for one in found if one.whole), found[0])


async def _bundles(call: Call) -> tuple[Bundle, ...]:
    directory = str(Path(call.control.daemon_info().state_dir, "evidence"))
    return await _kept(bundles, directory, call.name)


async def _kept(look: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
    """What is found of the past on disk. RefusedError when the disk does not answer."""
    try:
        return await in_thread(look, *arguments)
    except TimeoutError as problem:
        raise RefusedError(503, f"cannot tell what was kept: {problem.strerror}") from None


def _packed(found: Bundle) -> IO[bytes]:
    out = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever sends it
    try:
        tar(found.path, out)
        out.seek(0)
    except BaseException:
        out.close()
        raise
    return out


async def _pieces(packed: IO[bytes]) -> AsyncIterator[bytes]:
    with packed:
        while data := await anyio.to_thread.run_sync(packed.read, CHUNK_BYTES):
            yield data


OPERATIONS = (
    Operation(
        "GET",
        "/v1/servers/{name}/story",
        "tellStory",
        "Why the server is as it is, in words, and its last failure",
        tell_story,
        wire.Story,
        query=AttemptQuery,
    ),
    Operation(
        "GET",
        "/v1/servers/{name}/timeline",
        "showTimeline",
        "The phases of one start per rank",
        show_timeline,
        wire.Timeline,
        query=AttemptQuery,
    ),
    Operation(
        "GET",
        "/v1/servers/{name}/bundles",
        "listBundles",
        "The evidence that is kept of its failed attempts",
        list_bundles,
        wire.Bundles,
    ),
    Operation(
        "GET",
        "/v1/servers/{name}/bundle",
        "fetchBundle",
        "One attempt's evidence as tar.gz",
        fetch_bundle,
        query=AttemptQuery,
        media_types=(_GZIP,),
        failures=(500,),
    ),
)
