"""Users' numbers: asked once, and nobody while nobody knows."""

from __future__ import annotations

import os

from supervisor.shell.users import Users


async def test_who_was_looked_up_is_known_from_then_on() -> None:
    users = Users()
    assert users.uid("root") is None
    await users.learn("root")
    assert users.uid("root") == 0


async def test_a_server_without_a_user_runs_as_we_do_and_so_does_one_whose_user_does_not_exist() -> None:
    users = Users()
    await users.learn(None)
    assert users.uid(None) == users.uid("") == os.geteuid()
    await users.learn("no-such-user")
    assert users.uid("no-such-user") == os.geteuid()


async def test_a_database_that_does_not_answer_in_time_leaves_nobody() -> None:
    users = Users()
    await users.learn("root", limit_s=0)
    assert users.uid("root") is None
    await users.learn("root")
    assert users.uid("root") == 0, "asked again"
