"""Samples against batch: parameters recovered, intervals that cover, and refusal where the batches say nothing."""

import math
import re

import numpy as np
import pytest

from equipoise.errors import DataError, EvidenceError
from equipoise.scaling.convergence import Convergence, fit_convergence

BATCHES = 2.0 ** np.arange(7, 15)


def synthetic(rng: np.random.Generator, critical: float, *, num_groups: int) -> tuple[np.ndarray, ...]:
    """Entries of several rounds, each with its own target: (batch, samples, group)."""
    rows = []
    for group in range(num_groups):
        offset = 0.1 * rng.standard_normal()
        for batch in rng.choice(BATCHES, 5, replace=False):
            recipe = 0.04 * rng.standard_normal()
            for _ in range(rng.integers(1, 4)):
                log_factor = offset + recipe + 0.02 * rng.standard_normal()
                rows.append((batch, 1e6 * (1 + batch / critical) * math.exp(log_factor), group))
    return tuple(np.array(rows).T)


def test_exact_samples_give_back_both_parameters():
    found = fit_convergence(BATCHES, 2e6 * (1 + BATCHES / 3000.0))
    assert found.samples_min().value == pytest.approx(2e6, rel=0.01)
    assert found.batch_critical().value == pytest.approx(3000.0, rel=0.02)
    assert np.median(found.drawn_samples(np.array([3000.0]))) == pytest.approx(4e6, rel=0.01)


def test_the_critical_batch_doubles_the_samples():
    found = fit_convergence(BATCHES, 2e6 * (1 + BATCHES / 3000.0))
    assert found.growth(1e-6, found.batch_critical().value).value == pytest.approx(2.0, rel=1e-3)


def test_intervals_cover_at_their_stated_rate():
    rng = np.random.default_rng(4)
    held = []
    for _ in range(60):
        critical = math.exp(rng.uniform(math.log(1000.0), math.log(10_000.0)))
        found = fit_convergence(
            *synthetic(rng, critical, num_groups=int(rng.integers(1, 7)))
        ).batch_critical()
        held.append(found.low <= critical <= found.high)
    assert np.mean(held) > 0.9 - 0.12  # three standard errors of a share of 0.9 in 60 cases


def test_groups_with_another_target_do_not_bend_the_curve():
    # The second round is harder by a half and ran larger batches only: without offsets that looks like batch growth.
    small, large = BATCHES[:5], BATCHES[3:]
    batch = np.concatenate([small, large])
    samples = np.concatenate([1e6 * (1 + small / 8000.0), 1.5e6 * (1 + large / 8000.0)])
    group = np.repeat(["v1.0", "v1.1"], [len(small), len(large)])
    found = fit_convergence(batch, samples, group)
    assert found.batch_critical().value == pytest.approx(8000.0, rel=0.05)
    assert found.group_factor[1] / found.group_factor[0] == pytest.approx(1.5, rel=0.05)


def test_one_badly_tuned_recipe_counts_for_little():
    samples = 1e6 * (1 + BATCHES / 4000.0)
    samples[1] *= 2.0
    found = fit_convergence(BATCHES, samples)
    assert found.weight[1] == min(found.weight)
    assert found.batch_critical().value == pytest.approx(4000.0, rel=0.25)


def test_samples_that_do_not_grow_leave_the_critical_batch_open_above():
    rng = np.random.default_rng(9)
    found = fit_convergence(BATCHES, 1e6 * np.exp(0.01 * rng.standard_normal(len(BATCHES)))).batch_critical()
    assert found.high == math.inf
    assert found.low > BATCHES[-1]


@pytest.mark.parametrize("batches", [[], [256], [256, 512], [256, 300, 400]])
def test_too_little_spread_in_batch_is_not_enough_evidence(batches: list[float]):
    with pytest.raises(EvidenceError, match=r"\b3 distinct .*\b2\b") as refused:
        fit_convergence(batches, [1e6] * len(batches))
    assert refused.value.missing


def test_noise_alone_is_refused_with_what_to_add():
    with pytest.raises(EvidenceError, match=r"256-1,024 scatter") as refused:
        fit_convergence([256.0, 512.0, 1024.0], [1e6, 7e6, 2e6])
    (missing,) = refused.value.missing
    assert re.search("samples .*2,048", missing)


def test_impossible_entries_are_refused_with_their_place():
    with pytest.raises(DataError, match=r"entry 2 .*samples_to_target=-1\.0; .*finite .* 0\.$"):
        fit_convergence([1.0, 2.0, 4.0], [1.0, -1.0, 2.0])


def test_shape_of_the_record():
    found = fit_convergence(BATCHES, 2e6 * (1 + BATCHES / 3000.0), ["v4.1"] * len(BATCHES))
    assert isinstance(found, Convergence)
    assert found.group_factor.tolist() == [1.0]
    assert len(found.weight) == len(BATCHES)
