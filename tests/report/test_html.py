"""The page: one file, no network, sound structure, the findings' numbers, and no name that is more than text."""

import base64
import hashlib
import json
import re

import pytest
from msgspec.structs import replace
from parsed_page import Parsed

from equipoise.report import html
from equipoise.report.blocks import Cell, Column, Table
from equipoise.report.pages.study import SECTIONS, STUDY
from equipoise.report.pages.study.entries import NOT_VERIFIED

HOSTILE = "</script></td><img src=x onerror=\"alert('x')\">\u202e\x1b[2J{{7*7}}${x}`'\"&amp;%{x}<!--"


@pytest.fixture
def page(findings):
    return Parsed(html.render(STUDY, findings))


def test_it_is_well_formed_with_one_headline_and_unique_anchors(page, findings):
    assert page.unbalanced == []
    assert page.open == []
    assert [found.text for found in page.all("h1")] == [findings.headline]
    anchors = [found["id"] for found in page.elements if "id" in found]
    assert len(anchors) == len(set(anchors))


def test_every_section_is_there_and_the_contents_lead_to_each(page):
    assert [found["id"] for found in page.all("section")] == [section.name for section in SECTIONS]
    anchors = {found.get("id") for found in page.elements}
    links = [found["href"] for found in page.all("a")]
    assert {f"#{section.name}" for section in SECTIONS} <= set(links)
    assert all(link.startswith("#") and link[1:] in anchors for link in links)


def test_labels_refer_to_elements_that_exist(page):
    anchors = {found.get("id") for found in page.elements}
    labels = [found.get("aria-labelledby") for found in page.elements]
    assert {label for label in labels if label} <= anchors


def test_nothing_is_loaded_from_anywhere(findings):
    text = html.render(STUDY, findings)
    page = Parsed(text)
    assert not [found for found in page.elements if found.tag in {"img", "link", "iframe", "object", "base"}]
    assert not [found for found in page.elements if "src" in found]
    styles = "".join(found.text for found in page.all("style"))
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_policy_allows_exactly_the_scripts_of_the_page(page):
    (policy,) = [found["content"] for found in page.all("meta", http_equiv="Content-Security-Policy")]
    assert "default-src 'none'" in policy
    scripts = [found.text for found in page.all("script") if "type" not in found]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert not [name for found in page.elements for name in found if name.startswith("on")]


def test_it_leaves_room_below_six_megabytes(findings):
    assert 1_000_000 < len(html.render(STUDY, findings).encode()) < 2_000_000


def test_figures_hold_the_numbers_of_the_findings(page, findings):
    entries = findings.workloads[0].entries
    for column, name in (("relative_efficiency", "relative"), ("like_for_like_efficiency", "like-for-like")):
        (script,) = page.all("script", id=f"figure-bert-{name}-data")
        traces = [trace for trace in json.loads(script.text)["data"] if "name" in trace]
        points = sorted(zip(traces[0]["x"], traces[0]["y"], strict=True))
        assert points == sorted(entries.select("num_accelerators", column).iter_rows())


def test_each_figure_says_in_words_what_it_shows(page):
    plots = page.all("div", role="img")
    assert len(plots) == 8  # systems, E', E; losses, batches, balance; joules a run, joules a sample
    assert "1.00 at 4, 0.400 at 64" in plots[2]["aria-label"]


def test_hovers_name_the_system_and_its_log(page):
    (script,) = page.all("script", id="figure-bert-relative-data")
    hovers = json.loads(script.text)["data"][1]["hovertext"]
    assert hovers[2].startswith("Dell / XE-64<br>")
    assert hovers[2].endswith("Dell/results/XE-64/bert/result_0.txt:102")


def test_tables_can_be_sorted_by_each_column(page):
    headers = page.all("th", scope="col")
    buttons = [found for found in page.all("button") if found.inside[-1] == "th"]
    assert len(headers) == len(buttons) > 20
    keys = [found["data-key"] for found in page.elements if "data-key" in found]
    assert "600.0" in keys


def test_the_note_of_mlcommons_and_the_dataset_are_on_the_page(page):
    (footer,) = page.all("footer")
    assert NOT_VERIFIED in footer.text
    assert "2030.1" in footer.text


def test_hostile_names_are_text_everywhere(findings_of):
    plain = Parsed(html.render(STUDY, findings_of()))
    hostile = Parsed(html.render(STUDY, findings_of(submitter=HOSTILE, system=HOSTILE, accelerator=HOSTILE)))
    # Names say where they may be broken, each by what it holds.
    tags, usual = ([each.tag for each in page.elements if each.tag != "wbr"] for page in (hostile, plain))
    assert tags == usual
    assert hostile.unbalanced == []
    assert "</script></td><img src=x onerror=" in hostile.all("h1")[0].text
    scripts = hostile.all("script", type="application/json")
    traces = [trace for script in scripts for trace in json.loads(script.text)["data"]]
    assert traces
    for trace in traces:
        assert "<img" not in json.dumps([trace.get("name"), trace.get("hovertext"), trace["y"]])


def test_a_section_without_its_findings_is_left_out_and_named(findings):
    page = Parsed(html.render(STUDY, replace(findings, claims=())))
    assert "claims" not in [found["id"] for found in page.all("section")]
    (title,) = [section.title for section in SECTIONS if section.name == "claims"]
    assert f": {title}" in page.all("footer")[0].text


def test_long_names_of_a_table_may_be_broken_behind_their_signs_and_nowhere_else():
    name = "Dell/results/XE8640x4H100-SXM-80GB/bert:608"
    columns = (Column(title="Source"), Column(title="Minutes", is_number=True))
    rows = ((Cell(text=name, detail="a/b", is_code=True), Cell(text="10.188")),)
    cell = re.search(
        r"<code>(.*?)</code>", html.rendered(Table(name="t", caption="T", columns=columns, rows=rows))
    )
    assert cell[1].split("<wbr>") == ["Dell/", "results/", "XE8640x4H100-", "SXM-", "80GB/", "bert:", "608"]
