"""All commands in the documentation do what it says; what cannot be tried here says why, and is counted."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.profile import facts, load_profile
from tests.docs.pages import REASONS, ROOT, Block, blocks, commands, indented_commands, pages
from tests.docs.world import CONFIG, World
from tests.nvml.fake import build, compiler

PAGES = [page for page in pages() if page.exists()]
# Pages that other tests try from top to bottom, with a world of their own.
ELSEWHERE = {"docs/add-an-engine.md"}
TRIED = [
    page
    for page in PAGES
    if str(page.relative_to(ROOT)) not in ELSEWHERE and any(one.typed and not one.skipped for one in blocks(page))
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("the stand-in for NVML wants a C compiler")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.mark.slow
@pytest.mark.parametrize("page", TRIED, ids=name)
def test_a_page_does_what_it_says(page: Path, library: Path) -> None:
    with World(library) as world:
        for block in blocks(page):
            try:
                world.does(block)
            except AssertionError as wrong:
                raise AssertionError(f"{name(page)}:{block.line}: {wrong}") from None


QUICK_START = [
    block for block in blocks(ROOT / "docs" / "quickstart.md") if block.kind == "toml" and "file" in block.marks
]


def test_the_files_of_the_quick_start_are_a_server_of_eight_and_two_of_four(tmp_path: Path) -> None:
    plans = []
    for at, block in enumerate(QUICK_START):
        file = tmp_path / f"{at}.toml"
        text = re.sub(r"^user = .*\n", "", block.text, flags=re.MULTILINE)
        file.write_text(text.replace("[daemon]\n", f'[daemon]\nstate_dir = "{tmp_path}"\nlog_dir = "{tmp_path}"\n'))
        servers = load(file).servers.values()
        plans.append([(len(one.gpus.indices), facts(load_profile(one.engine), one.command)) for one in servers])

    ((eight,), four) = plans
    assert (eight[0], eight[1].tensor_parallel, eight[1].speculative) == (8, 8, "EAGLE3")
    assert [(devices, said.tensor_parallel) for devices, said in four] == [(4, 4), (4, 4)]


@pytest.mark.slow
def test_the_two_servers_of_the_quick_start_run_side_by_side(library: Path) -> None:
    with World(library) as world:
        world.does(QUICK_START[1]._replace(marks={"file": CONFIG}))
        world.does(Block(0, "daemon", "on", {}))
        world.does(
            Block(0, "console", "$ sglctl wait all\n$ sglctl gpus\n0 … leased to left …\n7 … leased to right …\n", {})
        )


def test_no_command_escapes_its_fence() -> None:
    found = {name(page): lines for page in PAGES if (lines := indented_commands(page))}
    assert found == {}, "put commands into ```console, each behind a '$ '"


def test_what_is_not_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = [(page, block) for page in PAGES for block in blocks(page) if block.typed and block.skipped]
    unexplained = [f"{name(page)}:{block.line}" for page, block in skipped if reason(block) not in REASONS]
    assert unexplained == [], f"a reason begins with one of {', '.join(REASONS)}"

    run = sum(len(commands(block)) for page in TRIED for block in blocks(page) if block.typed and not block.skipped)
    counts = Counter(reason(block) for _, block in skipped)
    with capsys.disabled():
        print(f"\ndocs: {run} commands run, not run: {dict(counts.most_common())}")
    assert run > sum(counts.values()), "most commands of the documentation are tried"


def reason(block: Block) -> str:
    return block.skipped.partition(",")[0].partition(" ")[0].rstrip(":,")


def test_a_page_that_says_something_else_would_be_found(tmp_path: Path, library: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one; echo two three\none\ntwo …\n```\n\n<!-- exit: 3 -->\n```sh\nexit 3\n```\n")
    right, status = blocks(page)
    with World(library) as world:
        world.does(right)
        world.does(status)
        for wrong in ("$ echo one\ntwo\n", "$ echo one\n$ false\n"):
            with pytest.raises(AssertionError):
                world.does(right._replace(text=wrong))


@pytest.mark.parametrize("text", ["```sh\nx\n", "<!-- exit: 1 -->\n\nwords\n"])
def test_a_page_with_loose_ends_is_refused(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"page\.md:"):
        list(blocks(page))


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{name(page)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
