"""A leader starts exactly as planned, or the daemon learns which step failed and whether trying again can help."""

from __future__ import annotations

import errno
import os
import pwd
import re
import resource
import signal
import stat
import sys
from pathlib import Path

import anyio
import pytest

from supervisor.edge.cgroup import CgroupRoot, ServerCgroup
from supervisor.edge.process import Limit, Tree, ignore_orphan_signals, new_marker, protect_from_oom, spawn
from supervisor.edge.process.launch import server_score
from supervisor.events import Exited
from tests.edge.conftest import Starter, plan_for, spawn_refused

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


async def output(tree: Tree) -> str:
    with anyio.fail_after(20):
        await tree.exited()
    return Path(tree.spawned.log_path).read_text()


async def test_the_exit_status_is_the_commands_own(start: Starter, cgroup: ServerCgroup | None) -> None:
    tree = await start("sh", "-c", "exit 7", cgroup=cgroup)
    assert await tree.exited() == Exited(1, 7)


async def test_127_is_an_exit_status_like_any_other(start: Starter) -> None:
    """What a shell says of a command that it cannot find is no failed spawn when the server itself says it."""
    tree = await start("sh", "-c", "exit 127")
    assert await tree.exited() == Exited(1, 127)


async def test_death_by_signal_is_a_negative_code(start: Starter) -> None:
    tree = await start("sh", "-c", "kill -SEGV $$")
    assert await tree.exited() == Exited(1, -signal.SIGSEGV)


async def test_the_leader_has_its_own_session_and_no_terminal(start: Starter) -> None:
    tree = await start("sleep", "600")
    assert os.getsid(tree.pid) == tree.pid
    assert os.getpgid(tree.pid) == tree.pid
    assert os.readlink(f"/proc/{tree.pid}/fd/0") == os.devnull


async def test_the_spawned_event_identifies_the_leader(start: Starter, cgroup: ServerCgroup | None) -> None:
    tree = await start("sleep", "600", cgroup=cgroup)
    after_name = Path(f"/proc/{tree.pid}/stat").read_text().rpartition(")")[2].split()
    assert tree.spawned.start_ticks == int(after_name[19])
    assert tree.spawned.cgroup == (cgroup.path if cgroup else "")


async def test_it_is_in_its_cgroup_before_its_first_instruction(start: Starter, cgroup_root: CgroupRoot) -> None:
    cgroup = cgroup_root.server("early")
    cgroup.prepare()
    tree = await start("cat", "/proc/self/cgroup", cgroup=cgroup)
    assert re.search(r"^0::/.*servers/early$", await output(tree), re.MULTILINE)


async def test_stdout_and_stderr_append_to_one_file(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("before\n")
    tree = await start("sh", "-c", "echo out; echo err >&2")
    assert await output(tree) == "before\nout\nerr\n"


async def test_the_environment_is_the_plans_and_the_marker(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, "env", environment={"ODD": "a=b\nc", "EMPTY": ""})
    tree = await spawn(plan)
    assert isinstance(tree, Tree)
    lines = (await output(tree)).replace("a=b\nc", "a=b c").splitlines()
    assert sorted(lines) == sorted([
        f"PATH={os.environ['PATH']}", f"SGLSUP_TEST_RUN={os.environ['SGLSUP_TEST_RUN']}", f"SGLSUP_TREE={plan.marker}",
        "ODD=a=b c", "EMPTY=",
    ])  # fmt: skip
    tree.close()


async def test_a_large_environment_and_command_pass_whole(start: Starter) -> None:
    """More than a pipe holds (64 KiB): nobody must wait for the launcher to read it."""
    big = {f"VARIABLE_{number}": "x" * 1000 for number in range(200)}
    tree = await start("sh", "-c", 'echo "$#" ${#VARIABLE_199}', "sh", *["word"] * 5000, environment=big)
    assert await output(tree) == "5000 1000\n"


async def test_no_descriptor_of_the_daemon_reaches_the_server(start: Starter) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # as one that the daemon inherited itself
    try:
        tree = await start("sh", "-c", "ls /proc/$$/fd")
        assert (await output(tree)).split() == ["0", "1", "2"]
    finally:
        os.close(reading)
        os.close(writing)


async def test_signals_that_the_daemon_ignores_are_not_ignored_by_the_server(start: Starter) -> None:
    before = signal.getsignal(signal.SIGQUIT)
    ignore_orphan_signals()
    try:
        os.kill(os.getpid(), signal.SIGQUIT)  # survived: the orphan's way to complain
        tree = await start("grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
    finally:
        signal.signal(signal.SIGQUIT, before)
    ignored, blocked = (int(line.split()[1], 16) for line in sorted((await output(tree)).splitlines(), reverse=True))
    for number in (signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
        assert not ignored & 1 << (number - 1), number
    assert not blocked


async def test_umask_nice_limits_and_directory(start: Starter, tmp_path: Path) -> None:
    script = "umask; nice; ulimit -Sn; ulimit -Hn; ulimit -c; pwd"
    limits = (Limit("nofile", 100, 200), Limit("core", 0))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    tree = await start("sh", "-c", script, umask=0o027, nice=own + 2, limits=limits)
    assert (await output(tree)).split() == ["0027", str(own + 2), "100", "200", "0", str(tmp_path)]


async def test_a_soft_limit_alone_keeps_the_hard_one(start: Starter) -> None:
    tree = await start("sh", "-c", "ulimit -Sn; ulimit -Hn", limits=(Limit("nofile", 99),))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert (await output(tree)).split() == ["99", str(hard)]


async def test_the_protected_daemon_gives_servers_the_default_back(start: Starter) -> None:
    """Also where it may not protect itself (no CAP_SYS_RESOURCE): then there is nothing to give back."""
    before = Path("/proc/self/oom_score_adj").read_text()
    protected = protect_from_oom()
    try:
        assert Path("/proc/self/oom_score_adj").read_text() == ("-500\n" if protected else before)
        tree = await start("cat", "/proc/self/oom_score_adj")
    finally:
        Path("/proc/self/oom_score_adj").write_text(before)
    assert await output(tree) == ("0\n" if protected else before)


@pytest.mark.parametrize(
    ("wanted", "current", "score"),
    [(None, -500, 0), (None, 0, 0), (None, 200, 200), (300, -500, 300), (-100, -500, -100)],
)
def test_the_score_of_a_server(wanted: int | None, current: int, score: int) -> None:
    assert server_score(wanted, current) == score


async def test_a_server_may_be_the_oom_killers_first_choice(start: Starter) -> None:
    tree = await start("cat", "/proc/self/oom_score_adj", oom_score_adj=700)
    assert await output(tree) == "700\n"


@needs_root
async def test_another_user_gets_his_groups_and_none_of_ours(
    start: Starter, tmp_path: Path, cgroup_root: CgroupRoot
) -> None:
    """With a cgroup, which only root may join: the order of the launcher's steps."""
    cgroup = cgroup_root.server("other")
    cgroup.prepare()
    account = pwd.getpwnam("daemon")
    tree = await start("id", user="daemon", directory="/", cgroup=cgroup)
    text = await output(tree)
    assert f"uid={account.pw_uid}(daemon) gid={account.pw_gid}(daemon)" in text
    assert "(root)" not in text


@needs_root
async def test_a_group_of_its_own(start: Starter) -> None:
    tree = await start("id", user="daemon", group="nogroup", directory="/")
    assert "gid=65534(nogroup)" in await output(tree)


async def test_the_log_file_is_not_for_everybody(start: Starter, tmp_path: Path) -> None:
    await start("true")
    assert not stat.S_IMODE((tmp_path / "server.log").stat().st_mode) & stat.S_IRWXO


# --- what cannot be started ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("no-such-program",), "cannot execute no-such-program: No such file or directory"),
        (("/no/such/program",), "cannot execute /no/such/program: No such file or directory"),
        (("/etc/passwd",), "cannot execute /etc/passwd: Permission denied"),
        (("/tmp",), "cannot execute /tmp: Permission denied"),
        ((), "cannot execute an empty command or one with a NUL byte"),
        (("sh", "a\0b"), "cannot execute an empty command or one with a NUL byte"),
    ],
)
async def test_a_command_that_can_never_run(
    tmp_path: Path, cgroup: ServerCgroup | None, command: tuple[str, ...], reason: str
) -> None:
    # A PATH with a directory that we may not enter would make it "Permission denied", as execvp has it.
    plan = plan_for(tmp_path, *(command or ("x",)), environment={"PATH": "/usr/bin:/bin"})
    refused = await spawn_refused(type(plan)(**{**as_dict(plan), "command": command}), cgroup)
    assert refused.permanent
    assert refused.reason == reason
    assert not cgroup or not cgroup.populated()


def as_dict(plan: object) -> dict[str, object]:
    return {name: getattr(plan, name) for name in plan.__struct_fields__}  # type: ignore[attr-defined]


async def test_a_script_without_its_interpreter_is_told_apart_from_a_missing_script(tmp_path: Path) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/no/such/python\n")
    script.chmod(0o755)
    refused = await spawn_refused(plan_for(tmp_path, str(script)))
    assert refused.permanent
    assert "its interpreter" in refused.reason


async def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    script = tmp_path / "serve"
    script.write_bytes(b"\x7fELF but not really")
    script.chmod(0o755)
    refused = await spawn_refused(plan_for(tmp_path, str(script)))
    assert refused.permanent
    assert os.strerror(errno.ENOEXEC) in refused.reason


async def test_the_servers_path_counts_not_ours(tmp_path: Path) -> None:
    refused = await spawn_refused(plan_for(tmp_path, "sh", environment={"PATH": str(tmp_path)}))
    assert refused.permanent


async def test_a_program_in_the_second_place_of_the_path(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "sh").write_text("not executable")
    tree = await start("sh", "-c", "exit 3", environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert await tree.exited() == Exited(1, 3)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("directory", "/no/such/directory", "cannot enter the directory /no/such/directory: No such file"),
        ("user", "nobody-of-that-name", "cannot become user nobody-of-that-name: there is no such user"),
        ("group", "no-such-group", "cannot become group no-such-group: there is no such group"),
        ("limits", (Limit("colour", 1),), "cannot set limit colour: the kernel has"),
        ("limits", (Limit("nofile", 20, 10),), "cannot set limit nofile 20:10: Invalid argument"),
        ("log_path", "/no/such/place/log", "cannot open the log file /no/such/place/log: No such file"),
        ("log_path", "/tmp", "cannot open the log file /tmp: Is a directory"),
    ],
)
async def test_the_step_that_failed_is_named(tmp_path: Path, option: str, value: object, words: str) -> None:
    refused = await spawn_refused(plan_for(tmp_path, "true", **{option: value}))
    assert words in refused.reason
    assert refused.permanent


@needs_root
async def test_whose_right_was_missing_is_said(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    refused = await spawn_refused(plan_for(tmp_path, "true", directory=str(tmp_path / "own"), user="nobody"))
    assert refused.reason == f"cannot enter the directory {tmp_path}/own as user nobody: Permission denied"


async def test_a_fifo_is_no_log_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused = await spawn_refused(plan_for(tmp_path, "true", log_path=str(tmp_path / "fifo")))
    assert refused.permanent


async def test_a_busy_program_file_may_be_free_next_time(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    with program.open("ab"):
        refused = await spawn_refused(plan_for(tmp_path, str(program)))
    assert not refused.permanent
    assert os.strerror(errno.ETXTBSY) in refused.reason


async def test_without_descriptors_the_spawn_fails_for_now(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, "true")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 1, hard))
    blockers: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012 - whoever comes first
            while True:
                blockers.append(os.open(os.devnull, os.O_RDONLY))
        refused = await spawn_refused(plan)
    finally:
        for fd in blockers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not refused.permanent
    assert len(os.listdir("/proc/self/fd")) == used


async def test_a_vanished_cgroup_is_named(tmp_path: Path, cgroup_root: CgroupRoot) -> None:
    refused = await spawn_refused(plan_for(tmp_path, "true"), cgroup_root.server("never-prepared"))
    assert refused.reason.startswith("cannot join the cgroup ")


async def test_spawning_leaks_no_descriptor_and_no_zombie(tmp_path: Path) -> None:
    async def once(*command: str) -> None:
        tree = await spawn(plan_for(tmp_path, *command))
        if isinstance(tree, Tree):
            await tree.exited()
            tree.close()

    await once("true")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await once("true")
        await once("/no/such/program")
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


async def test_a_cancelled_spawn_leaves_nobody_behind(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, "sleep", "600")
    with anyio.move_on_after(0.005):  # the launcher needs longer
        await spawn(plan)
    marker = f"SGLSUP_TREE={plan.marker}".encode()
    assert not [name for name in os.listdir("/proc") if name.isdigit() and marker in environment_of(name)]


def environment_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_markers_are_never_the_same() -> None:
    assert len({new_marker("a", 1) for _ in range(100)}) == 100


async def test_the_launcher_needs_no_site_and_no_environment(tmp_path: Path) -> None:
    """PYTHON* words of the server's environment are for the server: they must not reach the launcher."""
    hostile = {"PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere", "PYTHONSTARTUP": "/nowhere"}
    tree = await spawn(plan_for(tmp_path, "env", environment=hostile))
    assert isinstance(tree, Tree)
    assert "PYTHONHOME=/nowhere" in await output(tree)
    assert sys.executable not in await output(tree)
    tree.close()
