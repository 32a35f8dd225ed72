"""Tests of the host: shared memory, limits, tools that a start will want, the driver, ports."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.lint.case import Case, Values, whole
from supervisor.preflight import LimitFacts, PortFacts, Rule
from supervisor.units import format_bytes

_MIB = 1 << 20
_UNLIMITED = -1


def shared_memory(case: Case, rule: Rule) -> Iterator[Values]:
    """Ranks talk through shared memory. `number` is in MiB."""
    there = case.seen.machine.shared_memory_bytes
    if case.local_ranks > 1 and there is not None and there < rule.number * _MIB:
        yield {"there": format_bytes(there), "ranks": case.local_ranks, "enough": format_bytes(rule.number * _MIB)}


def temporary_space(case: Case, rule: Rule) -> Iterator[Values]:
    """Sockets between the processes and compiled kernels go to the folder of temporary files. `number` is in MiB."""
    machine = case.seen.machine
    free = machine.temporary_free_bytes
    if free is not None and free < rule.number * _MIB:
        yield {"path": machine.temporary, "free": format_bytes(free)}


def open_files(case: Case, rule: Rule) -> Iterator[Values]:
    """The engine raises its soft limit to `number`, as far as the hard one lets it."""
    limit = case.seen.machine.open_files
    if limit is not None and limit.hard != _UNLIMITED and limit.hard < rule.number:
        yield {"hard": limit.hard, "wanted": rule.number}


def locked_memory(case: Case, rule: Rule) -> Iterator[Values]:
    """Memory that network cards or the cache on the host read must be locked. `number` is in MiB."""
    limit = case.seen.machine.locked_memory
    facts = case.facts
    for wanted, reason in (
        (facts.disaggregation in ("prefill", "decode"), "disaggregation"),
        (facts.nodes > 1, "several nodes"),
        (case.has(case.options.host_cache), "a cache on the host"),
    ):
        if wanted and limit is not None and _less(limit, rule.number * _MIB):
            yield {"soft": format_bytes(limit.soft), "reason": reason}
            return


def _less(limit: LimitFacts, wanted_bytes: int) -> bool:
    return limit.soft != _UNLIMITED and limit.soft < wanted_bytes


def compiler(case: Case, rule: Rule) -> Iterator[Values]:
    """Kernels that are compiled at the first start need the compiler. Only where there are GPUs."""
    if case.seen.machine.compiler == "" and case.seen.machine.devices and case.on_devices:
        yield {"compilers": ", ".join(case.rules.compilers)}


def stack_reader(case: Case, rule: Rule) -> Iterator[Values]:
    """The engine's own watchdog wants to print stacks before it ends a hang."""
    if case.seen.machine.stack_reader == "":
        yield {"program": case.rules.stack_reader}


def driver(case: Case, rule: Rule) -> Iterator[Values]:
    """The driver against the CUDA that the installed packages were built for. `words` are DISTRIBUTION=CUDA=DRIVER."""
    have = whole(case.seen.machine.driver.partition(".")[0])
    for row in rule.words:
        distribution, cuda, needed = row.split("=")
        installed = case.seen.engine.distributions.get(distribution, "")
        if have is not None and installed.startswith(f"{cuda}.") and have < int(needed):
            yield {"driver": case.seen.machine.driver, "cuda": cuda, "needed": needed, "package": distribution}


def port_held_by_engine(case: Case, rule: Rule) -> Iterator[Values]:
    """The port of requests belongs to another server of the same engine."""
    yield from (_port(port) for port in case.seen.ports if port.by_engine and port.purpose == "requests")


def port_held(case: Case, rule: Rule) -> Iterator[Values]:
    """A port that the server will bind belongs to somebody else."""
    for port in case.seen.ports:
        if port.holder and not (port.by_engine and port.purpose == "requests"):
            yield _port(port)


def port_shared(case: Case, rule: Rule) -> Iterator[Values]:
    """Two servers of one configuration will bind the same port."""
    for port in case.seen.ports:
        if port.other_server:
            yield _port(port) | {"server": port.other_server, "other": port.other_purpose}


def _port(port: PortFacts) -> Values:
    return {"port": port.port, "purpose": port.purpose, "holder": port.holder}
