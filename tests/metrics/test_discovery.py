"""Only engines whose metrics answer are named, at an address that whoever asked can reach."""

from __future__ import annotations

import pytest

from supervisor.config import Config, ServerConfig
from supervisor.metrics.discovery import Target, targets
from supervisor.snapshot import VoteView
from tests.metrics import fleet


def found(host: str = "gpu7:9877", *, command: tuple[str, ...] = fleet.COMMAND, **fields: object) -> tuple[Target, ...]:
    control = fleet.control(fleet.running(**fields))
    control.configuration = Config(servers={"qwen3-32b": ServerConfig("qwen3-32b", command)})
    return targets(control, host)


def test_an_engine_that_answers_is_named_with_its_labels() -> None:
    (target,) = found()

    assert target.targets == ("gpu7:30001",)
    assert target.labels == {"server": "qwen3-32b", "model": fleet.MODEL, "gpus": "8", "__metrics_path__": "/metrics"}


def test_one_that_has_no_metrics_is_not() -> None:
    assert found(votes=(VoteView("engine", "unknown", None, "no counters (its /metrics is off)"),)) == ()
    assert found(votes=()) == ()
    assert found(port=0) == ()


def test_one_that_does_not_run_is_not() -> None:
    assert targets(fleet.control(fleet.starting(), fleet.fatal()), "gpu7") == ()


@pytest.mark.parametrize(
    ("asked", "reached"),
    [
        ("gpu7.example.org:9877", "gpu7.example.org"),
        ("127.0.0.1:9877", "127.0.0.1"),
        ("[::1]:9877", "[::1]"),
        ("", "127.0.0.1"),
        ("evil/path", "127.0.0.1"),
        ('a"b:1', "127.0.0.1"),
        ("user@host", "127.0.0.1"),
    ],
)
def test_an_engine_that_listens_everywhere_is_reached_where_we_were(asked: str, reached: str) -> None:
    (target,) = found(asked)

    assert target.targets == (f"{reached}:30001",)


@pytest.mark.parametrize(("host", "reached"), [("10.1.2.3", "10.1.2.3"), ("::1", "[::1]"), ("127.0.0.1", "127.0.0.1")])
def test_one_that_listens_somewhere_is_reached_there(host: str, reached: str) -> None:
    (target,) = found(command=("python", "-m", "sglang.launch_server", "--host", host))

    assert target.targets == (f"{reached}:30001",)
