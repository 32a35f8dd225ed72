"""Gives each end-to-end test a host, with cgroups and without them."""

from collections.abc import Iterator

import pytest

from supervisor.edge.cgroup import find_cgroup_root
from tests.e2e.host import Host


@pytest.fixture
def host(cgroups: str) -> Iterator[Host]:
    with Host(cgroups=cgroups) as made:
        yield made


@pytest.fixture(params=["off"])
def cgroups(request: pytest.FixtureRequest) -> str:
    """Without cgroups unless a test asks for both ways (`both_ways`): so it runs the same, root or not."""
    wanted: str = request.param
    if wanted == "auto" and not _available():
        pytest.skip("needs root and a writable cgroup v2")
    return wanted


def _available() -> bool:
    root = find_cgroup_root("e2e-probe")
    return root is not None and root.remove()
