"""supervisord's methods on log files: read, tail, clear."""

from __future__ import annotations

from typing import Any

from supervisor.api import logs
from supervisor.api.files import in_thread
from supervisor.api.operation import Call
from supervisor.api.supervisord.codec import FaultCode, FaultError, capped, xml_text
from supervisor.api.supervisord.processes import each, find, names_of

LOG_BYTES_MAX = 4 * 2**20


async def read_main_log(call: Call, offset: int, length: int) -> str:
    return await _read(call.control.daemon_info().log_path, offset, length)


async def read_process_log(call: Call, name: str, offset: int, length: int) -> str:
    return await _read(find(call, name).log_path, offset, length)


async def _read(path: str, offset: int, length: int) -> str:
    if length < 0 or (offset < 0 and length):
        raise FaultError(FaultCode.BAD_ARGUMENTS, path)
    query = logs.LogQuery(offset=offset, length=min(length or LOG_BYTES_MAX, LOG_BYTES_MAX))
    try:
        return _text(await in_thread(_read_bytes, path, query))
    except FileNotFoundError:
        raise FaultError(FaultCode.NO_FILE, path) from None
    except OSError:
        raise FaultError(FaultCode.FAILED, path) from None


def _read_bytes(path: str, query: logs.LogQuery) -> bytes:
    if not path:
        raise FileNotFoundError
    with logs.LogFile(path) as log:
        offset, end = log.range_of(query)
        return log.read(offset, end - offset)


def _text(data: bytes) -> str:
    return xml_text(data.decode("utf-8", "replace"))


async def tail_process_log(call: Call, name: str, offset: int, length: int) -> list[Any]:
    """[text, where to go on, whether something was skipped]: supervisord's odd arithmetic, kept for its clients."""
    path = find(call, name).log_path
    try:
        return await in_thread(_tail, path, offset, length)
    except OSError:
        return ["", 0, False]


def _tail(path: str, offset: int, length: int) -> list[Any]:
    if not path:
        raise FileNotFoundError
    with logs.LogFile(path) as log:
        size, skipped = log.size, log.size > offset + length
        if skipped:
            offset = size - 1
        if offset + length > size:
            length = 0 if offset > size - 1 else length
            offset = size - length
        length = max(0, min(length, LOG_BYTES_MAX))
        return [_text(log.read(max(0, offset), length)) if length else "", capped(size), skipped]


async def no_stderr_log(call: Call, name: str, offset: int, length: int) -> str:
    """Both streams are in the one file that is called stdout's."""
    find(call, name)
    raise FaultError(FaultCode.NO_FILE, "stderr")


async def no_stderr_tail(call: Call, name: str, offset: int, length: int) -> list[Any]:
    find(call, name)
    return ["", 0, False]


async def clear_process_logs(call: Call, name: str) -> bool:
    snapshot = find(call, name)
    try:
        await in_thread(logs.clear, snapshot.log_path)
    except FileNotFoundError:
        return True  # as supervisord has it: what is not there is clear
    except OSError as problem:
        raise FaultError(FaultCode.FAILED, f"{name}: {problem.strerror}") from None
    return True


async def clear_all_logs(call: Call) -> list[dict[str, Any]]:
    return await each(names_of(call), lambda one: clear_process_logs(call, one))
