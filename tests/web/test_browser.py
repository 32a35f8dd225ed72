"""The page in a real browser: it is live, obeys its own policy, fits a phone, and can be used by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from supervisor.snapshot import FacetView
from tests.api.fake import FakeControl
from tests.metrics import fleet
from tests.web import crowd
from tests.web.browser import PROGRAM, Browser, browser
from tests.web.site import Site, site
from tests.web.test_page import HOSTILE, hostile

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium")

LIVE = "document.getElementById('live').dataset.state === 'live'"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture
def shown(tab: Browser) -> Iterator[Site]:
    tab.size(1280)
    tab.scripts(True)
    with site(fleet.control) as one:
        tab.open(one.url)
        yield one
    tab.open("about:blank")


def state(server: str) -> str:
    return f"document.getElementById('row-{server}').dataset.state"


def put(where: Site, **fields: object) -> None:
    where.do(lambda: where.control.put(fleet.running("qwen3-32b", **fields)))


def test_it_lives_without_a_word_of_complaint(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)

    assert tab.complaints() == []
    assert {url.removeprefix(shown.url) for url in tab.requested()} >= {"", "style.css", "app.js", "live"}
    assert all(url.startswith(shown.url) for url in tab.requested())


def test_a_change_arrives_and_is_announced(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)
    assert tab.run("document.getElementById('server-qwen3-32b').open") is False
    put(shown, lifecycle=FacetView("draining", fleet.NOW))

    tab.until(f"{state('qwen3-32b')} === 'draining'")
    assert tab.run("document.getElementById('announce').textContent") == "qwen3-32b is draining"
    assert tab.run("document.getElementById('server-qwen3-32b').open") is True


def test_what_somebody_opened_focused_and_selected_stays(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)
    tab.run("document.getElementById('server-kimi-k2').open = false")
    tab.run("document.getElementById('server-spare').open = true")
    tab.run("document.querySelector('#row-draft-7b a').focus()")
    tab.run("getSelection().selectAllChildren(document.querySelector('#row-draft-7b a'))")
    put(shown, lifecycle=FacetView("draining", fleet.NOW))
    tab.until(f"{state('qwen3-32b')} === 'draining'")

    assert tab.run("document.getElementById('server-kimi-k2').open") is False
    assert tab.run("document.getElementById('server-spare').open") is True
    assert tab.run("document.activeElement.textContent") == "draft-7b"
    assert tab.run("getSelection().toString()") == "draft-7b"


def test_a_server_that_comes_or_goes_does(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)
    shown.do(lambda: shown.control.remove("qwen3-32b"))
    tab.until("document.getElementById('row-qwen3-32b') === null")
    put(shown)
    tab.until("document.getElementById('row-qwen3-32b') !== null")

    assert tab.run("document.querySelectorAll('#table tbody tr').length") == 4
    tab.run("window.ids = [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert tab.run("new Set(ids).size === ids.length")


def test_times_go_on_between_two_updates(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)
    script = "document.querySelector('#row-draft-7b time').textContent"
    before = tab.run(script)

    tab.until(f"{script} !== {before!r}")


def test_a_lost_connection_is_said_and_found_again(tab: Browser) -> None:
    with site(fleet.control) as shown:
        tab.open(shown.url)
        tab.until(LIVE)
    tab.until("document.getElementById('live').textContent.startsWith('connection lost')")
    assert tab.run("document.documentElement.classList.contains('stale')")


def test_hostile_log_text_runs_nothing(tab: Browser) -> None:
    def control() -> FakeControl:
        return fleet.control(hostile(HOSTILE), hostile(HOSTILE))

    with site(control) as shown:
        tab.open(shown.url)
        tab.until(LIVE)
        assert tab.run("document.querySelectorAll('script').length") == 1
        assert tab.run("document.querySelectorAll('img, iframe, [onerror], [onload], [style]').length") == 0
        assert tab.run("document.querySelector('pre').textContent.includes('<script>alert(1)</script>')")
        assert tab.complaints() == []
    tab.open("about:blank")


def test_an_inline_script_would_be_refused(tab: Browser, shown: Site) -> None:
    """The second fence, were the first ever broken."""
    tab.until(LIVE)
    tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit = 1\">')")
    tab.run("{const s = document.createElement('script'); s.textContent = 'window.hit = 2'; document.body.append(s)}")

    tab.wait(lambda: any("Content Security Policy" in text for text in tab.complaints()), "a refusal")
    assert tab.run("window.hit === undefined")


@pytest.mark.parametrize("make", [fleet.control, crowd.control], ids=["plain", "crowd"])
def test_nothing_runs_out_of_the_screen(tab: Browser, make: Callable[[], FakeControl]) -> None:
    with site(make) as shown:
        for width in (360, 390, 740, 800, 1280):
            tab.size(width)
            tab.open(shown.url)
            tab.until(LIVE)
            fits(tab, width)
    tab.open("about:blank")


def fits(tab: Browser, width: int) -> None:
    assert tab.run("document.documentElement.scrollWidth") == width
    seen = "[...document.querySelectorAll('#content *')].filter(e => !e.closest('.unseen, svg'))"
    wide = "filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    assert tab.run(f"{seen}.{wide}") == []


def test_by_keyboard_alone(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)
    tab.key("Tab")
    assert tab.run("document.activeElement.textContent") == "To the servers"
    assert tab.run("document.activeElement.getBoundingClientRect().left") >= 0
    for _ in range(20):
        tab.key("Tab")
        if tab.run("document.activeElement.closest('summary')?.parentElement.id") == "server-qwen3-32b":
            break
    tab.key("Enter")
    tab.until("document.getElementById('server-qwen3-32b').open")
    assert tab.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_link_opens_what_it_leads_to(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)
    tab.run("document.querySelector('#row-spare a').click()")

    tab.until("document.getElementById('server-spare').open")


def test_a_screen_reader_finds_table_states_and_bars(tab: Browser, shown: Site) -> None:
    tab.until(LIVE)
    nodes = tab.accessible()
    names = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes}

    assert ("heading", "SGLang Supervisor") in names
    assert ("table", "All servers") in names
    assert ("rowheader", "kimi-k2") in names
    assert ("columnheader", "State") in names
    assert any(role == "image" and "its server" in name for role, name in names)
    assert any(role == "table" and name.startswith("Ranks of kimi-k2. TP5 still in weights") for role, name in names)
    assert not [
        node for node in nodes if node["role"]["value"] in ("link", "button") and not node.get("name", {}).get("value")
    ]


def test_without_javascript_the_table_is_all_there(tab: Browser, shown: Site) -> None:
    tab.scripts(False)
    tab.open(shown.url)
    tab.scripts(True)

    assert tab.run("document.querySelectorAll('#table tbody tr').length") == 4
    assert tab.run("document.getElementById('live').dataset.state") == "still"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(tab: Browser, scheme: str) -> None:
    """WCAG AA: 4.5 to 1, measured on what is really shown."""
    tab.prefer(prefers_color_scheme=scheme)
    with site(crowd.control) as shown:
        tab.open(shown.url)
        tab.until(LIVE)
        poor = tab.run(CONTRAST)
    tab.prefer(prefers_color_scheme="light")
    tab.open("about:blank")

    assert poor == []


CONTRAST = """
(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, at) => sum + weight * linear(rgb[at] / 255), 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = parts(getComputedStyle(e).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const e of document.querySelectorAll('#content *')) {
    if (e.closest('svg, .unseen') || ![...e.childNodes].some((n) => n.nodeType === 3 && n.nodeValue.trim())) continue;
    if (!e.getClientRects().length) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${e.className}: ${e.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""
