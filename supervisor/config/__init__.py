"""The operator's settings: strictly read, checked once, frozen afterwards."""

from supervisor.config.load import ConfigError, config_hash, load
from supervisor.config.model import (
    DEFAULT_ENGINE,
    DEFAULT_SOCKET,
    UNLIMITED,
    CgroupUse,
    Config,
    DaemonConfig,
    GpuPlan,
    LimitsConfig,
    LogConfig,
    OnForeign,
    PhaseDeadline,
    ReadinessConfig,
    RestartConfig,
    ServerConfig,
    StopConfig,
    port_of,
)
from supervisor.config.secrets import is_secret, mask, mask_command

__all__ = [
    "DEFAULT_ENGINE",
    "DEFAULT_SOCKET",
    "UNLIMITED",
    "CgroupUse",
    "Config",
    "ConfigError",
    "DaemonConfig",
    "GpuPlan",
    "LimitsConfig",
    "LogConfig",
    "OnForeign",
    "PhaseDeadline",
    "ReadinessConfig",
    "RestartConfig",
    "ServerConfig",
    "StopConfig",
    "config_hash",
    "is_secret",
    "load",
    "mask",
    "mask_command",
    "port_of",
]
