"""Ports are held for one server of ours at a time, from its first look until it rests."""

from __future__ import annotations

from supervisor.ports import PortUse
from supervisor.shell.portbook import PortBook

HTTP, NCCL = PortUse(30000, "requests"), PortUse(7000, "NCCL")


def test_what_one_server_holds_another_one_does_not_get() -> None:
    book = PortBook()
    assert book.claim("kimi", (HTTP, NCCL)) == []
    assert book.claim("glm", (PortUse(7000, "requests"),)) == ["port 7000 (requests) belongs to server kimi"]
    assert book.claim("kimi", (HTTP, NCCL)) == [], "its own again, at each look"


def test_a_refused_claim_holds_nothing() -> None:
    book = PortBook()
    book.claim("kimi", (NCCL,))
    assert book.claim("glm", (HTTP, NCCL))
    assert book.claim("qwen", (HTTP,)) == []


def test_who_rests_holds_nothing() -> None:
    book = PortBook()
    book.claim("kimi", (HTTP,))
    book.release("kimi")
    book.release("never seen")
    assert book.claim("glm", (HTTP,)) == []
