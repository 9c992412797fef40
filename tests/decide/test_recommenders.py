"""Recommenders with tables spread over ranks: published trainings, and memory by number of accelerators."""

import math
import statistics

import polars as pl
import pytest

from equipoise.calibration.profiles import model_for
from equipoise.decide.question.query import query
from equipoise.decide.question.training import training
from equipoise.decide.strategies.strategy_search import problem
from equipoise.runs.embedded import tables
from equipoise.spec.catalogue import shipped


def timed(chip, size, *, samples, batch):
    """The plan of DLRM-DCNv2 on so many accelerators."""
    nodes = shipped().cluster(chip, num_accelerators=size)
    asked = {"workload": "dlrm_dcnv2", "samples": samples, "global_batch": batch}
    about = training(query(asked), shipped(), None)
    known = problem(about, nodes, model_for(nodes.accelerator, about.workload), num_best=1)
    (found,) = known.search_sizes((size,))
    return known.timed([found.best[0].strategy]).strategies[0]


@pytest.mark.truth
def test_plans_take_as_long_as_mlperf_results():
    found = (
        tables()
        .scores.filter(
            (pl.col("workload") == "dlrm_dcnv2")
            & (pl.col("division") == "closed")
            & pl.col("samples_to_target").is_not_null()
            & pl.col("accelerator").str.contains("sxm|nvl")
        )
        .group_by("accelerator", "num_accelerators", "global_batch_samples")
        .agg(pl.col("score_s").min(), pl.col("samples_to_target").median())
    )
    ratios, inside = [], []
    for row in found.iter_rows(named=True):
        one = timed(
            row["accelerator"],
            row["num_accelerators"],
            samples=row["samples_to_target"],
            batch=row["global_batch_samples"],
        )
        ratios.append(one.work_s.value / row["score_s"])
        inside.append(one.work_s.low <= row["score_s"] <= one.work_s.high)
    assert len(ratios) >= 15
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.15)
    assert statistics.median(abs(math.log(each)) for each in ratios) < 0.2
    assert sum(inside) >= 0.9 * len(inside)


def test_each_rank_holds_its_part_of_the_tables():
    few, many = (timed("h100-sxm5-80gb", size, samples=1e9, batch=65_536) for size in (8, 16))
    less = few.memory_by_kind_bytes["weights"] - many.memory_by_kind_bytes["weights"]
    assert less == pytest.approx(4 * 26.14e9 / 16, rel=0.05)
    assert few.by_cause_s["tables"] > many.by_cause_s["tables"] > 0
