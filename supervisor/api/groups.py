"""Operations on groups: which there are, and who is in them."""

from __future__ import annotations

from starlette.responses import Response

from supervisor.api import wire
from supervisor.api.operation import Call, Operation, answer
from supervisor.config.groups import members


async def list_groups(call: Call) -> Response:
    config = call.control.config()
    groups = (
        wire.Group(name, members(config, name), str(group.order), group.together)
        for name, group in config.groups.items()
    )
    return answer(wire.Groups(tuple(groups)))


OPERATIONS = (Operation("GET", "/v1/groups", "listGroups", "All groups and their members", list_groups, wire.Groups),)
