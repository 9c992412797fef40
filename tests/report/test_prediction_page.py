"""The page of a prediction: its figures are those of the record, and it fits a terminal."""

import re

import polars as pl
import pytest
from parsed_page import printed

from equipoise.decide.prediction import predict
from equipoise.decide.question.query import query
from equipoise.report.format import duration, money
from equipoise.report.html import render as html
from equipoise.report.json import prediction_fields
from equipoise.report.pages.prediction import PREDICTION
from equipoise.report.terminal import SCREEN_LINES
from equipoise.runs import embedded
from equipoise.runs.store import scores_of
from equipoise.scaling.equilibrium import default_answer

ASKED = {
    "published": {"workload": "llama2_70b_lora", "accelerator": "h200-sxm5-141gb", "at": "64,256"},
    "one size": {"workload": "bert", "accelerator": "h100-sxm5-80gb", "at": 64, "price": 2},
    "law": {"workload": "bert", "accelerator": "h100-sxm5-80gb", "law": "amdahl", "at": "64,10000"},
}


@pytest.fixture(scope="module", params=list(ASKED))
def found(request):
    return predict(query(ASKED[request.param]), scores=embedded.scores())


@pytest.mark.parametrize("full", [False, True], ids=["one screen", "full"])
def test_the_text_fits_and_has_the_figures_of_the_candidates(found, full):
    text = printed(PREDICTION, found, full=full)
    assert max(map(len, text.splitlines())) <= 80
    assert found.candidates
    for each in found.candidates:
        assert duration(each.time_s.value) in text
        assert money(each.usd.value).removesuffix(" USD") in text


def test_names_are_those_of_the_questions_own_files(tmp_path):
    (tmp_path / "model.toml").write_text(
        '[workload.bert]\ntitle = "Our BERT"\narea = "language"\nparams = 0.3e9\nsource = "ours"\n'
    )
    (tmp_path / "chip.toml").write_text(
        '[accelerator.ours-96gb]\ntitle = "Ours 96 GB"\nvendor = "Ours"\nkind = "gpu"\nmemory_bytes = 96e9\n'
        "memory_byte_per_s = 3e12\npeak_bf16_flop_per_s = 1e15\npower_w = 700\nnode_size = 8\n"
        'topology = "switch"\nlink_byte_per_s = 4e11\ninter_byte_per_s = 5e10\nintra_latency_s = 3e-6\n'
        'inter_latency_s = 1e-5\nsource = "a datasheet"\nconfidence = "medium"\n'
    )
    scores = embedded.load().scores.with_columns(
        accelerator=pl.col("accelerator").replace("h100-sxm5-80gb", "ours-96gb")
    )
    files = {"workloads": tmp_path / "model.toml", "hardware": tmp_path / "chip.toml"}
    asked = query({"workload": "bert", "accelerator": "ours-96gb", "at": "64", **files})
    found = predict(asked, scores=scores_of(scores))
    assert PREDICTION.about(found).startswith("Our BERT on Ours 96 GB,")


def test_an_extrapolation_is_called_that(found):
    assert ("extrapolated" in printed(PREDICTION, found, full=False)) == bool(found.outside)
    assert len(re.findall(r"^Extrapolated at", printed(PREDICTION, found, full=True), re.MULTILINE)) == len(
        set(found.outside.values())
    )


def test_the_page_and_the_document_have_the_same_times(found):
    page = html(PREDICTION, found).replace("&nbsp;", " ").replace("\N{NO-BREAK SPACE}", " ")
    document = prediction_fields(found)
    assert list(document)[:3] == ["question", "currency", "predictions"]
    assert "answer" not in document
    assert found.candidates
    for shown, each in zip(document["predictions"], found.candidates, strict=True):
        assert shown["id"] == each.id
        assert shown["time_s"]["value"] == pytest.approx(each.time_s.value, rel=1e-5)
        assert shown["in_domain"] == (each.num_accelerators not in found.outside)
        assert duration(each.time_s.value) in page


def test_what_a_prediction_rests_on_is_listed(found):
    text = " ".join(printed(PREDICTION, found, full=True).split())
    assert "Evidence" in text
    assert found.law is None or f"Law {found.law.name}" in text
    assert any(each.ref in text for each in found.evidence)


def test_many_sizes_fit_a_screen_the_first_and_the_last_among_them():
    sizes = range(8, 8 * 61, 8)
    asked = ASKED["published"] | {"at": ",".join(map(str, sizes))}
    text = printed(PREDICTION, predict(query(asked), scores=embedded.scores()), full=False)
    assert len(text.splitlines()) <= SCREEN_LINES
    shown = [int(each) for each in re.findall(r"^ *(\d+) .* kWh", text, re.MULTILINE)]
    assert (shown[0], shown[-1]) == (8, 480)
    assert f"{len(sizes) - len(shown)} sizes" in text


def test_a_deadline_has_its_chance_at_every_size():
    found = printed(
        PREDICTION,
        _asked(workload="bert", accelerator="h100-sxm5-80gb", at="32,128", deadline="1min"),
        full=False,
    )
    rows = [line for line in found.splitlines() if re.match(r" *\d+ {2,}", line)]
    assert ["below 1 %" in row for row in rows] == [True, False]  # 108 s (102 to 120) and 45 s (32 to 62)
    chance = re.search(r"(\d+) %", rows[1])
    assert chance is not None
    assert int(chance[1]) > 50


@pytest.mark.parametrize(("hour_usd", "size"), [(1, "4"), (1e6, "4,096")])
def test_the_value_of_an_hour_names_a_size(hour_usd, size):
    asked = _asked(workload="bert", accelerator="h100-sxm5-80gb", at="4,4096", value_of_time=hour_usd)
    assert f": {size} cost least" in printed(PREDICTION, asked, full=False)


def test_the_size_where_returns_diminish_is_in_the_short_table():
    found = _asked(workload="bert", accelerator="h100-sxm5-80gb")
    first = default_answer(found.equilibria).num_accelerators
    assert re.search(rf"^ *{first:,} ", printed(PREDICTION, found, full=False), flags=re.MULTILINE)


def _asked(**fields):
    return predict(query(fields), scores=embedded.scores())


def _slow_times(tmp_path):
    """Own times of BERT, forty times as long as published ones: nobody can say much of large sizes."""
    (tmp_path / "mine.csv").write_text("gpus,time_to_train_h\n8,3.3\n16,1.8\n64,0.7\n")
    return {"workload": "bert", "accelerator": "h100-sxm5-80gb", "from": tmp_path / "mine.csv"}


def test_returns_are_of_all_sizes_that_have_a_time_whatever_is_asked_for():
    found = predict(query(ASKED["one size"]), scores=embedded.scores())
    sizes = [each.num_accelerators for each in found.answer.candidates if each.time_s is not None]
    text = " ".join(printed(PREDICTION, found, full=False).split())
    said = re.findall(r"\bamong ([\d,]+) to ([\d,]+)", text)
    assert [tuple(int(each.replace(",", "")) for each in ends) for ends in said] == [(min(sizes), max(sizes))]
    assert max(sizes) > 64


def test_sizes_without_a_time_are_in_the_short_table_only_where_they_are_asked_for():
    # All results are of 8: nobody can say what 1,024 take.
    of_one_size = {"workload": "dlrm", "accelerator": "a30-pcie-24gb"}
    found = _asked(**of_one_size)
    untimed = [each.num_accelerators for each in found.candidates if each.time_s is None]
    assert untimed
    short, full = (printed(PREDICTION, found, full=each) for each in (False, True))
    for size in untimed:
        assert not re.search(rf"^ *{size:,} ", short, re.MULTILINE)
        assert re.search(rf"^ *{size:,} .*no time *$", full, re.MULTILINE)
    reasons = {each.why_not for each in found.candidates if each.time_s is None}
    assert len(re.findall(r"^No time ", full, re.MULTILINE)) == len(reasons)
    # Once for each reason, however many sizes have it.
    shown = {each.num_accelerators for each in found.candidates}
    why = [words for size, words in found.outside.items() if size in shown]
    assert full.count("Extrapolated") == len({*why}) < len(why)
    asked = printed(PREDICTION, _asked(**of_one_size, at=f"64,{untimed[-1]}"), full=False)
    assert re.search(rf"^ *{untimed[-1]:,} .*no time *$", asked, re.MULTILINE)


def test_a_size_on_which_nothing_fits_is_named_on_the_screen():
    # 405e9 parameters of 2 bytes alone are 810 GB, of 8 x 80 GB.
    found = _asked(workload="llama31_405b", accelerator="h100-sxm5-80gb", at="8,512")
    assert [each.num_accelerators for each in found.candidates] == [512]
    assert re.search(r"^No time +8: .*640 GB", printed(PREDICTION, found, full=False), re.MULTILINE)


def test_a_column_without_a_title_is_not_named_as_left_out(tmp_path):
    asked = {"from": _slow_times(tmp_path)["from"], "deadline": "30min", "price": 2, "at": "32,128"}
    text = printed(PREDICTION, _asked(**asked), full=False)
    assert not re.search(r": *;", text)
