"""What the watch sees of real trees: small ones of `bash` and the fake engine's."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from supervisor.core.log.rules import rule_index
from supervisor.edge.process import Tree
from supervisor.edge.treewatch import Member, Rules, TreeWatch
from supervisor.edge.treewatch.proc import children, ending, look
from supervisor.edge.treewatch.watch import TITLE_EVERY_LOOKS
from supervisor.events import ProcessSample, RoleDied, TreeSampled
from supervisor.profile import load_profile, profile_names
from tests.edge.conftest import Starter, is_headless, until

PROFILE = load_profile("sglang")
RULES = Rules(PROFILE.roles, PROFILE.compilers, rule_index(PROFILE).canonical)
LIMIT_S = 20.0
SIMULATOR = ("python", "-m", "supervisor.simulator", "--port", "0", "--speed", "500")


@asynccontextmanager
async def watching(tree: Tree) -> AsyncIterator[TreeWatch]:
    async def members() -> list[int]:
        return [process.pid for process in await tree.members()]

    watch = TreeWatch(1, tree.pid, RULES, members, tree.cgroup.cpu_s if tree.cgroup else lambda: None)
    try:
        yield watch
    finally:
        watch.close()


async def sampled(watch: TreeWatch, condition: Callable[[TreeSampled], object]) -> TreeSampled:
    """The first sample for which the condition holds."""
    with anyio.fail_after(LIMIT_S):
        async for sample in watch.samples(lambda: 0.05):
            if condition(sample):
                return sample
    raise AssertionError


def roles(sample: TreeSampled) -> dict[str, ProcessSample]:
    return {f"{one.role} {one.rank}".strip(): one for one in sample.processes if one.role}


def titled(title: str, program: str = "sleep 1000") -> str:
    return f"(exec -a '{title}' {program}) & "


# --- roles ---------------------------------------------------------------------------------------------------------


async def test_the_fake_engine_shows_its_ranks_and_its_detokenizer(start: Starter) -> None:
    tree = await start(*SIMULATOR, "--tp", "2", environment={"PYTHONPATH": str(Path.cwd())})
    async with watching(tree) as watch:
        sample = await sampled(watch, lambda one: len(roles(one)) == 3)
        assert set(roles(sample)) == {"scheduler TP0", "scheduler TP1", "detokenizer"}
        leader = next(one for one in sample.processes if not one.role)
        assert leader.pid == tree.pid
        assert sample.cpu_s > 0
        assert sample.unreadable == 0
        assert [member.role for member in watch.members()][:3] == ["detokenizer", "scheduler", "scheduler"]


@pytest.mark.parametrize(
    ("title", "role", "rank"),
    [
        ("sglang::scheduler", "scheduler", ""),
        ("sglang::scheduler_TP3        ", "scheduler", "TP3"),
        ("sglang::scheduler_DP1_TP0", "scheduler", "DP1 TP0"),
        ("sglang::scheduler_PP1_TP2_EP2", "scheduler", "PP1 TP2"),
        ("sglang::scheduler_DP0_ATTN_CP0_TP1", "scheduler", "DP0 TP1"),
        ("sglang::data_parallel_controller", "controller", ""),
        ("python -m x sglang::scheduler_TP0", "", ""),
    ],
)
def test_a_title_says_role_and_rank_as_the_log_does(title: str, role: str, rank: str) -> None:
    assert RULES.claim(title)[0] == role
    assert set(RULES.claim(title)[1].split()) >= set(rank.split()), "the log's words, whatever the log leaves out"


async def test_a_strangers_title_counts_for_nothing(start: Starter) -> None:
    stranger = subprocess.Popen(["bash", "-c", "exec -a sglang::scheduler_TP9 sleep 1000"])
    try:
        tree = await start("bash", "-c", titled("sglang::scheduler_TP0") + "wait")
        async with watching(tree) as watch:
            sample = await sampled(watch, roles)
            assert set(roles(sample)) == {"scheduler TP0"}
            assert stranger.pid not in {member.pid for member in watch.members()}
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_fork_that_still_has_its_parents_title_is_no_second_rank(start: Starter) -> None:
    """A rank starts a compiler: for a moment the child is called like the rank, and its end must not be news."""
    code = "import os,time; os.fork() or time.sleep(1000); time.sleep(1000)"
    tree = await start("bash", "-c", titled("sglang::scheduler_TP0", f"{sys.executable} -c '{code}'") + "wait")
    async with watching(tree) as watch:
        await sampled(watch, lambda _: len(watch.members()) >= 3)
        sample = await watch.sample()
        assert len([one for one in sample.processes if one.role]) == 1
        twins = [one for one in watch.members() if one.claim == ("scheduler", "TP0")]
        assert [bool(one.role) for one in sorted(twins, key=lambda one: one.pid)] == [True, False]


async def test_an_orphan_of_a_rank_is_no_second_rank(start: Starter) -> None:
    code = "import os,time; os.fork() or (os.fork() and os._exit(0)); time.sleep(1000)"
    tree = await start("bash", "-c", titled("sglang::scheduler_TP0", f"{sys.executable} -c '{code}'") + "wait")
    async with watching(tree) as watch:
        await sampled(watch, lambda _: any(_is_orphan(one, watch) for one in watch.members()))
        sample = await watch.sample()
        assert len([one for one in sample.processes if one.role]) == 1


def _is_orphan(one: Member, watch: TreeWatch) -> bool:
    return one.claim[0] == "scheduler" and one.parent not in {other.pid for other in watch.members()}


def assert_killed(died: RoleDied, expected: RoleDied) -> None:
    """Its signal is known unless its parent was quicker to reap it than we to look."""
    assert died in (expected, replace(expected, code=-signal.SIGKILL))


async def test_a_role_comes_with_the_title_after_the_imports(start: Starter) -> None:
    loop = "while [ ! -e go ]; do sleep 0.02; done"
    tree = await start("bash", "-c", f"({loop}; exec -a sglang::detokenizer sleep 1000) & wait")
    async with watching(tree) as watch:
        assert not roles(await watch.sample())
        Path(tree.spawned.log_path).with_name("go").touch()
        await sampled(watch, lambda one: "detokenizer" in roles(one))


async def test_a_rank_may_come_after_the_role_and_is_told_with_the_death(start: Starter) -> None:
    loop = "while [ ! -e go ]; do sleep 0.02; done"
    met = f"{loop}; exec -a sglang::scheduler_TP3 sleep 1000"
    tree = await start("bash", "-c", f"(exec -a sglang::scheduler bash -c '{met}') & wait; sleep 1000")
    async with watching(tree) as watch:
        ranks = roles(await sampled(watch, roles))
        assert list(ranks) == ["scheduler"]
        Path(tree.spawned.log_path).with_name("go").touch()
        ranks = roles(await sampled(watch, lambda one: "scheduler TP3" in roles(one)))
        victim = ranks["scheduler TP3"].pid
        os.kill(victim, signal.SIGKILL)
        feed = watch.deaths()
        with anyio.fail_after(5):
            assert_killed(await anext(feed), RoleDied(1, victim, "scheduler", "TP3"))
        await feed.aclose()


async def test_a_large_tree_is_looked_at_in_a_thread_with_the_same_result(start: Starter) -> None:
    helpers = "for n in {1..80}; do sleep 1000 & done; "
    tree = await start("bash", "-c", helpers + titled("sglang::scheduler_TP0") + "wait")
    async with watching(tree) as watch:
        sample = await sampled(watch, lambda one: len(watch.members()) == 82 and roles(one))
        assert set(roles(sample)) == {"scheduler TP0"}
        assert len(sample.processes) == 2, "helpers are in the sums alone: the journal keeps every sample"


async def test_samples_of_all_watches_come_at_the_same_moments(start: Starter) -> None:
    tree = await start("sleep", "1000")
    async with watching(tree) as watch:
        moments = []
        with anyio.fail_after(LIMIT_S):
            async for _ in watch.samples(lambda: 0.5):
                moments.append(time.monotonic())
                if len(moments) == 4:
                    break
        assert sum(moment % 0.5 < 0.2 for moment in moments[1:]) >= 2, moments
        assert moments[1] - moments[0] > 0.2, "two looks too close to each other tell nothing"


async def test_compilers_are_counted_by_name(start: Starter, tmp_path: Path) -> None:
    for name in ("cicc", "cudafe++", "innocent"):
        (tmp_path / name).symlink_to("/bin/sleep")
    tree = await start("bash", "-c", "./cicc 1000 & ./cudafe++ 1000 & ./innocent 1000 & wait")
    async with watching(tree) as watch:
        all_are_executed = {"bash", "cicc", "cudafe++", "innocent"}
        sample = await sampled(watch, lambda _: {one.name for one in watch.members()} == all_are_executed)
        assert sample.compilers == 2


# --- states --------------------------------------------------------------------------------------------------------


async def test_a_stopped_rank_is_seen_with_the_next_sample(start: Starter) -> None:
    tree = await start(*SIMULATOR, "--tp", "2", environment={"PYTHONPATH": str(Path.cwd())})
    async with watching(tree) as watch:
        rank = roles(await sampled(watch, lambda one: len(roles(one)) == 3))["scheduler TP1"]
        os.kill(rank.pid, signal.SIGSTOP)
        # The kernel stops it at its next return to user space, which a crowded machine can put off for a moment.
        stopped = roles(await sampled(watch, lambda one: roles(one)["scheduler TP1"].state == "T"))
        assert stopped["scheduler TP0"].state in "RSD"
        os.kill(rank.pid, signal.SIGCONT)
        await sampled(watch, lambda one: roles(one)["scheduler TP1"].state in "RS")


async def test_a_zombie_rank_stays_visible_until_it_is_reaped(start: Starter, cgroup: object) -> None:
    tree = await start("bash", "-c", titled("sglang::scheduler_TP0") + "exec sleep 1000", cgroup=cgroup)
    async with watching(tree) as watch:
        rank = roles(await sampled(watch, roles))["scheduler TP0"]
        os.kill(rank.pid, signal.SIGKILL)
        sample = await sampled(watch, lambda one: roles(one)["scheduler TP0"].state == "Z")
        assert sample.unreadable == 0


# Its first thread ends once it is told to: the process serves on, and /proc calls it a zombie without a title.
HEADLESS = (
    "import ctypes,os,signal,threading,time\n"
    "def end():\n"
    "    while not os.path.exists('go'): time.sleep(0.02)\n"
    "    ctypes.CDLL(None).pthread_exit(None)\n"
    "threading.Thread(target=signal.pause).start()\n"
    "end()"
)


async def test_a_rank_whose_first_thread_has_ended_lives_on(start: Starter, cgroup: object) -> None:
    """Taken for dead it was counted no more, and the evidence of its stall left it out."""
    tree = await start(
        "bash",
        "-c",
        f'(exec -a sglang::scheduler_TP0 {sys.executable} -c "{HEADLESS}") & exec sleep 1000',
        cgroup=cgroup,
    )
    async with watching(tree) as watch:
        rank = roles(await sampled(watch, roles))["scheduler TP0"]
        Path(tree.spawned.log_path).with_name("go").touch()
        sample = await sampled(watch, lambda one: roles(one)["scheduler TP0"].state == "Z")
        for _ in range(2 * TITLE_EVERY_LOOKS):
            sample = await watch.sample()
        assert sample.members == 2
        assert sample.unreadable == 0
        member = next(one for one in watch.members() if one.pid == rank.pid)
        assert (member.alive, member.role, member.rank) == (True, "scheduler", "TP0")
        assert member.title.startswith("sglang::scheduler_TP0"), "as it was: nobody can read it now"
        feed = watch.deaths()
        os.kill(rank.pid, signal.SIGKILL)
        with anyio.fail_after(LIMIT_S):
            assert_killed(await anext(feed), RoleDied(1, rank.pid, "scheduler", "TP0"))
        await feed.aclose()
        dead = await watch.sample()
        assert dead.members == 1


async def test_a_process_seen_first_without_its_first_thread_has_its_role_by_name(start: Starter) -> None:
    code = (
        "import ctypes,os,signal,threading\nlibc=ctypes.CDLL(None)\n"
        "if os.fork(): signal.pause()\n"
        "libc.prctl(15,b'sglang::schedul',0,0,0)\n"
        "threading.Thread(target=signal.pause).start()\nlibc.pthread_exit(None)"
    )
    tree = await start("python", "-c", code)
    with anyio.fail_after(LIMIT_S):
        while not any(one.process.headless for one in look(children(tree.pid))):
            await anyio.sleep(0.01)
    async with watching(tree) as watch:
        sample = await watch.sample()
        assert list(roles(sample)) == ["scheduler"]
        assert sample.members == 2


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_descriptor_to_look_with_nobody_is_taken_for_gone(start: Starter) -> None:
    tree = await start("bash", "-c", titled("sglang::scheduler_TP0") + "wait")
    told: list[TreeSampled] = []

    async def collect(watch: TreeWatch) -> None:
        async for sample in watch.samples(lambda: 0.05):
            told.append(sample)  # noqa: PERF401 - while it runs

    async with watching(tree) as watch:
        before = await sampled(watch, roles)
        async with anyio.create_task_group() as tasks:
            with no_descriptors():
                tasks.start_soon(collect, watch)
                for _ in range(3):  # the feed looks between two of these: one after the other may
                    with pytest.raises(OSError, match="Too many open files"):
                        await watch.sample()
            assert not told
            assert [one.pid for one in watch.members() if one.role] == [one.pid for one in roles(before).values()]
            await until(lambda: told)
            tasks.cancel_scope.cancel()
        assert roles(told[0]).keys() == roles(before).keys()
        assert told[0].members == before.members


# --- sums ----------------------------------------------------------------------------------------------------------


async def test_sums_never_fall_when_processes_end(start: Starter, cgroup: object, tmp_path: Path) -> None:
    code = (
        "import os,time; f=os.open('data',os.O_CREAT|os.O_WRONLY); os.write(f,bytes(1<<20)); os.fsync(f)\n"
        "until=time.process_time()+0.3\nwhile time.process_time()<until: pass\n"
        "open('done','w'); time.sleep(1000)"
    )
    tree = await start("bash", "-c", f'{sys.executable} -c "{code}" & wait; sleep 1000', cgroup=cgroup)
    async with watching(tree) as watch:
        full = await sampled(watch, lambda one: (tmp_path / "done").exists() and one.cpu_s >= 0.3)
        (worker,) = (one for one in watch.members() if one.pid != tree.pid)
        os.kill(worker.pid, signal.SIGKILL)
        after = await sampled(watch, lambda _: worker.pid not in {one.pid for one in watch.members()})
        assert after.cpu_s >= full.cpu_s
        assert after.write_bytes >= full.write_bytes
        assert after.read_bytes >= full.read_bytes


async def test_what_may_not_be_looked_at_is_counted_and_not_guessed(start: Starter) -> None:
    """Another user's IO, asked for without being root; a child of ours looks, since we are."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give up")
    tree = await start("sleep", "1000")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setresuid(65534, 65534, 65534)
            (seen,) = look([tree.pid])
            os.write(writing, b"none" if seen.transfer is None else b"some")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"none"
    os.close(reading)
    os.close(writing)


async def test_a_process_that_is_gone_is_no_error(start: Starter) -> None:
    tree = await start("true")
    await tree.exited()
    assert look([tree.pid, 2**22 + 1]) == []
    async with watching(tree) as watch:
        sample = await watch.sample()
        assert sample.processes == ()
        with anyio.fail_after(1):
            assert [event async for event in watch.deaths()] == [], "a leader that is gone ends the feed"


# --- deaths --------------------------------------------------------------------------------------------------------


async def test_the_death_of_a_detokenizer_is_known_within_200_ms(start: Starter) -> None:
    tree = await start(*SIMULATOR, "--tp", "2", environment={"PYTHONPATH": str(Path.cwd())})
    async with watching(tree) as watch:
        victim = roles(await sampled(watch, lambda one: len(roles(one)) == 3))["detokenizer"]
        feed = watch.deaths()
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        with anyio.fail_after(5):
            died = await anext(feed)
        took_s = time.monotonic() - killed_at
        await feed.aclose()
        assert_killed(died, RoleDied(1, victim.pid, "detokenizer"))
        assert took_s < 0.2, f"known after {took_s * 1000:.0f} ms"


async def test_one_dead_scheduler_under_a_controller_is_told_with_its_rank(start: Starter) -> None:
    inner = titled("sglang::scheduler_DP0_TP0") + titled("sglang::scheduler_DP1_TP0") + "wait"
    tree = await start("bash", "-c", f'bash -c "exec -a sglang::data_parallel_controller bash -c \\"{inner}\\"" & wait')
    async with watching(tree) as watch:
        ranks = roles(await sampled(watch, lambda one: len(roles(one)) == 3))
        victim = ranks["scheduler DP1 TP0"]
        os.kill(victim.pid, signal.SIGKILL)
        feed = watch.deaths()
        with anyio.fail_after(5):
            assert_killed(await anext(feed), RoleDied(1, victim.pid, "scheduler", "DP1 TP0"))
        await feed.aclose()


async def test_several_deaths_at_once_are_all_told_and_each_once(start: Starter) -> None:
    tree = await start("bash", "-c", "".join(titled(f"sglang::scheduler_TP{n}") for n in range(4)) + "wait; sleep 1000")
    async with watching(tree) as watch:
        ranks = roles(await sampled(watch, lambda one: len(roles(one)) == 4))
        for rank in ranks.values():
            os.kill(rank.pid, signal.SIGKILL)
        feed, told = watch.deaths(), []
        with anyio.fail_after(5):
            while len(told) < 4:
                told.append((await anext(feed)).rank)
        await watch.sample()  # what has died is not watched again
        with anyio.move_on_after(0.2) as silence:
            await anext(feed)
        assert silence.cancelled_caught
        assert sorted(told) == ["TP0", "TP1", "TP2", "TP3"]


@pytest.mark.parametrize("whole", [True, False], ids=["everybody", "leader"])
async def test_a_tree_that_is_killed_makes_no_noise(start: Starter, whole: bool) -> None:
    """The kill of all, in the worst order, or of a leader whose ranks ask to die with it."""
    tree = await start(*SIMULATOR, "--tp", "2", environment={"PYTHONPATH": str(Path.cwd())})
    async with watching(tree) as watch:
        ranks = roles(await sampled(watch, lambda one: len(roles(one)) == 3))
        victims = [one.pid for one in ranks.values()] * whole + [tree.pid]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(5):
            assert [event async for event in watch.deaths()] == []


# Has ended its first thread, as a killed leader of many threads has before all of it is gone; a child asks to die with it.
LEADER_ENDING = """
import ctypes, os, signal, threading
libc = ctypes.CDLL(None)
if os.fork() == 0:
    os.execvp("bash", ["sglang::scheduler_TP0", "-c", "sleep 1000; :"])
threading.Thread(target=signal.pause).start()
libc.pthread_exit(None)
"""


async def test_whom_an_ending_leader_takes_along_did_not_end_first_although_he_is_seen_first(start: Starter) -> None:
    tree = await start(sys.executable, "-c", LEADER_ENDING)
    await until(lambda: is_headless(tree.pid))
    async with watching(tree) as watch:
        rank = roles(await sampled(watch, roles))["scheduler TP0"]
        told: list[RoleDied] = []

        async def listen() -> None:
            told.extend([event async for event in watch.deaths()])

        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                os.kill(rank.pid, signal.SIGKILL)
                await until(lambda: not is_alive(rank))
                os.kill(tree.pid, signal.SIGKILL)
        assert (told, watch.first_death) == ([], None)


# With many threads and much memory, and a child that asks to die with it (PR_SET_PDEATHSIG).
SLOW_TO_DIE = """
import ctypes, mmap, os, threading, time
if os.fork() == 0:
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    os.execvp("bash", ["sglang::scheduler_TP0", "-c", "sleep 1000; :"])
memory = mmap.mmap(-1, 256 << 20)
memory[::4096] = bytes(65536)
for _ in range(40):
    threading.Thread(target=time.sleep, args=(1000,)).start()
"""


async def test_a_leader_that_dies_slowly_is_the_first_who_died(start: Starter) -> None:
    """Its rank is gone at once, long before the leader's own end is known."""
    for _ in range(3):
        tree = await start(sys.executable, "-c", SLOW_TO_DIE)
        async with watching(tree) as watch:
            await sampled(watch, roles)
            await until(lambda: len(os.listdir(f"/proc/{tree.pid}/task")) > 40)  # noqa: B023 -- called at once
            os.kill(tree.pid, signal.SIGKILL)
            with anyio.fail_after(LIMIT_S):
                assert [event async for event in watch.deaths()] == []
            assert watch.first_death is None


async def test_who_ends_while_its_leader_goes_on_was_the_first(start: Starter) -> None:
    tree = await start("bash", "-c", titled("sglang::scheduler_TP0") + "wait; sleep 1000")
    async with watching(tree) as watch:
        rank = roles(await sampled(watch, roles))["scheduler TP0"]
        feed = watch.deaths()
        os.kill(rank.pid, signal.SIGKILL)
        with anyio.fail_after(LIMIT_S):
            assert_killed(await anext(feed), RoleDied(1, rank.pid, "scheduler", "TP0"))
            os.kill(tree.pid, signal.SIGKILL)
            assert [event async for event in feed] == []
        assert watch.first_death is not None
        assert_killed(watch.first_death, RoleDied(1, rank.pid, "scheduler", "TP0"))


async def test_a_process_is_ending_long_before_it_has_ended(start: Starter, headless: int) -> None:
    tree = await start("sleep", "1000")
    assert not ending(tree.pid)
    os.kill(tree.pid, signal.SIGSTOP)
    assert not ending(tree.pid)
    os.kill(tree.pid, signal.SIGKILL)
    assert ending(tree.pid), "before anybody has reaped it"
    await tree.exited()
    assert ending(tree.pid)
    assert ending(headless)


def is_alive(one: ProcessSample) -> bool:
    return any(seen.process.alive for seen in look([one.pid]))


async def test_descriptors_are_given_back(start: Starter) -> None:
    tree = await start("bash", "-c", "".join(titled(f"sglang::scheduler_TP{n}") for n in range(4)) + "wait")
    before = len(os.listdir("/proc/self/fd"))
    async with watching(tree) as watch:
        await sampled(watch, lambda one: len(roles(one)) == 4)
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) <= before


# --- price ---------------------------------------------------------------------------------------------------------


async def test_a_look_at_twenty_processes_costs_about_a_millisecond(start: Starter) -> None:
    tree = await start("bash", "-c", "for n in {1..19}; do sleep 1000 & done; wait")
    async with watching(tree) as watch:
        await sampled(watch, lambda _: len(watch.members()) == 20)
        pids = [one.pid for one in watch.members()]
        costs_s = []
        for _ in range(20):
            before_s = time.thread_time()
            assert len(look(pids)) == 20
            costs_s.append(time.thread_time() - before_s)
        assert min(costs_s) < 0.002, f"{min(costs_s) * 1000:.2f} ms"


# --- those that ended before anybody had seen them -------------------------------------------------------------------

# Starts a child that takes the title's beginning as its name (PR_SET_NAME) and ends; then stays without reaping it.
UNREAPED = """
import ctypes, os, signal, sys, time
def named(name):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
named(sys.argv[2])
if os.fork() == 0:
    named(sys.argv[1])
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""


@pytest.mark.parametrize("in_cgroup", [False, True])
async def test_a_rank_that_ended_before_the_first_look_is_told_with_its_signal(
    start: Starter, cgroup: object, in_cgroup: bool
) -> None:
    tree = await start(
        sys.executable, "-c", UNREAPED, "sglang::scheduler_TP1", "python", cgroup=cgroup if in_cgroup else None
    )
    async with watching(tree) as watch:
        zombie = roles(await sampled(watch, roles))["scheduler"]
        assert zombie.state == "Z"
        feed = watch.deaths()
        with anyio.fail_after(LIMIT_S):
            assert await anext(feed) == RoleDied(1, zombie.pid, "scheduler", code=-signal.SIGKILL)
        await feed.aclose()


async def test_a_dead_fork_with_its_parents_name_and_a_dead_nobody_have_no_role(start: Starter) -> None:
    twin = await start(sys.executable, "-c", UNREAPED, "sglang::scheduler_TP1", "sglang::scheduler_TP1")
    nobody = await start(sys.executable, "-c", UNREAPED, "ninja", "python")
    for tree in (twin, nobody):
        async with watching(tree) as watch:
            with anyio.fail_after(LIMIT_S):
                while not any(one.process.state == "Z" for one in look(children(tree.pid))):
                    await anyio.sleep(0.01)
            assert not roles(await watch.sample())


@pytest.mark.parametrize(
    ("profile", "name", "role"),
    [
        ("sglang", "sglang::schedul", "scheduler"),
        ("sglang", "sglang::detoken", "detokenizer"),
        ("sglang", "sglang::data_pa", "controller"),
        ("sglang", "python3", ""),
        ("vllm", "VLLM::Worker_TP", "scheduler"),
        ("vllm", "VLLM::EngineCor", "engine-core"),
        ("vllm", "VLLM::DPCoordin", "controller"),
    ],
)
def test_what_the_kernel_keeps_of_a_title_says_the_role(profile: str, name: str, role: str) -> None:
    assert Rules(load_profile(profile).roles).role_named(name) == role


def test_every_role_of_a_profile_can_be_told_by_name() -> None:
    for profile in map(load_profile, profile_names()):
        for rule in profile.roles:
            assert Rules(profile.roles).role_named(rule.name[:15]) == rule.role
            assert re.search(rule.title, rule.name)
