"""The page of a topology: sound, offline, every pair in its matrix, and nothing of the text that runs."""

import re

import pytest
from parsed_page import Parsed, printed

from equipoise.bench.topology import read
from equipoise.diagnose.link_findings import sentences
from equipoise.diagnose.links import meaning
from equipoise.report import html
from equipoise.report.pages.topology import TOPOLOGY

HOSTILE = "</script><img/src=x/onerror=alert('x')>\u202e\x1b[2J"
TONES = {"good", "bad", "plain", "quiet"}
CUT = (
    "GPU 0: NVIDIA L40S (UUID: GPU-1)\nGPU 1: NVIDIA L40S (UUID: GPU-2)\nGPU 2: NVIDIA L40S (UUID: GPU-3)\n"
    "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\nGPU0\t X \tNODE\tSYS\tPIX\t0-3\nGPU1\tNODE\t X \tSYS\tNODE\t0-3\n"
    f"\nLegend:\n\nNIC Legend:\n\n  NIC0: {HOSTILE}\n"
)


@pytest.fixture(scope="module")
def found():
    return meaning(read(CUT.encode(), where="pasted"))


@pytest.fixture
def page(found):
    return Parsed(html.render(TOPOLOGY, found))


def test_it_is_well_formed_with_unique_anchors_and_a_way_to_each_section(page):
    assert page.unbalanced == []
    assert page.open == []
    anchors = [each["id"] for each in page.elements if "id" in each]
    assert len(anchors) == len(set(anchors))
    sections = [each["id"] for each in page.all("section")]
    assert sections == ["topology-links", "topology-reach", "topology-gains", "topology-groups"]
    assert {f"#{name}" for name in sections} <= {each["href"] for each in page.all("a")}
    labels = {each.get("aria-labelledby") for each in page.elements}
    assert labels - {None} <= set(anchors)


def test_the_matrix_has_a_word_for_every_pair(page):
    (table,) = page.all("table", class_="matrix")
    assert table.text.startswith("GPU0GPU1GPU2NIC0")
    words = [each.text for each in page.all("td") if each.get("class") in TONES]
    assert (words.count("NODE"), words.count("SYS"), words.count("PIX"), words.count("?")) == (4, 4, 2, 2)
    body = page.all("body")[0].text
    assert "Missing rows: GPU2 and NIC0" in body
    assert "NUMA" in body


def test_names_of_the_text_are_never_more_than_text(found):
    text = html.render(TOPOLOGY, found)
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_a_terminal(found, width):
    told = printed(TOPOLOGY, found, width=width)
    lines = told.splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("GPU1") and "NODE" in line for line in lines)
    assert "\x1b" not in told


def test_a_machine_without_links_has_a_page_too():
    alone = meaning(
        read(b"GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n  MIG 1g.10gb Device 0: (UUID: M)\n", where="x")
    )
    page = Parsed(html.render(TOPOLOGY, alone))
    assert page.all("h1")[0].text.startswith("One accelerator")
    assert page.all("table", class_="matrix") == []
    assert re.search(r"GPU0 .*\b1 MIG slice\b", page.all("body")[0].text)


def test_links_of_an_accelerator_that_is_cut_gain_nothing():
    slices = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: A)\n  MIG 3g.40gb Device 0: (UUID: M)\n"
    whole = "".join(f"GPU {each}: NVIDIA A100-SXM4-80GB (UUID: B)\n" for each in (1, 2))
    matrix = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV12\tNV12\nGPU1\tNV12\tX\tNV12\nGPU2\tNV12\tNV12\tX\n"
    (reached,) = meaning(read((slices + whole + matrix).encode(), where="x")).reached
    assert reached.num_pairs == 1
    pair = matrix.replace("\tGPU2", "").replace("\tNV12\n", "\n").rpartition("GPU2")[0]
    cut = meaning(read((slices + whole.splitlines()[0] + "\n" + pair).encode(), where="x"))
    assert not cut.gains
    assert "MIG" in printed(TOPOLOGY, cut, full=False, width=100)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090"), r"differ: .*3090 and .*4090"),
        (("NVIDIA GeForce RTX 4090", None), r"[Oo]nly .* NVIDIA GeForce RTX 4090"),
        (("NVIDIA GeForce RTX 4090", "NVIDIA Foo"), r"lacks NVIDIA Foo \("),
    ],
)
def test_what_is_known_of_the_accelerators_is_named(names, words):
    listed = "".join(f"GPU {at}: {name} (UUID: {at})\n" for at, name in enumerate(names) if name)
    found = meaning(read(f"{listed}\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n".encode(), where="x"))
    assert [each for each in sentences(found) if re.search(words, each)]
