"""Whatever is put in comes out as text, for a real parser."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cli.output import _shown_line
from equipoise.report.figures import plotly_text
from equipoise.report.format import visible
from equipoise.report.html import element, escaped, json_script

# What is seen on a page, and no bare CR (HTML normalises it).
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r")).filter(
    lambda text: visible(text) == text
)
HIDDEN = "\u202e\u2066\u200b\u200f\u061c\ufeff\xad\x1b\x07\x85\0\ud800\U000e0041"


class Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data):
        self.text.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@given(TEXT, TEXT)
def test_text_and_attributes_come_back_unchanged(text, attribute):
    reader = read(element("p", text, title=attribute))
    assert reader.tags == ["p"]
    assert "".join(reader.text) == text
    assert reader.attributes == [{"title": attribute}]


@given(st.dictionaries(TEXT, TEXT | st.floats(allow_nan=False, allow_infinity=False) | st.none()))
def test_a_document_in_a_script_comes_back_unchanged(document):
    reader = read(json_script("data", document))
    assert reader.tags == ["script"]
    assert json.loads("".join(reader.text)) == document


def test_no_text_ends_a_script_or_opens_a_comment():
    script = json_script("data", ["</script><!--<script>", "\u2028"])
    assert script.count("<") == 2  # its own two tags
    assert "\u2028" not in script


def test_what_is_html_already_is_not_escaped_twice():
    assert element("p", element("b", "a & b")) == "<p><b>a &amp; b</b></p>"
    assert escaped(escaped("<")) == "&lt;"


def test_an_attribute_that_is_none_or_false_is_left_out():
    assert element("button", "x", hidden=True, title=None, open=False) == "<button hidden>x</button>"


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_what_cannot_be_seen_is_shown_as_its_code_point(hidden):
    page = element("p", f"a{hidden}b", title=f"a{hidden}b")
    assert hidden not in page
    shown = read(page)
    assert "".join(shown.text) == f"a{ascii(hidden)[1:-1]}b" == shown.attributes[0]["title"]
    assert plotly_text(hidden) == ascii(hidden)[1:-1]
    assert _shown_line(f"\x1b[1ma{hidden}\x1b[0m") == f"\x1b[1ma{ascii(hidden)[1:-1]}\x1b[0m"


def test_what_a_form_sends_back_is_what_it_was():
    assert read(element("input", value="a\u202eb\u200b")).attributes == [{"value": "a\u202eb\u200b"}]
    element("input", value="\ud800").encode()
