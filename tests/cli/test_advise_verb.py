"""The verb `advise` as scripts and people meet it."""

import json
import re

import pytest
from command_line import equipoise

COMMON = ["llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--max-accelerators", "32"]


def _run(*arguments, **kwargs):
    return equipoise("advise", *arguments, **kwargs)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    options = ["--json-out", str(folder / "a.json"), "--html", str(folder / "a.html")]
    done = _run(*COMMON, *options, cwd=folder)
    return done, json.loads((folder / "a.json").read_text()), (folder / "a.html").read_text()


def test_text_fits_eighty_columns_and_begins_with_the_answer(answered):
    done, _, _ = answered
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("  http"))
    assert any(line.startswith("Take ") for line in lines[:5])


def test_the_document_keeps_its_contract(answered):
    _, found, _ = answered
    assert found["schema"] == "equipoise.advise/1"
    best = found["recommended"]
    assert best["num_accelerators"] in {8, 16, 32}
    assert best["time_s"]["low"] < best["time_s"]["value"] < best["time_s"]["high"]
    for name in ("usd", "energy_j", "carbon_kg", "memory_bytes", "strategy"):
        assert best[name] is not None
    weights = [each["weight"] for each in found["evidence"]]
    assert sum(weights) == pytest.approx(1.0, abs=1e-4)
    for name in ("alternatives", "pareto", "equilibria", "rejected", "record", "num_considered", "search_s"):
        assert name in found


def test_the_page_puts_the_answer_first(answered):
    _, found, page = answered
    size = found["recommended"]["num_accelerators"]
    head = page[: page.index("<h2")]
    assert re.search(rf"take {size} \S+ H200", head)


def test_nothing_to_go_on_is_exit_3_with_what_is_missing():
    done = _run("bert", "--here", "--json")
    if done.returncode == 0:
        pytest.skip("this machine has an accelerator that is known")
    assert done.returncode == 3
    assert json.loads(done.stdout)["missing"]


def test_what_names_nothing_is_exit_2():
    assert _run("no_such_thing", "--accelerator", "h100-sxm5-80gb").returncode == 2
    assert _run("bert").returncode == 2
