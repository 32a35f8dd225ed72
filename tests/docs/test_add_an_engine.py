"""The page on adding an engine, typed from top to bottom: a third engine that exists in its text alone is supervised."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.profile.parts import Profile
from tests.docs.pages import ROOT, blocks
from tests.docs.world import World
from tests.nvml.fake import build, compiler

PAGE = ROOT / "docs" / "add-an-engine.md"
FOLDER = "/opt/toy"


class ToyWorld(World):
    """With the toy's folder and a folder of profiles of this host."""

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"SGLSUP_PROFILES": self.here("/etc/sglang-supervisor/profiles")}

    def here(self, text: str) -> str:
        return super().here(text).replace(FOLDER, f"{self.root}{FOLDER}")


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("the stand-in for NVML wants a C compiler")
    with ToyWorld(build(tmp_path)) as world:
        for block in blocks(PAGE):
            try:
                world.does(block)
            except AssertionError as wrong:
                raise AssertionError(f"{PAGE.name}:{block.line}: {wrong}") from None


def test_every_table_of_a_profile_is_named() -> None:
    text = PAGE.read_text()
    unnamed = {"name", "include", "stages", "causes", "signatures", "saturated", "compilers"}
    for field in set(Profile.__struct_fields__) - unnamed:
        assert f"[{field}]" in text or f"[[{field}]]" in text, field
    assert "supervisor/core/lint/table.py" in text
    assert (ROOT / "supervisor/core/lint/table.py").exists()
