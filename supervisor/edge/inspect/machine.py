"""Looks at the host: memory, shared memory, limits, tools. None for what it does not tell."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

from supervisor.preflight import LimitFacts, MachineFacts, Request

_SHARED = "/dev/shm"  # noqa: S108 - the kernel's, not a file of ours


def machine_facts(request: Request) -> MachineFacts:
    """As the server's user would see it; limits are those of this process, which the daemon's children inherit."""
    memory = _memory()
    temporary = request.environment.get("TMPDIR") or "/tmp"  # noqa: S108 - where the engine's own files go
    return MachineFacts(
        memory_bytes=memory.get("MemTotal"),
        memory_free_bytes=memory.get("MemAvailable"),
        shared_memory_bytes=_space(_SHARED, total=True),
        temporary=temporary,
        temporary_free_bytes=_space(temporary),
        open_files=LimitFacts(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        locked_memory=LimitFacts(*resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        compiler=_tool(request.compilers, request),
        stack_reader=_tool((request.stack_reader,), request) if request.stack_reader else None,
    )


def _memory() -> dict[str, int]:
    """Bytes of the fields of /proc/meminfo."""
    fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if field[-1] == "kB"}


def _space(path: str, *, total: bool = False) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * (found.f_blocks if total else found.f_bavail)


def _tool(names: tuple[str, ...], request: Request) -> str:
    """Where one of the tools is: on PATH, in CUDA_HOME, or beside the interpreter."""
    environment = request.environment
    folders = [environment.get("PATH", os.defpath), "/usr/local/cuda/bin"]
    folders += [f"{environment[name]}/bin" for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    if "/" in request.starter:
        folders.append(str(Path(request.directory, request.starter).parent))
    path = os.pathsep.join(folders)
    return next((found for name in names if (found := shutil.which(name, path=path))), "")
