"""Curves joined by their slopes."""

import numpy as np
import pytest

from equipoise.advice.answer.evidence import Witness
from equipoise.advice.answer.joined import joined_curves, straight_between
from equipoise.advice.answer.witnesses import with_log_sd
from equipoise.scaling.law import Domain


def _witness(kind, power, level, spread):
    """Time = level x N^-power on 1 to 64."""
    sizes = [1, 2, 4, 8, 16, 32, 64]
    values = [level * size**-power for size in sizes]
    return Witness(
        kind=kind,
        name=kind,
        times={size: with_log_sd(value, spread) for size, value in zip(sizes, values, strict=True)},
        log_sds=dict.fromkeys(sizes, spread),
        why=dict.fromkeys(sizes, ""),
        sources=(),
        curves_s=straight_between(sizes, np.array([values])),
        domain=Domain(smallest=1.0, largest=32.0),
    )


def test_equal_witnesses_of_unlike_levels_keep_their_slope():
    pair = [_witness("published", 1.0, 100.0, 0.1), _witness("modelled", 1.0, 50.0, 0.1)]
    curves_s, _ = joined_curves(pair, with_log_sd(10.0, 0.1), 8)
    assert curves_s(np.array([8.0, 16.0]))[0] == pytest.approx([10.0, 5.0])


def test_slopes_are_weighed_by_hand():
    # slopes -1 and -0.5, weights 0.8 and 0.2: -0.9
    pair = [_witness("published", 1.0, 100.0, 0.1), _witness("modelled", 0.5, 100.0, 0.2)]
    curves_s, domain = joined_curves(pair, with_log_sd(1.0, 0.1), 1)
    assert curves_s(np.array([1.0, 16.0]))[0] == pytest.approx([1.0, 16.0**-0.9])
    assert (domain.smallest, domain.largest) == (1.0, 32.0)


def test_no_curve_is_made_of_points_alone():
    silent = _witness("published", 1.0, 100.0, 0.1)
    one = Witness(
        kind="published",
        name="",
        times=silent.times,
        log_sds=silent.log_sds,
        why=silent.why,
        sources=(),
    )
    assert joined_curves([one], with_log_sd(1.0, 0.1), 1) is None
