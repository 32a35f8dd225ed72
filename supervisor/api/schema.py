"""The OpenAPI document, generated from the operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from supervisor.api import wire
from supervisor.api.operation import NoBody, Operation

_ALWAYS = (400, 403, 408, 413)
_MEANING = {
    400: "the request cannot be understood",
    403: "the role is missing",
    404: "there is no such server, device, attempt or file",
    408: "the body did not arrive in time",
    409: "it cannot be done in the present state, or the configuration file is broken",
    413: "the body is too large",
    500: "a file cannot be read or written",
    503: "not yet, or not any more",
}
_REF = "#/components/schemas/{name}"


def document(operations: Sequence[Operation]) -> bytes:
    """OpenAPI 3.1 as JSON; the same bytes for the same code."""
    types = [operation.answer for operation in operations if operation.answer is not None]
    bodies = [operation.body for operation in operations if operation.body is not NoBody]
    _, components = msgspec.json.schema_components([*types, *bodies, wire.Error], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "sglang-supervisor control", "version": wire.API_VERSION},
            "paths": paths,
            "components": {"schemas": components},
        },
        order="deterministic",
    )


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "x-role": operation.role.name.lower(),
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {str(operation.status): _success(operation)}
        | {code: _failure(code, text) for code, text in _failures(operation)},
    }
    if operation.body is not NoBody:
        schema = {"$ref": _REF.format(name=operation.body.__name__)}
        required = any(field.required for field in msgspec.structs.fields(operation.body))
        described["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    return described


def _success(operation: Operation) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=operation.answer.__name__)} if operation.answer is not None else {}
    content = {media: {"schema": schema} if media.endswith("json") else {} for media in operation.media_types}
    return {"description": operation.summary, "content": content}


def _failures(operation: Operation) -> list[tuple[str, str]]:
    named = (404,) if re.search(r"{(name|index)}", operation.path) else ()
    statuses = sorted({*_ALWAYS, *named, *operation.failures})
    return [(str(status), _MEANING[status]) for status in statuses]


def _failure(code: str, text: str) -> dict[str, Any]:
    if code == "503":  # the probes' own answer, which is no error
        return {"description": text, "content": {"text/plain": {}}}
    return {"description": text, "content": {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}}


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", operation.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([operation.query], ref_template=_REF)
    properties = components[operation.query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(schema)}
        for name, schema in properties.items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot carry null: leaving the parameter out is its None."""
    options = [option for option in schema.get("anyOf", []) if option != {"type": "null"}]
    return options[0] if len(options) == 1 else {key: value for key, value in schema.items() if value is not None}
