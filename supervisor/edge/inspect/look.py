"""Puts together what was asked for: the program, models, further files, the engine, the host."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat

from supervisor.edge.inspect.engine import engine_facts
from supervisor.edge.inspect.machine import machine_facts
from supervisor.edge.inspect.models import model_facts
from supervisor.preflight import EngineFacts, Looked, ModelFacts, ProgramFacts, Request
from supervisor.preflight.rules import MODEL


def look(request: Request) -> Looked:
    """Everything, as the present user. Blocks for as long as the disks do."""
    program = _program(request)
    if request.elsewhere:
        skipped = ("models, engine and files: the command runs in another file system or on another machine",)
        return Looked(program=program, machine=machine_facts(request), skipped=skipped)
    models = tuple(model_facts(role, path, request) for role, path in request.models.items() if path)
    engine = engine_facts(request, _class_of(models))
    return Looked(
        program=program,
        models=models,
        missing_files=_missing(request),
        engine=engine,
        machine=machine_facts(request),
        skipped=tuple(_skipped(request, engine)),
    )


def _program(request: Request) -> ProgramFacts:
    directory = _why_not_entered(request.directory)
    if "/" not in request.program:
        found = shutil.which(request.program, path=request.environment.get("PATH", os.defpath))
        problem = "" if found else f"{request.program} is on no folder of PATH"
        return ProgramFacts(found or "", problem, directory)
    path = os.path.join(request.directory, request.program)
    return ProgramFacts(path, _why_not_executable(path), directory)


def _why_not_entered(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError as problem:
        return _unseen(path, problem)
    if not stat.S_ISDIR(mode):
        return f"{path} is no directory"
    return "" if os.access(path, os.X_OK) else f"{path} may not be entered by {_me()}"


def _why_not_executable(path: str) -> str:
    try:
        os.stat(path)
    except OSError as problem:
        return _unseen(path, problem)
    if os.path.isdir(path):
        return f"{path} is a directory"
    return "" if os.access(path, os.X_OK) else f"{path} may not be executed by {_me()}"


def _unseen(path: str, problem: OSError) -> str:
    who = f" for {_me()}" if problem.errno == errno.EACCES else ""
    return f"{path}: {problem.strerror}{who}"


def _me() -> str:
    """Whose rights are meant: by now they are the server's user's."""
    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user {os.geteuid()}"


def _class_of(models: tuple[ModelFacts, ...]) -> str:
    for model in models:
        if model.role == MODEL and model.config is not None and model.config.architectures:
            return model.config.architectures[0]
    return ""


def _missing(request: Request) -> dict[str, str]:
    problems = {}
    for purpose, path in request.files.items():
        try:
            with open(os.path.join(request.directory, path), "rb"):
                pass
        except OSError as problem:
            problems[purpose] = f"{path}: {problem.strerror}"
    return problems


def _skipped(request: Request, engine: EngineFacts) -> list[str]:
    if not request.package:
        return []
    if not engine.location:
        return [f"the installed {request.package}: no packages found for {request.starter or request.program}"]
    if engine.flags is None:
        return [f"the options of {request.package}: its source does not tell them ({engine.location})"]
    return []
