"""The few reasons that ends of attempts are counted under, and which class of failure belongs to which.

A label of a metric must come from a small set that is known beforehand; the many classes of failures are told in words.
"""

from __future__ import annotations

import enum

from supervisor.snapshot import IncidentView


class Reason(enum.StrEnum):
    """Why an attempt ended."""

    CRASH = "crash"
    STALL_START = "stall_start"
    STALL_SERVE = "stall_serve"
    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    HARDWARE = "hardware"
    COMMUNICATION = "communication"
    CONFIG = "config"
    ENVIRONMENT = "environment"
    TERMINATED = "terminated"
    OPERATOR = "operator"


MEANING = {
    Reason.CRASH: "it ended by itself, or was found dead",
    Reason.STALL_START: "it made no progress while starting",
    Reason.STALL_SERVE: "it made no progress while serving",
    Reason.OOM_GPU: "GPU memory was not enough",
    Reason.OOM_HOST: "host memory was not enough",
    Reason.HARDWARE: "a GPU failed",
    Reason.COMMUNICATION: "ranks lost each other",
    Reason.CONFIG: "arguments or model files that no restart mends",
    Reason.ENVIRONMENT: "driver, compiler, ports, limits or disk of the host",
    Reason.TERMINATED: "somebody else ended it",
    Reason.OPERATOR: "somebody asked for it here",
}

# Classes of `profiles/causes.toml`; what is not named here is a crash, or a stall when we called it one.
_BY_CAUSE = {
    "gpu-oom-weights": Reason.OOM_GPU,
    "gpu-oom-kv-pool": Reason.OOM_GPU,
    "gpu-oom-graph-capture": Reason.OOM_GPU,
    "gpu-oom-runtime": Reason.OOM_GPU,
    "gpu-memory-occupied": Reason.OOM_GPU,
    "kv-pool-exhausted": Reason.OOM_GPU,
    "host-oom-killed": Reason.OOM_HOST,
    "host-memory-insufficient": Reason.OOM_HOST,
    "shm-too-small": Reason.OOM_HOST,
    "gpu-hardware-fault": Reason.HARDWARE,
    "dist-init-peer-missing": Reason.COMMUNICATION,
    "nccl-init-failure": Reason.COMMUNICATION,
    "nccl-collective-timeout": Reason.COMMUNICATION,
    "peer-rank-death": Reason.COMMUNICATION,
    "pd-disaggregation-failure": Reason.COMMUNICATION,
    "model-path-missing": Reason.CONFIG,
    "model-auth-gated": Reason.CONFIG,
    "model-arch-unsupported": Reason.CONFIG,
    "checkpoint-corrupt": Reason.CONFIG,
    "parallelism-invalid": Reason.CONFIG,
    "quantization-mismatch": Reason.CONFIG,
    "spec-decode-config": Reason.CONFIG,
    "server-args-invalid": Reason.CONFIG,
    "tokenizer-or-template-error": Reason.CONFIG,
    "gpu-arch-unsupported": Reason.ENVIRONMENT,
    "driver-or-dependency-mismatch": Reason.ENVIRONMENT,
    "jit-compile-failure": Reason.ENVIRONMENT,
    "host-limits": Reason.ENVIRONMENT,
    "disk-or-cache-unwritable": Reason.ENVIRONMENT,
    "port-in-use": Reason.ENVIRONMENT,
    "external-termination": Reason.TERMINATED,
}


def reason_of(incident: IncidentView, *, stalled: bool) -> Reason:
    """The reason of an end that nobody asked for. `stalled`: we ended it for want of progress.

    A class that explains the standstill (a device, a lost peer) says more than that there was one.
    """
    known = _BY_CAUSE.get(incident.diagnosis.cause) if incident.diagnosis else None
    if known is not None:
        return known
    if not stalled:
        return Reason.CRASH
    return Reason.STALL_SERVE if incident.phase == "healthy" else Reason.STALL_START
