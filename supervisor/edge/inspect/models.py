"""Reads a model's folder as far as a start depends on it: config, index, shards, tokenizer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.edge.inspect import hub, safetensors
from supervisor.edge.inspect.configs import is_number, parse_config
from supervisor.preflight import ConfigFacts, FileFacts, ModelFacts, ModelKind, Request
from supervisor.preflight.rules import DRAFT, MODEL

_JSON_BYTES_MAX = 256 << 20  # an index of a large mixture has a line for each expert's matrix
_INDEX = "model.safetensors.index.json"
_OTHER_FORMATS = ("*.gguf", "*.bin", "*.pt", "*.pth", "params.json", "*.npz", "*.msgpack")
_UNFINISHED = ("*.incomplete", "*.part", "*.aria2", "*.tmp")


def model_facts(role: str, path: str, request: Request) -> ModelFacts:
    """What is at the path, as the server's user sees it."""
    kind, folder = _kind(path, request)
    if kind is ModelKind.HUB:
        cache = hub.cache_of(request.environment)
        folder = hub.copy_of(path, cache)
        free = hub.free_bytes(cache)
        found = ModelFacts(role, path, kind, folder, cache=cache, cache_free_bytes=free)
        return _filled(found, request) if folder else found
    if kind is ModelKind.FOLDER:
        return _filled(ModelFacts(role, path, kind, folder), request)
    return ModelFacts(role, path, kind, folder)


def _kind(path: str, request: Request) -> tuple[ModelKind, str]:
    if "://" in path:
        return ModelKind.REMOTE, ""
    place = os.path.join(request.directory, path)
    try:
        os.stat(place)
    except PermissionError:
        return ModelKind.FORBIDDEN, place
    except OSError:
        return (ModelKind.HUB, "") if hub.is_id(path) else (ModelKind.MISSING, place)
    if not os.path.isdir(place):
        return ModelKind.FILE, place
    return (ModelKind.FOLDER if os.access(place, os.R_OK | os.X_OK) else ModelKind.FORBIDDEN), place


def _filled(model: ModelFacts, request: Request) -> ModelFacts:
    folder = Path(model.folder)
    config, config_problem, denied = _config(folder)
    weighed = model.role in (MODEL, DRAFT)
    index, index_problem = _index(folder) if weighed else (None, "")
    files, missing, unreadable = _weights(folder, index) if weighed else ((), (), ())
    return ModelFacts(
        model.role,
        model.path,
        model.kind,
        model.folder,
        config=config,
        config_problem=config_problem,
        files=files,
        missing=missing,
        unreadable=unreadable + (("config.json",) if denied else ()),
        unfinished=tuple(sorted(path.name for pattern in _UNFINISHED for path in folder.glob(pattern))),
        index_bytes=_total(index),
        index_problem=index_problem,
        tokenizer=_has_tokenizer(folder, request) if _wants_tokenizer(model.role, request) else None,
        other_formats=any(True for pattern in _OTHER_FORMATS for _ in folder.glob(pattern)),
        cache=model.cache,
        cache_free_bytes=model.cache_free_bytes,
    )


# --- config ----------------------------------------------------------------------------------------------------------


def _config(folder: Path) -> tuple[ConfigFacts | None, str, bool]:
    try:
        loaded = _json(folder / "config.json")
    except FileNotFoundError:
        return None, "", False
    except PermissionError:
        return None, "", True
    except (OSError, ValueError, RecursionError) as problem:
        return None, f"config.json: {problem}", False
    if not isinstance(loaded, dict):
        return None, "config.json: it is no object", False
    return parse_config(loaded), "", False


def _json(path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(_JSON_BYTES_MAX + 1)
    if len(data) > _JSON_BYTES_MAX:
        raise ValueError(f"it is longer than {_JSON_BYTES_MAX >> 20} MiB")
    return json.loads(data)


# --- weights ---------------------------------------------------------------------------------------------------------


def _index(folder: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        index = _json(folder / _INDEX)
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, RecursionError) as problem:
        return None, f"{_INDEX}: {problem}"
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        return None, f"{_INDEX}: it has no weight_map"
    return index, ""


def _total(index: dict[str, Any] | None) -> int | None:
    metadata = index.get("metadata") if index else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(total) if is_number(total) else None


def _weights(
    folder: Path, index: dict[str, Any] | None
) -> tuple[tuple[FileFacts, ...], tuple[str, ...], tuple[str, ...]]:
    """The files that will be loaded: with an index those that it names, else all."""
    present = {path.name for path in folder.glob("*.safetensors")}
    named = {name for name in index["weight_map"].values() if isinstance(name, str)} if index else present
    found, missing, unreadable = [], [], []
    for name in sorted(named):
        try:
            found.append(safetensors.read(folder / name))
        except FileNotFoundError:
            missing.append(name)
        except PermissionError:
            unreadable.append(name)
        except (OSError, ValueError) as problem:  # a folder of that name; a name that no file can have
            found.append(FileFacts(name, problem=getattr(problem, "strerror", None) or str(problem)))
    return tuple(found), tuple(missing), tuple(unreadable)


# --- tokenizer -------------------------------------------------------------------------------------------------------


def _wants_tokenizer(role: str, request: Request) -> bool:
    return role == "tokenizer" or (role == MODEL and not request.models.get("tokenizer"))


def _has_tokenizer(folder: Path, request: Request) -> bool:
    """Code of the model's own (tokenization_*.py) may read anything: that counts, too."""
    patterns = [re.compile(name) for name in request.tokenizer_names]
    return any(pattern.fullmatch(name) for name in _names(folder) for pattern in patterns)


def _names(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name
