"""Text stays text, whatever it is."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.web.markup import Html, join, tag


class Reader(HTMLParser):
    """What a browser would find."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, text: str) -> None:
        self.text += text


def test_elements_nest_and_attributes_are_named() -> None:
    made = tag(
        "a", "x & y", tag("b", 3), None, href="#a", class_="c", aria_label="d", hidden=True, open=False, lang=None
    )

    assert made == '<a href="#a" class="c" aria-label="d" hidden>x &amp; y<b>3</b></a>'


def test_elements_without_content_have_no_end() -> None:
    assert tag("meta", name="viewport") == '<meta name="viewport">'


def test_finished_markup_is_not_escaped_again() -> None:
    assert join([tag("b"), "<b>"]) == "<b></b>&lt;b&gt;"
    assert isinstance(join([]), Html)


def test_what_moves_or_hides_text_is_gone() -> None:
    assert tag("p", "a\x00\x1b[2Jb\u202ec\ud800d") == "<p>abc?d</p>"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_text_adds_no_element_and_no_attribute(text: str) -> None:
    found = Reader(tag("p", text, title=text))

    assert [name for name, _ in found.tags] == ["p"]
    assert set(found.tags[0][1]) == {"title"}


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_plain_text_comes_back(text: str) -> None:
    found = Reader(tag("p", text, title=text))

    assert found.text == text
    assert found.tags[0][1]["title"] == text
