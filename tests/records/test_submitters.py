"""The spread of submitters: ratios by hand, a known spread found again, and intervals that hold at their rate."""

import numpy as np
import pytest
from submitters import log_ratios, submitter_spread

from equipoise.errors import EvidenceError
from equipoise.spec.mlperf import ScoredEntry


def _entries(rows):
    return [
        ScoredEntry(
            entry_id=f"e{place}",
            campaign=campaign,
            workload="bert",
            accelerator="h100-sxm5-80gb",
            num_accelerators=size,
            score_s=score_s,
            submitter=submitter,
        )
        for place, (campaign, submitter, size, score_s) in enumerate(rows)
    ]


def test_each_submitter_is_compared_with_the_best_of_the_others():
    found = log_ratios(
        _entries(
            [
                ("v1.0", "A", 8, 100.0),
                ("v1.0", "B", 8, 110.0),
                ("v1.0", "C", 8, 150.0),
                ("v1.0", "C", 8, 190.0),  # its own slower entry does not count
                ("v1.0", "A", 16, 60.0),  # nobody to compare with
                ("v1.1", "A", 16, 50.0),
            ]
        )
    )
    ratios = {each.submitter: np.exp(each.log_ratio) for each in found}
    assert ratios == pytest.approx({"a": 100 / 110, "b": 1.1, "c": 1.5})


def test_a_name_in_capitals_is_no_other_submitter():
    assert log_ratios(_entries([("v1.0", "Nettrix", 8, 100.0), ("v1.0", "nettrix", 8, 120.0)])) == ()


def test_a_known_spread_is_found_and_covers_at_its_rate():
    # Two submitters a size, times log-normal with deviation s: their log ratio has median 0 and deviation s sqrt(2).
    rng = np.random.default_rng(3)
    rounds = [f"v{number}.0" for number in range(1, 9)]
    rows = [
        (campaign, name, size, float(np.exp(0.1 * rng.standard_normal())))
        for campaign in rounds
        for size in range(1, 201)
        for name in ("a", "b")
    ]
    found = submitter_spread(_entries(rows))
    assert found.factor == pytest.approx(1.0, abs=0.02)
    assert found.log_sd == pytest.approx(0.1 * np.sqrt(2.0), rel=0.05)
    assert found.num_results == 8 * 400
    assert found.num_held_out == 7 * 400
    assert found.coverage == pytest.approx(0.9, abs=0.02)


def test_too_few_results_have_no_spread():
    with pytest.raises(EvidenceError, match=r"^2 .* 20"):
        submitter_spread(_entries([("v1.0", "A", 8, 100.0), ("v1.0", "B", 8, 110.0)]))
