"""The record of plans: its arithmetic by hand, and what ships is what plans of published trainings say."""

import math

import numpy as np
from plans import planned

from equipoise.decide.combine import record_of
from equipoise.runs import embedded
from equipoise.spec.mlperf import Scores


def test_trainings_of_one_system_are_planned_as_the_record_says():
    some = tuple(
        each
        for each in embedded.scores().entries
        if (each.workload in {"gpt3", "llama31_405b"} and each.accelerator == "h100-sxm5-80gb")
        or (each.workload == "bert" and each.num_accelerators == 64)
    )
    found = [each for each in planned(Scores(some)) if each.planned_s is not None]
    assert len(found) > 10
    logs = [abs(math.log(each.planned_s / each.published_s)) for each in found]
    assert np.mean(np.array(logs) <= record_of("transformer").log_half_width) > 0.7


def test_only_the_best_result_of_a_size_in_recent_rounds_is_planned():
    some = tuple(each for each in embedded.scores().of("retinanet") if each.num_accelerators == 64)
    found = list(planned(Scores(some)))
    groups = [each.group for each in found]
    assert groups
    assert len(set(groups)) == len(groups)
    assert {campaign for campaign, *_ in groups} <= {"v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1"}
