"""XML-RPC as supervisord 4.3 speaks it: decoding without XML's dangers, faults, encoding."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any
from xmlrpc.client import Fault, ResponseError, Unmarshaller, dumps

from defusedxml.common import DefusedXmlException
from defusedxml.xmlrpc import DefusedExpatParser

INT_MAX = 2**31 - 1  # of <int>; supervisord caps its times at it too
DEPTH_MAX = 50


class FaultCode(enum.IntEnum):
    """supervisord's fault numbers."""

    UNKNOWN_METHOD = 1
    INCORRECT_PARAMETERS = 2
    BAD_ARGUMENTS = 3
    SHUTDOWN_STATE = 6
    BAD_NAME = 10
    BAD_SIGNAL = 11
    NO_FILE = 20
    FAILED = 30
    ABNORMAL_TERMINATION = 40
    SPAWN_ERROR = 50
    ALREADY_STARTED = 60
    NOT_RUNNING = 70
    SUCCESS = 80
    ALREADY_ADDED = 90
    STILL_RUNNING = 91
    CANT_REREAD = 92


class FaultError(Exception):
    """The call fails with a fault, whose text is supervisord's: "BAD_NAME: kimi"."""

    def __init__(self, code: FaultCode, extra: str = "") -> None:
        super().__init__(f"{code.name}: {extra}" if extra else code.name)
        self.code = code


class MalformedCallError(Exception):
    """The body is no XML-RPC call."""


def decode(body: bytes) -> tuple[str, tuple[Any, ...]]:
    """Method name and parameters. Raises MalformedCallError; DTDs and entities are refused."""
    target = Unmarshaller(use_datetime=False, use_builtin_types=True)
    try:
        parser = DefusedExpatParser(target, forbid_dtd=True)
        parser.feed(body)
        parser.close()
        parameters: object = target.close()
        method = target.getmethodname()
    except (DefusedXmlException, ResponseError, Fault) as problem:
        raise MalformedCallError(type(problem).__name__) from None
    except Exception as problem:  # noqa: BLE001 - the standard library's unmarshaller raises whatever it stumbles over
        raise MalformedCallError(f"{type(problem).__name__}: {problem}") from None
    if not method or not isinstance(parameters, tuple) or _depth(parameters) > DEPTH_MAX:
        raise MalformedCallError("no method name, or parameters nested too deeply")
    try:
        dumps(parameters)
    except (TypeError, OverflowError) as problem:  # a number beyond <int>, a member whose name is another value
        raise MalformedCallError(f"a parameter that no answer could carry: {problem}") from None
    return method, parameters


def _depth(value: object) -> int:
    """Nesting, measured level by level: recursion is what an attacker would exhaust."""
    depth, level = 0, [value]
    while level and depth <= DEPTH_MAX:
        depth += 1
        level = [inner for outer in level for inner in _inner(outer)]
    return depth


def _inner(value: object) -> Sequence[object]:
    match value:
        case dict():
            return list(value.values())
        case list() | tuple():
            return value
        case _:
            return ()


def encode(value: Any) -> bytes:
    """The answer of a call that succeeded."""
    return dumps((value,), methodresponse=True, allow_none=False).encode()


def encode_fault(error: FaultError) -> bytes:
    """The answer of a call that failed."""
    return dumps(Fault(int(error.code), xml_text(str(error))), methodresponse=True).encode()


def xml_text(text: str) -> str:
    """Text that XML 1.0 can carry: a log may hold any character."""
    return "".join(letter if _is_xml(ord(letter)) else "?" for letter in text)


def _is_xml(code: int) -> bool:
    return code in (0x9, 0xA, 0xD) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


def capped(number: float) -> int:
    """A whole number that <int> can carry."""
    return max(-INT_MAX, min(INT_MAX, int(number)))
