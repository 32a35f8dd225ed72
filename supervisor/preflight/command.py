"""Takes a command line apart: what starts the engine, where it runs, and the engine's own arguments."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.profile import Profile

# What runs the rest of the command in another file system or on another machine: paths in it are not ours to judge.
_ELSEWHERE = frozenset({
    "docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "srun", "ssh", "kubectl", "chroot", "nsenter",
    "bwrap",
})  # fmt: skip


class Launch(msgspec.Struct, frozen=True):
    """`starter` is the interpreter or the engine's own program, "" when the command is not the engine's."""

    starter: str = ""
    by_module: bool = False  # `starter -m module`
    arguments: tuple[str, ...] = ()
    elsewhere: str = ""  # the container runtime or remote shell that it runs under


def launch_of(profile: Profile, command: Sequence[str]) -> Launch:
    """The command taken apart. Wrappers before the engine (env, numactl, a container runtime) are passed over."""
    names = [word.rsplit("/", 1)[-1] for word in command]
    for at in range(2, len(command)):
        if command[at - 1] == "-m" and command[at] in profile.command.modules:
            return _launch(command, names, at - 2, at + 1, by_module=True)
    for phrase in (program.split() for program in profile.command.programs):
        for at in range(len(command)):
            if names[at : at + len(phrase)] == phrase:
                return _launch(command, names, at, at + len(phrase), by_module=False)
    return Launch()


def _launch(command: Sequence[str], names: Sequence[str], at: int, first: int, *, by_module: bool) -> Launch:
    elsewhere = next((name for name in names[:at] if name in _ELSEWHERE), "")
    return Launch(command[at], by_module, tuple(command[first:]), elsewhere)
