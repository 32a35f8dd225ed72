"""A server ends while there is no daemon: the next one reads what it said last, and decides as if it had been there."""

from tests.e2e.host import Host, until

SLOWLY = ("--speed", "50")  # the last --speed counts: the daemon must be dead before the engine is


def test_an_error_that_no_restart_mends_is_found_although_nobody_watched(host: Host) -> None:
    crash = "crash:phase=draft-weights,cause=spec-decode-config"
    host.fake("kimi", "--speculative-algorithm", "EAGLE3", "--scenario", crash, *SLOWLY, sole=True)
    daemon = host.start()
    host.wait_for("kimi", "phase", "weights", limit_s=60)
    daemon.kill()
    until(lambda: not host.processes("kimi"), 60, "the server has ended by itself")
    host.start()
    host.wait_for("kimi", "lifecycle", "fatal", limit_s=60)
    assert host.starts("kimi") == 1, "a restart cannot help, and none was tried"
    story = host.why("kimi")
    assert "cause: spec-decode-config; no restart can help." in story
    assert "context_length" in story, "the line that proves it"


def test_what_the_survivors_said_of_a_rank_that_died_unseen_is_told(host: Host) -> None:
    host.fake("kimi", "--tp", "2", "--dialect", "0.5.23", "--scenario", "oom-kill:phase=target-graph,rank=TP1", *SLOWLY)
    daemon = host.start()
    host.wait_for("kimi", "phase", "weights", limit_s=60)
    daemon.kill()
    until(lambda: not host.processes("kimi"), 60, "the server has ended by itself")
    host.start()
    host.wait_for("kimi", "lifecycle", "backoff", limit_s=60)
    story = host.why("kimi")
    assert "insufficient-evidence" not in story
    assert "evidence, line " in story
