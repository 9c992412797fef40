"""The record of plans: its arithmetic by hand, and what ships is what plans of published trainings say."""

import math

import numpy as np
import polars as pl

from equipoise.decide.combine import record_of
from equipoise.decide.records.plans import planned
from equipoise.runs import embedded


def test_trainings_of_one_system_are_planned_as_the_record_says():
    scores = embedded.load().scores
    some = scores.filter(
        pl.col("workload").is_in(["gpt3", "llama31_405b"]) & (pl.col("accelerator") == "h100-sxm5-80gb")
        | (pl.col("workload") == "bert") & (pl.col("num_accelerators") == 64)
    )
    found = [each for each in planned(some) if each.planned_s is not None]
    assert len(found) > 10
    logs = [abs(math.log(each.planned_s / each.published_s)) for each in found]
    assert np.mean(np.array(logs) <= record_of("transformer").log_half_width) > 0.7


def test_only_the_best_result_of_a_size_in_recent_rounds_is_planned():
    scores = embedded.load().scores
    found = list(planned(scores.filter(pl.col("workload") == "retinanet", pl.col("num_accelerators") == 64)))
    groups = [each.group for each in found]
    assert groups
    assert len(set(groups)) == len(groups)
    assert {campaign for campaign, *_ in groups} <= {"v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1"}
