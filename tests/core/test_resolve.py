"""Settings of a server: what the file says, and the engine's profile where it says nothing."""

import signal

from supervisor.config import ServerConfig, StopConfig
from supervisor.core.resolve import resolve
from supervisor.core.settings import StopSettings
from supervisor.profile import facts, load_profile

NOTHING = StopConfig()


def stop_of(engine: str, stop: StopConfig = NOTHING) -> StopSettings:
    profile = load_profile(engine)
    config = ServerConfig("kimi", command=("serve",), engine=engine, stop=stop)
    return resolve(config, profile, facts(profile, config.command)).stop


def test_patience_with_a_stop_is_the_profiles() -> None:
    for engine in ("sglang", "vllm"):
        rule, own = load_profile(engine).stop, stop_of(engine)
        assert (own.grace_s, own.startup_grace_s) == (rule.grace_s, rule.startup_grace_s)
        assert own.signal == signal.Signals[f"SIG{rule.signal}"]
    assert stop_of("sglang").grace_s != stop_of("vllm").grace_s


def test_the_files_word_goes_before() -> None:
    own = stop_of("vllm", StopConfig(signal="INT", grace_s=0.0, startup_grace_s=1.0))
    assert (own.signal, own.grace_s, own.startup_grace_s) == (signal.SIGINT, 0.0, 1.0)
