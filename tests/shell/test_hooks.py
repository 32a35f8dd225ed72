"""Hooks are told in order and never waited for; a start is refused, delayed or let through by before_start."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import structlog.testing

from supervisor.actions import Announce
from supervisor.config import HookEvent, HooksConfig
from supervisor.edge.webhook import Messenger, Sent
from supervisor.events import DevicesChecked
from supervisor.shell.gate import Gate
from supervisor.shell.guard import log_bug
from supervisor.shell.hooks import QUEUED_MAX, Hooks, Outputs
from supervisor.snapshot import ServerSnapshot
from tests.shell.made import snapshot

LIMIT_S = 20.0


class Receiver(Messenger):
    """Answers what the test says, one after the other, then that all is well."""

    def __init__(self, *answers: Sent) -> None:
        super().__init__()
        self.answers = list(answers)
        self.got: list[dict[str, object]] = []
        self.urls: list[str] = []

    async def send(self, url: str, headers: object, body: bytes) -> Sent:
        self.urls.append(url)
        self.got.append(json.loads(body))
        return self.answers.pop(0) if self.answers else Sent()


def change(after: str, facet: str = "lifecycle", reason: str = "because") -> Announce:
    return Announce(facet, "starting", after, reason, attempt=7)


def kimi() -> ServerSnapshot:
    return snapshot("kimi", attempt=7, pid=4711, port=30000, gpus=(0, 1), log_path="/log/kimi/000007.log")


@asynccontextmanager
async def telling(
    place: Path, receiver: Messenger | None = None, everywhere: HooksConfig | None = None
) -> AsyncIterator[Hooks]:
    """Running hooks; at the end of the block all that was noted has been told."""
    hooks = Hooks(place, receiver or Receiver(), everywhere or HooksConfig(), first_pause_s=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hooks.run)
        yield hooks
        with anyio.fail_after(LIMIT_S):
            await hooks.last_words(LIMIT_S)
        tasks.cancel_scope.cancel()


def script(text: str, **options: object) -> HooksConfig:
    return HooksConfig(on_change=("sh", "-c", text), **options)  # type: ignore[arg-type]


# --- commands -------------------------------------------------------------------------------------------------------


async def test_a_command_gets_what_happened(tmp_path: Path) -> None:
    own = script(f"env | grep ^SGLSUP_ > {tmp_path}/told")

    async with telling(tmp_path) as hooks:
        hooks.changed(own, change("fatal", reason="no restart can help"), kimi)

    told = dict(line.split("=", 1) for line in (tmp_path / "told").read_text().splitlines())
    assert (
        told.items()
        >= {
            "SGLSUP_EVENT": "fatal",
            "SGLSUP_SERVER": "kimi",
            "SGLSUP_FACET": "lifecycle",
            "SGLSUP_FROM": "starting",
            "SGLSUP_TO": "fatal",
            "SGLSUP_REASON": "no restart can help",
            "SGLSUP_ATTEMPT": "7",
            "SGLSUP_PID": "4711",
            "SGLSUP_PORT": "30000",
            "SGLSUP_GPUS": "0,1",
            "SGLSUP_LOG": "/log/kimi/000007.log",
        }.items()
    )


async def test_only_chosen_events_are_told(tmp_path: Path) -> None:
    own = script(f'echo "$SGLSUP_EVENT" >> {tmp_path}/told', events=(HookEvent.FATAL, HookEvent.STALLED))

    async with telling(tmp_path) as hooks:
        hooks.changed(own, change("running"), kimi)
        hooks.changed(own, change("stalled", facet="verdict"), kimi)
        hooks.changed(own, change("fatal", facet="phase"), kimi)
        hooks.changed(own, change("fatal"), kimi)

    assert (tmp_path / "told").read_text().split() == ["stalled", "fatal"]


async def test_a_servers_news_are_told_in_order(tmp_path: Path) -> None:
    own = script(f'echo "$SGLSUP_REASON" >> {tmp_path}/told')

    async with telling(tmp_path) as hooks:
        for number in range(12):
            hooks.changed(own, change("running", reason=str(number)), kimi)

    assert (tmp_path / "told").read_text().split() == [str(number) for number in range(12)]


async def test_hooks_of_all_servers_come_before_the_servers_own(tmp_path: Path) -> None:
    everywhere, own = (script(f"echo {who} >> {tmp_path}/told") for who in ("everywhere", "own"))

    async with telling(tmp_path, everywhere=everywhere) as hooks:
        hooks.changed(own, change("running"), kimi)

    assert (tmp_path / "told").read_text().split() == ["everywhere", "own"]


async def test_the_last_output_of_each_event_is_kept(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as said:
        async with telling(tmp_path) as hooks:
            hooks.changed(script("echo first; echo mail server is down; exit 4"), change("fatal"), kimi)

    kept = (tmp_path / "kimi" / "fatal.out").read_text()
    assert kept.startswith("first\nmail server is down\n")
    assert "[exit status 4 after " in kept
    assert [(line["event"], line["status"], line["said"]) for line in said] == [
        ("hook failed", 4, "mail server is down")
    ]


async def test_a_hook_that_hangs_holds_up_neither_others_nor_us(tmp_path: Path) -> None:
    own = script("sleep 1000", timeout_s=0.3)
    other = script(f"echo told > {tmp_path}/other")

    async with telling(tmp_path) as hooks:
        hooks.changed(own, change("fatal"), kimi)
        hooks.changed(other, change("fatal"), lambda: snapshot("other"))
        with anyio.fail_after(LIMIT_S):
            while not (tmp_path / "other").exists():
                await anyio.sleep(0.01)

    assert "was ended: it took longer than 0.3 s" in (tmp_path / "kimi" / "fatal.out").read_text()


async def test_with_too_many_news_the_oldest_are_dropped_and_counted(tmp_path: Path) -> None:
    own = script(f'echo "$SGLSUP_REASON" >> {tmp_path}/told')
    hooks = Hooks(tmp_path, Receiver())
    for number in range(QUEUED_MAX + 5):
        hooks.changed(own, change("running", reason=str(number)), kimi)

    with structlog.testing.capture_logs() as said:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hooks.run)
            await hooks.last_words(LIMIT_S * 2)
            tasks.cancel_scope.cancel()

    assert (tmp_path / "told").read_text().split()[0] == "5"
    assert [line["lost"] for line in said if line["event"] == "hooks are too slow"] == [5]


async def test_nothing_configured_costs_nothing(tmp_path: Path) -> None:
    def never() -> ServerSnapshot:
        raise AssertionError("no snapshot is made for nobody")

    async with telling(tmp_path) as hooks:
        hooks.changed(HooksConfig(), change("fatal"), never)
        hooks.changed(script("true"), change("draft-weights", facet="phase"), never)


# --- webhooks -------------------------------------------------------------------------------------------------------


async def test_a_webhook_gets_the_same_as_json(tmp_path: Path) -> None:
    receiver = Receiver()

    async with telling(tmp_path, receiver) as hooks:
        hooks.changed(HooksConfig(webhook="https://hooks/x"), change("fatal"), kimi)

    (got,) = receiver.got
    assert (got["event"], got["server"], got["reason"], got["attempt"]) == ("fatal", "kimi", "because", 7)
    assert got["gpus"] == [0, 1]


async def test_a_webhook_that_is_away_is_tried_again(tmp_path: Path) -> None:
    receiver = Receiver(Sent("answered 503", again=True), Sent("cannot be reached: x", again=True))

    with structlog.testing.capture_logs() as said:
        async with telling(tmp_path, receiver) as hooks:
            hooks.changed(HooksConfig(webhook="https://hooks/x"), change("fatal"), kimi)

    assert len(receiver.got) == 3
    assert said == []


@pytest.mark.parametrize(
    ("answer", "tries"), [(Sent("answered 500", again=True), 6), (Sent("answered 404"), 1)], ids=["sick", "gone"]
)
async def test_a_webhook_that_takes_nothing_is_given_up_and_said(tmp_path: Path, answer: Sent, tries: int) -> None:
    receiver = Receiver(*[answer] * 20)

    with structlog.testing.capture_logs() as said:
        async with telling(tmp_path, receiver) as hooks:
            hooks.changed(HooksConfig(webhook="https://hooks/SECRET"), change("fatal"), kimi)

    assert len(receiver.got) == tries
    (line,) = said
    assert (line["event"], line["problem"], line["tries"]) == ("webhook failed", answer.problem, tries)
    assert "SECRET" not in json.dumps(line)


async def test_a_webhook_that_hangs_does_not_keep_the_command_from_knowing(tmp_path: Path) -> None:
    class Silent(Messenger):
        async def send(self, url: str, headers: object, body: bytes) -> Sent:
            await anyio.sleep_forever()
            raise AssertionError

    both = script(f"echo told > {tmp_path}/told", webhook="https://hooks/x")
    hooks = Hooks(tmp_path, Silent())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hooks.run)
        hooks.changed(both, change("fatal"), kimi)
        with anyio.fail_after(LIMIT_S):
            while not (tmp_path / "told").exists():
                await anyio.sleep(0.01)
        await hooks.last_words(0.1)  # the end of the daemon does not wait for it either
        tasks.cancel_scope.cancel()


# --- before_start ---------------------------------------------------------------------------------------------------

FREE = DevicesChecked(3, True)


@asynccontextmanager
async def gate(
    place: Path, *hooks: HooksConfig, answer_s: float = LIMIT_S
) -> AsyncIterator[Callable[..., Awaitable[DevicesChecked]]]:
    """`await look()` answers as the shell does, one look at a time."""
    async with anyio.create_task_group() as tasks:
        one = Gate("kimi", hooks, Outputs(place), tasks, log_bug, answer_s=answer_s)

        async def look(found: DevicesChecked = FREE, *, start: bool = True) -> DevicesChecked:
            with anyio.fail_after(LIMIT_S):
                return await one.judge(found, start=start, port=30000, gpus=(2, 3))

        yield look
        tasks.cancel_scope.cancel()


def asks(text: str, timeout_s: float = 20.0) -> HooksConfig:
    return HooksConfig(before_start=("sh", "-c", text), timeout_s=timeout_s)


async def test_a_start_passes_when_the_hook_agrees(tmp_path: Path) -> None:
    async with gate(tmp_path, asks(f"env | grep ^SGLSUP_ > {tmp_path}/told")) as look:
        assert await look() == FREE

    told = dict(line.split("=", 1) for line in (tmp_path / "told").read_text().splitlines())
    assert (told["SGLSUP_EVENT"], told["SGLSUP_SERVER"], told["SGLSUP_GPUS"]) == ("before_start", "kimi", "2,3")
    assert told["SGLSUP_ATTEMPT"] == "3"


async def test_a_start_is_refused_with_the_hooks_last_line(tmp_path: Path) -> None:
    async with gate(tmp_path, asks("echo looking; echo /models is not mounted; exit 1")) as look:
        answer = await look()

    assert (answer.clean, answer.refuse) == (False, True)
    assert answer.reason == "the before_start hook refuses: /models is not mounted"


async def test_status_75_has_the_start_wait_and_asks_again(tmp_path: Path) -> None:
    hook = asks(f"test -e {tmp_path}/mounted || {{ echo not yet; exit 75; }}")
    async with gate(tmp_path, hook) as look:
        first = await look()
        (tmp_path / "mounted").touch()
        second = await look()

    assert (first.clean, first.waiting, first.refuse) == (False, True, False)
    assert second == FREE


async def test_a_hook_that_takes_its_time_has_the_start_wait(tmp_path: Path) -> None:
    async with gate(tmp_path, asks(f"while ! test -e {tmp_path}/go; do sleep 0.02; done"), answer_s=0.1) as look:
        first = await look()
        (tmp_path / "go").touch()
        with anyio.fail_after(LIMIT_S):
            while (last := await look()).waiting:
                pass

    assert (first.waiting, first.reason) == (True, "the before_start hook is running")
    assert last == FREE


async def test_a_hook_that_never_ends_refuses(tmp_path: Path) -> None:
    async with gate(tmp_path, asks("sleep 1000", timeout_s=0.2)) as look:
        answer = await look()

    assert answer.refuse
    assert "took longer than 0.2 s" in answer.reason


async def test_a_hook_that_cannot_be_run_refuses(tmp_path: Path) -> None:
    """An operator who wrote a check wants no start without it."""
    async with gate(tmp_path, HooksConfig(before_start=("/no/such/check",))) as look:
        answer = await look()

    assert answer.refuse
    assert "cannot run /no/such/check: No such file" in answer.reason


async def test_the_first_refusal_of_several_counts(tmp_path: Path) -> None:
    hooks = asks("echo first; exit 1"), asks(f"touch {tmp_path}/second")
    async with gate(tmp_path, *hooks) as look:
        answer = await look()

    assert answer.reason.endswith("first")
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("found", "start"),
    [(DevicesChecked(3, False, "busy"), True), (FREE, False)],
    ids=["devices are taken", "nobody wants a start"],
)
async def test_nothing_is_asked_without_need(tmp_path: Path, found: DevicesChecked, start: bool) -> None:
    async with gate(tmp_path, asks(f"touch {tmp_path}/asked")) as look:
        assert await look(found, start=start) == found

    assert not (tmp_path / "asked").exists()


async def test_each_start_is_asked_for_anew(tmp_path: Path) -> None:
    async with gate(tmp_path, asks(f"echo once >> {tmp_path}/asked")) as look:
        await look()
        await look()

    assert (tmp_path / "asked").read_text().split() == ["once", "once"]


async def test_unknown_devices_do_not_spare_the_question(tmp_path: Path) -> None:
    async with gate(tmp_path, asks("exit 1")) as look:
        assert (await look(DevicesChecked(3, None))).refuse


async def test_without_a_hook_everything_passes(tmp_path: Path) -> None:
    async with gate(tmp_path) as look:
        assert await look() == FREE
