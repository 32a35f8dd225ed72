"""What a conversion has gathered so far: servers with their remarks, and what it could not carry over."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from supervisor.config import DaemonConfig, GpuPlan, GroupConfig, ServerConfig
from supervisor.config.checks import check_server, port_taken
from supervisor.config.groups import check_groups
from supervisor.config.model import PORT_OPTION, Config
from supervisor.config.reader import join
from supervisor.profile import facts, load_profile, profile_names, recognises

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PORT = re.compile(rf"(?<=\s){PORT_OPTION}[ =](\d{{1,5}})(?![^\s;&|'\")])", re.ASCII)  # within a script


class ConversionError(ValueError):
    """The file cannot be converted; the text is one line that says where and why."""


class Draft(msgspec.Struct, frozen=True):
    """One server as it will be written.

    `lost` could not be carried over. `remarks` say what is different here, or what somebody should look at.
    `missing` stands in the table, and has to be made on the host before the daemon takes the file. `unusable` is why
    the daemon would refuse the table, which is then written as comments.
    """

    config: ServerConfig
    lost: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unusable: str = ""

    def losing(self, *lost: str) -> Draft:
        return msgspec.structs.replace(self, lost=self.lost + lost)

    def remarking(self, *remarks: str) -> Draft:
        return msgspec.structs.replace(self, remarks=self.remarks + remarks)

    def having(self, config: ServerConfig) -> Draft:
        return msgspec.structs.replace(self, config=config)


class Conversion(msgspec.Struct, frozen=True):
    """A whole file's worth. `lost` and `remarks` are those that belong to no server."""

    source: str
    daemon: DaemonConfig = DaemonConfig()
    drafts: tuple[Draft, ...] = ()
    groups: tuple[GroupConfig, ...] = ()
    lost: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Nothing was lost on the way, and this host has all that is named."""
        return not self.lost and not any(draft.lost or draft.missing or draft.unusable for draft in self.drafts)


def finished(conversion: Conversion) -> Conversion:
    """With engines recognised, devices leased, and what the daemon would refuse taken out of force."""
    drafts = _with_devices(tuple(_with_port(_with_engine(draft)) for draft in conversion.drafts))
    drafts = _apart(tuple(_checked(draft) for draft in drafts))
    return _with_groups(msgspec.structs.replace(conversion, drafts=drafts))


def _with_engine(draft: Draft) -> Draft:
    """The profile that knows the command; without one the server waits for somebody to look."""
    command = draft.config.command
    engine = next((name for name in profile_names() if recognises(load_profile(name), command)), "")
    if engine:
        return draft.having(msgspec.structs.replace(draft.config, engine=engine))
    waiting = draft.having(msgspec.structs.replace(draft.config, autostart=False))
    return waiting.losing(
        "autostart: no profile recognises the command, so nothing can be said of its phases and its readiness. Leave a"
        " program that is no inference server where it is; otherwise name its engine and set autostart = true"
    )


def _with_port(draft: Draft) -> Draft:
    """The port that a script names in one of the words of a command, where it names but one."""
    if draft.config.effective_port:
        return draft
    named = {int(port) for word in draft.config.command for port in _PORT.findall(word) if 0 < int(port) < 1 << 16}
    if len(named) != 1:
        return draft
    (port,) = named
    return draft.having(msgspec.structs.replace(draft.config, port=port)).remarking(
        f"port is what the script in its command names ({PORT_OPTION} {port}): look whether it is so"
    )


def _with_devices(drafts: tuple[Draft, ...]) -> tuple[Draft, ...]:
    """Leases instead of CUDA_VISIBLE_DEVICES, unless two servers share a device."""
    wanted = [_visible_devices(draft.config.environment) for draft in drafts]
    result = []
    for at, draft in enumerate(drafts):
        rivals = [
            other.config.name
            for index, other in enumerate(drafts)
            if index != at and set(wanted[at] or ()) & set(wanted[index] or ())
        ]
        result.append(_with_lease(draft, wanted[at], rivals))
    return tuple(result)


def _with_lease(draft: Draft, devices: tuple[int, ...] | None, rivals: list[str]) -> Draft:
    if devices is None:
        return _without_lease(draft)
    if rivals:
        return draft.losing(
            f"gpus: {_VISIBLE} shares devices with {', '.join(rivals)}, and a lease is exclusive: none of them has one,"
            " so that their devices are not proven free between two starts"
        )
    environment = {name: value for name, value in draft.config.environment.items() if name != _VISIBLE}
    return draft.having(
        msgspec.structs.replace(draft.config, gpus=GpuPlan(indices=devices), environment=environment)
    ).remarking(f"gpus is {_VISIBLE}, which the daemon sets itself; it counts as nvidia-smi does")


def _without_lease(draft: Draft) -> Draft:
    if _VISIBLE in draft.config.environment:
        return draft.losing(f"gpus: {_VISIBLE} is no list of device numbers; write them as gpus = [0, 1]")
    profile = load_profile(draft.config.engine)
    if not recognises(profile, draft.config.command):
        return draft
    said = facts(profile, draft.config.command)
    count = said.tensor_parallel * said.pipeline_parallel // max(said.nodes, 1)
    if not 1 <= count <= 64:
        return draft.remarking("no gpus: name its devices, or nothing looks after them")
    likely = ", ".join(str(said.base_gpu + index) for index in range(count))
    return draft.remarking(f"no gpus: name its devices, perhaps gpus = [{likely}], or nothing looks after them")


def _visible_devices(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """The device numbers; None when the variable is absent or holds something else."""
    parts = [part.strip() for part in environment.get(_VISIBLE, "").split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        return None
    devices = tuple(map(int, parts))
    return devices if len(set(devices)) == len(devices) else None


def _checked(draft: Draft) -> Draft:
    """What the loader would say of the table. Users of another host are no mistake of the conversion."""
    for path, text in check_server(draft.config):
        key = path.removeprefix(join("server", draft.config.name)).lstrip(".")
        if key in ("user", "group"):
            missing = f"{key}: {text}, and the daemon refuses the file until there is one"
            draft = msgspec.structs.replace(draft, missing=(*draft.missing, missing))
        else:
            return msgspec.structs.replace(draft, unusable=f"{key}: {text}" if key else text)
    return draft


def _apart(drafts: tuple[Draft, ...]) -> tuple[Draft, ...]:
    """Of those that want one port all but one are taken out of force. Devices are apart already."""
    rivals: dict[int, list[Draft]] = {}
    for draft in sorted((one for one in drafts if not one.unusable), key=_title):
        rivals.setdefault(port_taken(draft.config), []).append(draft)
    settled: dict[str, Draft] = {}
    for port, (keeper, *others) in rivals.items():
        if port and others:
            settled[keeper.config.name] = _keeping(port, keeper, others)
            settled |= {other.config.name: _refused(port, other, keeper) for other in others}
    return tuple(settled.get(draft.config.name, draft) for draft in drafts)


def _title(draft: Draft) -> tuple[bool, bool, bool]:
    """Who has the better one to a port, False before True: who names it, is an engine, and starts by itself."""
    config = draft.config
    return not config.effective_port, not recognises(load_profile(config.engine), config.command), not config.autostart


_TITLES = ("which names it", "which is an engine that is known", "which starts by itself")


def _keeping(port: int, keeper: Draft, others: list[Draft]) -> Draft:
    names = ", ".join(other.config.name for other in others)
    unnamed = "" if keeper.config.effective_port else f", {keeper.config.engine}'s own since its command names none"
    return keeper.remarking(f"has port {port}{unnamed}; out of force for the same port: {names}")


def _refused(port: int, draft: Draft, keeper: Draft) -> Draft:
    ranks = zip(_title(keeper), _title(draft), _TITLES, strict=True)
    title = next((title for kept, lost, title in ranks if kept != lost), "which comes first")
    unnamed = "" if draft.config.effective_port else f", which {draft.config.engine} takes when none is named,"
    why = f"{port}{unnamed} is already taken by server {keeper.config.name}, {title}"
    return msgspec.structs.replace(draft, unusable=f"port {why}: give it a port of its own")


def _with_groups(conversion: Conversion) -> Conversion:
    """Groups of servers that are in force, as far as the daemon takes them."""
    servers = {draft.config.name: draft.config for draft in conversion.drafts if not draft.unusable}
    groups: dict[str, GroupConfig] = {}
    lost = list(conversion.lost)
    for group in conversion.groups:
        members = tuple(name for name in group.members if name in servers)
        tried = msgspec.structs.replace(group, members=members)
        problems = check_groups(Config(servers=servers, groups={group.name: tried}))
        if problems:
            lost.append(f"[group:{group.name}]: {problems[0][1]}")
        else:
            groups[group.name] = tried
    return msgspec.structs.replace(conversion, groups=tuple(groups.values()), lost=tuple(lost))
