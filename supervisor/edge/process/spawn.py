"""Starts one attempt's leader: own session, own log file, own cgroup, the user's rights, or a reason why not."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import grp
import marshal
import os
import pwd
import resource
import secrets
import signal
import stat
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from supervisor import procstat
from supervisor.edge.process import scan
from supervisor.edge.process.launcher import Prepared, read_answer, start_launcher
from supervisor.edge.process.record import Recorder, open_record
from supervisor.edge.process.tree import Cgroup, Tree
from supervisor.events import Spawned, SpawnFailed
from supervisor.threads import Threads

CANCEL_LIMIT_S = 5.0
PREPARE_LIMIT_S = 20.0
_preparing = Threads("the user database or the disk of the log", 32)

# Errors that the same command may not meet again; every other one repeats.
_TEMPORARY = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EBUSY,
    errno.ETXTBSY, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.ENODEV,
})  # fmt: skip

_AS_THE_USER = ("enter the directory", "execute")  # steps of the launcher after it has become the server's user


class Limit(msgspec.Struct, frozen=True):
    """A resource limit by the kernel's name ("nofile", "memlock"); -1 = unlimited, hard None = as the daemon's."""

    name: str
    soft: int
    hard: int | None = None


class SpawnPlan(msgspec.Struct, frozen=True):
    """Everything that decides how the leader starts. `environment` is complete: nothing of the daemon's is added."""

    server: str
    attempt: int
    command: tuple[str, ...]
    environment: dict[str, str]
    log_path: str
    marker: str  # `new_marker()`; added to the environment as SGLSUP_TREE
    directory: str = "/"
    user: str = ""
    group: str = ""
    umask: int = 0o022
    nice: int | None = None
    oom_score_adj: int | None = None  # None: the kernel's default, where the daemon protects itself
    limits: tuple[Limit, ...] = ()
    record_path: str = ""  # where a recorder is to write the exit status; "" where the kernel tells it


class _RefusedError(Exception):
    """The spawn cannot be made; carries what the event will say."""

    def __init__(self, reason: str, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


def new_marker(server: str, attempt: int, state_dir: str | Path = "") -> str:
    """The value of SGLSUP_TREE for one attempt, unguessable so that nobody gets swept by chance.

    It also tells whose it is: other daemons on the host, each with its state directory, may have servers of this name.
    """
    home = f"{scan.home(state_dir)}-" if state_dir else ""
    return f"{server}:{attempt}:{home}{secrets.token_hex(8)}"


async def spawn(plan: SpawnPlan, cgroup: Cgroup | None = None) -> Tree | SpawnFailed:
    """Start the leader and wait until its exec has succeeded or failed. `cgroup` must be prepared."""
    try:
        prepared = await _prepare(plan, cgroup.path if cgroup else "")
    except _RefusedError as refused:
        return SpawnFailed(plan.attempt, str(refused), refused.permanent)
    try:
        pid, answer = start_launcher(prepared)
    except OSError as problem:
        reason = f"cannot start the launcher {sys.executable}: {problem.strerror}"
        return SpawnFailed(plan.attempt, reason, problem.errno not in _TEMPORARY)
    finally:
        prepared.close()
    try:
        tree = _make_tree(plan, pid, cgroup)
    except OSError as problem:
        os.close(answer)
        return _abandon(plan, pid, problem)
    try:
        async with anyio.create_task_group() as tasks:
            if cgroup:
                tasks.start_soon(_move_early, pid, cgroup.path)
            told = await read_answer(answer)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):  # bounded by the limit of `kill`
            await tree.kill(CANCEL_LIMIT_S)  # nobody will ever hold this tree
        raise
    finally:
        os.close(answer)
    if told.problem is not None:
        return await _failed(plan, tree, told.problem)
    return _behind_recorder(plan, tree, told.pid) if told.pid else tree


async def _prepare(plan: SpawnPlan, cgroup: str) -> Prepared:
    """The order for the launcher and the open files: asks NSS and the disk, either of which may hang."""
    try:
        return await _preparing.run(
            _prepared, plan, cgroup, limit_s=PREPARE_LIMIT_S, thing=plan.server, unwanted=Prepared.close
        )
    except TimeoutError as problem:
        raise _RefusedError(
            f"cannot prepare the start ({plan.log_path}): {problem.strerror}", permanent=False
        ) from None


def _prepared(plan: SpawnPlan, cgroup: str) -> Prepared:
    order, log = _make_order(plan, cgroup), _open_log(plan.log_path)
    try:
        return Prepared(order, log, open_record(plan.record_path, plan.marker) if plan.record_path else -1)
    except OSError as problem:
        os.close(log)
        reason = f"cannot open {plan.record_path} for the exit status: {problem.strerror}"
        raise _RefusedError(reason, permanent=problem.errno not in _TEMPORARY) from None


async def _move_early(pid: int, cgroup: str) -> None:
    """Move the launcher while it starts. It joins by itself before the exec in any case; this only saves time.

    The kernel makes a mover wait for an RCU grace period, and another that follows at once not at all.
    The pid is our unreaped child's until `spawn` returns.
    """
    await anyio.to_thread.run_sync(_write_pid, pid, cgroup, limiter=anyio.CapacityLimiter(1))


def _write_pid(pid: int, cgroup: str) -> None:
    with contextlib.suppress(OSError):  # the launcher meets the same error and reports it
        Path(cgroup, "cgroup.procs").write_text(str(pid))


def _make_order(plan: SpawnPlan, cgroup: str) -> bytes:
    uid, gid, groups = _identity(plan.user, plan.group)
    if not plan.command or any("\0" in word for word in plan.command):
        raise _RefusedError("cannot execute an empty command or one with a NUL byte", permanent=True)
    return marshal.dumps(
        {
            "command": list(plan.command),
            "environment": _environment(plan),
            "directory": plan.directory,
            "cgroup": cgroup,
            "oom_score_adj": plan.oom_score_adj,
            "nice": plan.nice,
            "umask": plan.umask,
            "limits": [(_limit_number(limit.name), limit.name, limit.soft, limit.hard) for limit in plan.limits],
            "uid": uid,
            "gid": gid,
            "groups": groups,
            "record": bool(plan.record_path),
        }
    )


def _environment(plan: SpawnPlan) -> dict[str, str]:
    kept = {name: value for name, value in plan.environment.items() if name != scan.HELPER_NAME}
    return kept | {scan.MARKER_NAME: plan.marker}


def _identity(user: str, group: str) -> tuple[int | None, int | None, list[int]]:
    if not user and not group:
        return None, None, []
    try:
        account = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise _RefusedError(f"cannot become user {user}: there is no such user", permanent=True) from None
    try:
        gid = grp.getgrnam(group).gr_gid if group else account.pw_gid
    except KeyError:
        raise _RefusedError(f"cannot become group {group}: there is no such group", permanent=True) from None
    return account.pw_uid, gid, os.getgrouplist(account.pw_name, gid)


def _limit_number(name: str) -> int:
    numbers = {
        word.removeprefix("RLIMIT_").lower(): number for word, number in vars(resource).items() if "RLIMIT_" in word
    }
    if name not in numbers:
        raise _RefusedError(f"cannot set limit {name}: the kernel has {', '.join(sorted(numbers))}", permanent=True)
    return int(numbers[name])


def _open_log(path: str) -> int:
    """Opened by us, before any right is dropped; O_NONBLOCK refuses a FIFO without a reader instead of waiting."""
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    except OSError as problem:
        reason = f"cannot open the log file {path}: {problem.strerror}"
        raise _RefusedError(reason, permanent=problem.errno not in _TEMPORARY) from None
    kind = os.fstat(log).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):
        os.close(log)
        raise _RefusedError(f"cannot use {path} as a log file: it is neither a file nor a device", permanent=True)
    os.set_blocking(log, True)
    return log


def _make_tree(plan: SpawnPlan, pid: int, cgroup: Cgroup | None) -> Tree:
    """Our unreaped child keeps its pid, so neither the pidfd nor the start time can be another's."""
    process = procstat.read(pid)
    spawned = Spawned(
        plan.attempt,
        pid,
        start_ticks=process.start_ticks if process else 0,
        cgroup=cgroup.path if cgroup else "",
        log_path=plan.log_path,
    )
    return Tree(spawned, plan.server, plan.marker, os.pidfd_open(pid), cgroup)


def _abandon(plan: SpawnPlan, pid: int, problem: OSError) -> SpawnFailed:
    """No descriptor was left to watch the child with: better none than one that nobody watches."""
    os.kill(pid, signal.SIGKILL)  # our unreaped child: the pid is its own
    os.waitpid(pid, 0)  # bounded: the launcher has not come to the command yet, and SIGKILL is on its way
    return SpawnFailed(plan.attempt, f"cannot watch the launched process: {problem.strerror}", permanent=False)


def _behind_recorder(plan: SpawnPlan, tree: Tree, pid: int) -> Tree:
    """The tree as everybody knows it: its leader is the server. Who started it is there for the exit status alone."""
    recorder = Recorder(plan.record_path, plan.marker, tree.pid)
    leader = procstat.read(pid)
    ours = leader is not None and leader.parent == tree.pid  # else it has ended already, and the recorder knows how
    start_ticks = leader.start_ticks if leader is not None and ours else tree.spawned.start_ticks
    spawned = msgspec.structs.replace(tree.spawned, pid=pid, start_ticks=start_ticks)
    pidfd = None
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid) if ours else None
    cgroup = tree.cgroup
    tree.close()
    return Tree(spawned, plan.server, plan.marker, pidfd, cgroup, recorder)


async def _failed(plan: SpawnPlan, tree: Tree, told: bytes) -> SpawnFailed:
    exited = await tree.exited()  # the launcher exits right after its answer
    tree.close()
    if not told:
        return SpawnFailed(plan.attempt, f"cannot launch: the launcher ended early with {exited.code}", permanent=False)
    step, number, subject = told.removeprefix(b"+").decode("utf-8", "backslashreplace").split("\0", 2)
    who = f" as user {plan.user}" if plan.user and step in _AS_THE_USER else ""
    reason = f"cannot {step} {subject}{who}: {_explain(step, int(number), subject)}"
    return SpawnFailed(plan.attempt, reason, permanent=int(number) not in _TEMPORARY)


def _explain(step: str, number: int, subject: str) -> str:
    if step == "execute" and number == errno.ENOENT and os.path.isabs(subject) and os.path.exists(subject):
        return "its interpreter (the first line, or the dynamic loader) does not exist"
    return os.strerror(number)


def become_subreaper() -> bool:
    """Have the kernel hand orphans of our trees to us instead of to init. False when it refuses."""
    pr_set_child_subreaper = 36
    return bool(ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0)


def ignore_orphan_signals() -> None:
    """An orphaned rank reports its failure by SIGQUIT to its parent, us by then; the default action kills."""
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


def protect_from_oom(score: int = -500) -> bool:
    """Make the kernel's OOM killer prefer others; needs root. Servers get 0 back. False when not allowed."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(score))
    except OSError:
        return False
    return True
