"""The curves that numbers are advised on: about the combined times, by hand."""

import numpy as np
import pytest
from combined import about_combined, taken_sizes

from equipoise.decide.combine import straight_between
from equipoise.decide.evidence import DrawnCurves, Estimate, Estimates
from equipoise.intervals import with_log_sd
from equipoise.scaling.laws import Domain


def estimates(name, times_s, log_sd):
    found = {
        size: Estimate(
            estimator=name, name=name, time_s=with_log_sd(time_s, log_sd), log_sd=log_sd, why="by hand"
        )
        for size, time_s in times_s.items()
    }
    return Estimates(
        estimator=name,
        name=name,
        by_size=found,
        grade=dict.fromkeys(found, "published"),
        curves=DrawnCurves(
            time_s=straight_between(list(times_s), np.array([list(times_s.values())])),
            domain=Domain(smallest=float(min(times_s)), largest=float(max(times_s))),
        ),
    )


def test_the_median_curve_passes_through_the_combined_times():
    # weights 0.8 and 0.2; at 16 only the model has a time
    published = estimates("published", {4: 100.0, 8: 60.0}, 0.1)
    model = estimates("model", {4: 50.0, 8: 60.0, 16: 20.0}, 0.2)
    drawn = np.array([[90.0, 50.0, 30.0], [100.0, 55.0, 33.0], [120.0, 66.0, 36.0]])
    found = about_combined(straight_between([4, 8, 16], drawn), (published, model))
    at = np.array([4.0, 8.0, 16.0])
    assert np.median(found(at), axis=0) == pytest.approx([100.0**0.8 * 50.0**0.2, 60.0, 20.0])
    # draws keep their ratio to the median
    assert found(at)[2, 0] / found(at)[1, 0] == pytest.approx(1.2)


def test_between_sizes_the_ratio_is_straight_in_both_logarithms():
    published = estimates("published", {4: 100.0, 16: 100.0}, 0.1)
    found = about_combined(straight_between([4, 16], np.array([[50.0, 200.0]])), (published,))
    # ratios 2 and 1/2: 1 half way, where the curve has the geometric mean
    assert found(np.array([8.0]))[0] == pytest.approx([100.0])


def test_numbers_are_chosen_from_powers_of_two_and_both_ends():
    assert taken_sizes(Domain(smallest=6.0, largest=100.0)) == (6, 8, 16, 32, 64, 100)
    assert taken_sizes(Domain(smallest=4.0, largest=16.0)) == (4, 8, 16)
