"""XML-RPC is decoded without XML's dangers, and everything that is said fits into XML."""

from __future__ import annotations

from xmlrpc.client import Binary, Fault, dumps, loads

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from supervisor.api.supervisord.codec import (
    INT_MAX,
    FaultCode,
    FaultError,
    MalformedCallError,
    capped,
    decode,
    encode,
    encode_fault,
    xml_text,
)

BOMB = b"""<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<methodCall><methodName>&b;</methodName><params></params></methodCall>"""
OUTSIDE = b"""<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a SYSTEM "file:///etc/passwd">]>
<methodCall><methodName>&a;</methodName></methodCall>"""
CALL = dumps(("kimi", True, [1, {"a": "b"}], 1.5), "supervisor.x").encode()
BEHIND_TAGS = [at for at in range(1, len(CALL)) if CALL[at - 1 : at] == b">"]
JUNK = (b"", b"x", b"-", b"<i8>", b"</value>", b"<nil/>")


def call_with(parameter: bytes) -> bytes:
    value = b"<value>" + parameter + b"</value>"
    return b"<methodCall><methodName>m</methodName><params><param>" + value + b"</param></params></methodCall>"


def nested(depth: int) -> bytes:
    inner = b"<array><data>" + b"<value><array><data>" * (depth - 1)
    return call_with(inner + b"</data></array></value>" * (depth - 1) + b"</data></array>")


def test_a_call_is_decoded() -> None:
    assert decode(dumps(("kimi", True, [1, {"a": "b"}]), "supervisor.x").encode()) == (
        "supervisor.x",
        ("kimi", True, [1, {"a": "b"}]),
    )
    assert decode(b"<methodCall><methodName>m</methodName></methodCall>") == ("m", ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<methodCall>",
        b"<methodCall></methodCall>",
        b"<methodCall><methodName></methodName></methodCall>",
        b"<methodCall><methodName>m</methodName><params><param><value><int>x</int></value></param></params></methodCall>",
        b"<methodCall><methodName>m</methodName><params><param><value><zz>x</zz></value></param></params></methodCall>",
        b"<methodResponse><params><param><value>x</value></param></params></methodResponse>",
        dumps(Fault(1, "x"), methodresponse=True).encode(),
        BOMB,
        OUTSIDE,
        b"\xff\xfe\x00",
        b"<a>" * 1000,
        nested(1000),
        call_with(b"<int>2147483648</int>"),
        call_with(b"<i8>-2147483649</i8>"),
        call_with(b"<struct><member><int>1</int><value>a</value></member></struct>"),
        call_with(b"<array><data><value><int>" + b"1" * 40 + b"</int></value></data></array>"),
    ],
)
def test_what_is_no_call_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedCallError):
        decode(body)


def test_moderate_nesting_is_fine() -> None:
    assert decode(nested(20))[0] == "m"


@pytest.mark.parametrize("number", [INT_MAX, -INT_MAX, True, 0])
def test_numbers_up_to_what_an_answer_can_carry_are_taken(number: int) -> None:
    assert decode(dumps((number,), "m").encode()) == ("m", (number,))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A call that has lost some bytes somewhere and got junk in their place."""
    at = draw(st.integers(0, len(CALL)) | st.sampled_from(BEHIND_TAGS))
    lost = draw(st.sampled_from((0, 0, 1, 1, 2, 3, 8, 30)))
    return CALL[:at] + draw(st.sampled_from(JUNK) | st.binary(max_size=8)) + CALL[at + lost :]


def is_call(body: bytes) -> bool:
    """Whether it decodes; what decodes has a method and a tuple of arguments."""
    try:
        method, arguments = decode(body)
    except MalformedCallError:
        return False
    assert method
    assert isinstance(method, str)
    assert isinstance(arguments, tuple)
    return True


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_call_or_refused(body: bytes) -> None:
    is_call(body)


@settings(max_examples=300, deadline=None)
@given(damaged())
def test_a_damaged_call_is_a_call_or_refused(body: bytes) -> None:
    is_call(body)


def test_some_damage_leaves_a_call() -> None:
    """Otherwise the property above would only ever see refusals."""
    find(damaged(), lambda body: body != CALL and is_call(body))
    find(damaged(), lambda body: not is_call(body))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=100))
def test_any_text_survives_once_it_is_made_fit(text: str) -> None:
    fit = xml_text(text)
    ((back,), _) = loads(encode(fit))
    assert back == fit.replace("\r\n", "\n").replace("\r", "\n")  # as XML reads line ends
    assert len(fit) == len(text)


def test_control_characters_are_replaced() -> None:
    assert xml_text("a\x00\x1b[2J\t\n\ud800é") == "a??[2J\t\n?é"


def test_a_fault_has_supervisords_text() -> None:
    with pytest.raises(Fault) as caught:
        loads(encode_fault(FaultError(FaultCode.BAD_NAME, "x\x00")))
    assert (caught.value.faultCode, caught.value.faultString) == (10, "BAD_NAME: x?")
    assert str(FaultError(FaultCode.FAILED)) == "FAILED"


def test_numbers_are_capped_to_what_int_can_carry() -> None:
    assert capped(1764420000.9) == 1764420000
    assert capped(1e12) == INT_MAX
    assert capped(-1e12) == -INT_MAX
    encode(capped(1e12))


def test_binary_is_no_text() -> None:
    assert decode(dumps((Binary(b"x"),), "m").encode()) == ("m", (b"x",))
