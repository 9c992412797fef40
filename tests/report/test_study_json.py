import math

import orjson
import polars as pl
import pytest

from equipoise.report.pages.orientation import score_fields
from equipoise.report.pages.study import report_fields
from equipoise.scaling.metrics import LOSSES
from equipoise.study import scores
from equipoise.study.rounds import study


@pytest.fixture(scope="module")
def report():
    return report_fields(study())


def _numbers(value):
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, (list, tuple)) or not isinstance(value, (str, bytes, int, float, type(None))):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, float):
        yield value


def test_scores_document_is_the_frame_row_by_row():
    frame = scores(round="v4.1", workload="bert")
    entries = score_fields(frame)["entries"]
    assert pl.DataFrame(entries, schema=frame.schema).equals(frame)


def test_unknown_is_null_and_never_nan():
    frame = pl.DataFrame({"score_s": [1.0, float("nan"), float("inf"), None]})
    assert [row["score_s"] for row in score_fields(frame)["entries"]] == [1.0, None, None, None]


def test_report_document_has_the_fields_of_the_contract(report):
    assert report["round"] == "v4.1"
    assert report["workloads"]
    for workload in report["workloads"]:
        assert {"workload", "num_entries", "reference", "entries", "claims"} <= workload.keys()
        assert {"submitter", "system", "num_accelerators", "score_s"} <= workload["reference"].keys()
        assert workload["entries"]
        for entry in workload["entries"]:
            assert {"round", "score_s", "like_for_like_baseline", "reason", "cluster"} <= entry.keys()
            assert entry["factors"].keys() == {
                "generation", "statistical", "throughput", "training", "overhead", "rules",
            }  # fmt: skip
    claims = [claim for workload in report["workloads"] for claim in workload["claims"]]
    assert {claim["number"] for claim in claims} == {1, 2, 3, 4, 5, 6}
    for claim in claims:
        assert {"claim", "study_method", "like_for_like", "verdict"} <= claim.keys()


def test_claims_of_a_workload_are_those_about_it(report):
    numbers = {
        workload["workload"]: [claim["number"] for claim in workload["claims"]]
        for workload in report["workloads"]
    }
    assert numbers == {
        "bert": [1, 5, 6],
        "llama2_70b_lora": [2, 3, 5, 6],
        "retinanet": [3, 5, 6],
        "stable_diffusion": [4, 5, 6],
    }


def test_report_document_is_plain_json(report):
    assert orjson.loads(orjson.dumps(report)) == report
    numbers = list(_numbers(report))
    assert numbers
    assert all(map(math.isfinite, numbers))


def test_equilibria_have_the_fields_of_the_contract_and_one_answer_an_accelerator(report):
    assert report["workloads"]
    for workload in report["workloads"]:
        answers = [each["accelerator"] for each in workload["equilibria"] if each["is_answer"]]
        assert sorted(answers) == sorted({each["accelerator"] for each in workload["equilibria"]})
        assert workload["equilibria"]
        for each in workload["equilibria"]:
            assert {
                "kind", "num_accelerators", "low", "high", "limited_by", "efficiency", "time_s", "next_step",
                "accelerator_hours", "usd", "energy_j", "energy_basis", "carbon_kg",
            } <= each.keys()  # fmt: skip
            assert {"gain_s", "gain_fraction", "accelerator_hours_factor"} <= each["next_step"].keys()


def test_fit_holds_both_laws_with_intervals(report):
    bert = next(each for each in report["workloads"] if each["workload"] == "bert")
    samples = bert["fit"]["samples_to_target"]
    assert samples["samples_min"]["low"] < samples["samples_min"]["value"] < samples["samples_min"]["high"]
    assert bert["fit"]["curves"]
    for curve in bert["fit"]["curves"]:
        assert curve["predictions"]
        for each in curve["predictions"]:
            assert each["low_s"] < each["time_s"] < each["high_s"]


def test_losses_of_every_entry_sum_to_its_own(report):
    assert report["workloads"]
    for workload in report["workloads"]:
        assert workload["losses"]
        for each in workload["losses"]:
            parts = [each[name] for name in LOSSES if each[name] is not None]
            assert sum(parts) == pytest.approx(each["lost_doublings"], abs=1e-9)
