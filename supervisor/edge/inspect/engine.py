"""Finds the engine that the command's interpreter would import, without starting it: version, pins, options."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from supervisor.edge.inspect.options import read_options
from supervisor.preflight import EngineFacts, Request

_METADATA_BYTES = 1 << 20
_SOURCE_BYTES = 4 << 20
_PIN = re.compile(r"^Requires-Dist: *([A-Za-z0-9._-]+) *\(?== *([^\s;,)]+)", re.MULTILINE)
_SHEBANG = re.compile(rb"#!\s*(\S+)(?:\s+(\S+))?")


def engine_facts(request: Request, model_class: str) -> EngineFacts:
    """What is installed. location "" = the interpreter's packages were not found at all."""
    if not request.package:
        return EngineFacts()
    folders = list(_package_folders(request))
    if not folders:
        return EngineFacts()
    installed = _installed(folders, (request.package, *request.distributions))
    info = installed.get(_normal(request.package))
    package = _package(folders, request.package)
    return EngineFacts(
        version=_version(info) if info else "",
        location=str(package or info or folders[0]),
        distributions={
            name: _version(installed[_normal(name)]) for name in request.distributions if _normal(name) in installed
        },
        pins=_pins(info, request.distributions) if info else {},
        flags=read_options(_sources(package, request.flag_sources)) if package else None,
        class_words=_class_words(package, request, model_class) if package and model_class else None,
    )


# --- where packages are ----------------------------------------------------------------------------------------------


def _package_folders(request: Request) -> Iterator[Path]:
    """PYTHONPATH, then the interpreter's own folders; a virtual environment's link is not followed at first."""
    search = request.environment.get("PYTHONPATH", "")
    yield from (Path(request.directory, entry) for entry in search.split(os.pathsep) if entry)
    interpreter = _interpreter(request)
    if interpreter is None:
        return
    prefixes = [interpreter.parent.parent]
    if not (prefixes[0] / "pyvenv.cfg").exists():
        prefixes += [interpreter.resolve().parent.parent, Path("/usr/local"), Path("/usr")]
    for prefix in dict.fromkeys(prefixes):
        for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages"):
            yield from sorted(prefix.glob(pattern))


def _interpreter(request: Request) -> Path | None:
    """The interpreter itself, or the one that the program's first line names."""
    found = shutil.which(request.starter, path=request.environment.get("PATH", os.defpath))
    place = Path(request.directory, request.starter) if "/" in request.starter else Path(found) if found else None
    if place is None or request.by_module:
        return place
    try:
        with place.open("rb") as file:
            match = _SHEBANG.match(file.read(512))
    except OSError:
        return None
    if match is None:
        return None
    if match[1].endswith(b"/env") and match[2]:
        found = shutil.which(os.fsdecode(match[2]), path=request.environment.get("PATH", os.defpath))
        return Path(found) if found else None
    return Path(os.fsdecode(match[1]))


def _package(folders: Iterable[Path], package: str) -> Path | None:
    """The package's folder, also where it was installed as a link to its sources."""
    for folder in folders:
        for base in (folder, *_linked(folder, package)):
            if (base / package / "__init__.py").is_file():
                return base / package
    return None


def _linked(folder: Path, package: str) -> Iterator[Path]:
    for file in folder.glob(f"*{package}*.pth"):
        lines = file.read_text(errors="replace").splitlines()
        yield from (Path(line) for line in lines if line.startswith("/"))


# --- metadata --------------------------------------------------------------------------------------------------------


def _installed(folders: Iterable[Path], wanted: tuple[str, ...]) -> dict[str, Path]:
    """The folders with the metadata of the distributions asked for; the first one found is the one imported."""
    names = {_normal(name) for name in wanted}
    found: dict[str, Path] = {}
    for folder in folders:
        for info in folder.glob("*.dist-info"):
            name = _normal(info.name.partition("-")[0])
            if name in names:
                found.setdefault(name, info)
    return found


def _version(info: Path) -> str:
    return info.name.removesuffix(".dist-info").partition("-")[2]


def _pins(info: Path, wanted: tuple[str, ...]) -> dict[str, str]:
    try:
        with (info / "METADATA").open(encoding="utf-8", errors="replace") as file:
            text = file.read(_METADATA_BYTES)
    except OSError:
        return {}
    names = {_normal(name): name for name in wanted}
    return {names[_normal(name)]: version for name, version in _PIN.findall(text) if _normal(name) in names}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- sources ---------------------------------------------------------------------------------------------------------


def _sources(package: Path, patterns: Iterable[str]) -> Iterator[bytes]:
    for pattern in patterns:
        for path in sorted(package.glob(pattern)):
            yield from _read(path)


def _class_words(package: Path, request: Request, model_class: str) -> tuple[str, ...] | None:
    """None when no file defines the class."""
    wanted = f"class {model_class}".encode()
    for source in _sources(package, request.class_sources):
        if wanted + b"(" in source or wanted + b":" in source:
            return tuple(word for word in request.class_words if word.encode() in source)
    return None


def _read(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield file.read(_SOURCE_BYTES)
    except OSError:
        return
