"""Samples to target against global batch: S(B) = S_min (1 + B / B_crit), fitted to all rounds."""

import math
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike

from equipoise.errors import DataError, EvidenceError
from equipoise.intervals import LEVEL, Interval, tails
from equipoise.scaling.laws import FloatArray
from equipoise.scaling.posterior import GOLDEN, IntArray, adaptive_grid, even_deviates, even_draws, log_sum
from equipoise.spec.mlperf import ScoredEntry
from equipoise.stats import medians, percentile_interval, quantiles
from equipoise.units import MOST_LISTED, format_amount, format_count, listed

# Prior grids of noise, as sd of log samples, all equally likely: of one entry; of all entries of a group at
# one batch, which share a recipe; and of a group (a round), whose target or rules differ from other groups'.
_ENTRY_NOISE = np.geomspace(0.003, 0.3, 6)
_RECIPE_NOISE = np.geomspace(0.005, 0.4, 6)
_GROUP_NOISE = np.array([0.0, 0.03, 0.08, 0.2, 0.4])
_TAIL_FREEDOM = 4.0  # degrees of freedom of Student's t for deviations of recipes
_REWEIGHTINGS = 8

# Bounds of B_crit, as factors of the smallest and of the largest batch.
_CRITICAL_BELOW, _CRITICAL_ABOVE = 0.1, 100.0
_MIN_SPREAD = 2.0
_MIN_BATCHES = 3
_WIDEST_INTERVAL = 300.0
_NUM_DRAWS = 1000


class Convergence(Struct, frozen=True, kw_only=True):
    """The fitted law of samples to target against global batch.

    draws: equally likely (S_min, B_crit) of the average group, (n, 2). batch_samples, samples_to_target,
    group: the fitted entries, (n_entries,). group_factor: samples of each group over those of the average,
    (n_groups,).
    weight: of each entry, from 0 (far from the curve) to about 1, (n_entries,). stretch: factor on the
    variance of each recipe in the last reweighting, (n_recipes,).
    """

    draws: FloatArray
    batch_samples: FloatArray
    samples_to_target: FloatArray
    group: IntArray
    group_factor: FloatArray
    weight: FloatArray
    stretch: FloatArray

    def samples_min(self) -> Interval:
        """S_min: samples needed in the limit of small batches, in the average group."""
        return _interval(self.draws[:, 0])

    def batch_critical(self) -> Interval:
        """B_crit: the batch that doubles S_min; its upper bound is infinite where no growth was seen."""
        found = _interval(self.draws[:, 1])
        unseen = self.batch_samples.max() * _CRITICAL_ABOVE / 2.0
        return replace(found, high=found.high if found.high < unseen else math.inf)

    def drawn_samples(self, batch_samples: FloatArray) -> FloatArray:
        """Equally likely samples to target at batches: (n,) -> (n_draws, n)."""
        return np.asarray(self.draws[:, :1] * (1.0 + batch_samples / self.draws[:, 1:]))

    def growth(self, from_batch_samples: float, to_batch_samples: float) -> Interval:
        """Ratio of samples needed when the batch changes; independent of S_min and of the group.

        Source: the ratio of S(B) at two batches.
        """
        critical = self.draws[:, 1]
        return _interval((critical + to_batch_samples) / (critical + from_batch_samples))


class _Recipes(Struct, frozen=True, kw_only=True):
    """Entries grouped by group and batch.

    batch, log_samples, num_entries: (n_recipes,). membership: 1.0 where a recipe is in a group,
    (n_groups, n_recipes). within: sum of squared deviations of entries from their recipe; freedom: its
    degrees of freedom. of_entry: recipe of each entry, (n_entries,).
    """

    batch: FloatArray
    log_samples: FloatArray
    num_entries: FloatArray
    membership: FloatArray
    within: float
    freedom: float
    of_entry: IntArray

    def critical(self, unit: FloatArray) -> FloatArray:
        """B_crit of grid cells, log-uniform over its plausible range: (n, 1) in 0..1 -> (n,)."""
        least, most = self.batch.min() * _CRITICAL_BELOW, self.batch.max() * _CRITICAL_ABOVE
        return np.asarray(least * (most / least) ** unit[:, 0])


class _Noise(Struct, frozen=True, kw_only=True):
    """Combinations of the three noise levels: (n_noises,) each."""

    entry: FloatArray
    recipe: FloatArray
    group: FloatArray


class _Weighted(Struct, frozen=True, kw_only=True):
    """Posterior of curves. log_weight, log_min (log S_min): (n_cells, n_noises); log_min_sd: (n_noises,)."""

    log_weight: FloatArray
    log_min: FloatArray
    log_min_sd: FloatArray


class _Model(Struct, frozen=True, kw_only=True):
    """Recipes scattered around one curve with an offset for each group.

    stretch: factor on each recipe's variance, (n_recipes,).
    """

    recipes: _Recipes
    noise: _Noise
    stretch: FloatArray

    def weigh(self, unit: FloatArray) -> _Weighted:
        """The weight of each curve with each noise level; S_min and offsets are integrated exactly.

        unit: (n_cells, 1).

        Source: the normal linear model with random intercepts, Gelman et al. 2013, chapter 15; the inverse of
        its covariance by Sherman and Morrison 1950, group by group.
        """
        recipes, noise = self.recipes, self.noise
        precision = self._precision()
        in_group = recipes.membership @ precision  # (n_groups, n_noises)
        # Part of a group's mean deviation that is not attributed to its offset.
        kept = 1.0 / (1.0 + noise.group**2 * in_group)
        total = np.sum(in_group * kept, axis=0)
        residual = self._residual(unit)
        log_min = np.zeros((len(unit), len(noise.entry)))
        chi_square = residual**2 @ precision
        for members, share in zip(recipes.membership > 0.0, kept, strict=True):
            pull = residual[:, members] @ precision[members]
            log_min += pull * share / total
            chi_square -= pull**2 * share * noise.group**2
        chi_square -= log_min**2 * total
        of_noise = (
            0.5 * np.log(precision).sum(axis=0)
            + 0.5 * np.log(kept).sum(axis=0)
            - 0.5 * np.log(total)
            - recipes.freedom * np.log(noise.entry)
            - recipes.within / (2.0 * noise.entry**2)
        )
        return _Weighted(
            log_weight=of_noise - 0.5 * np.maximum(chi_square, 0.0), log_min=log_min, log_min_sd=total**-0.5
        )

    def score(self, unit: FloatArray) -> FloatArray:
        """The log weight of each curve, summed over noise levels: (n_cells,)."""
        return log_sum(self.weigh(unit).log_weight)

    def departures(self, unit: FloatArray, weighted: _Weighted) -> tuple[FloatArray, FloatArray]:
        """Group offsets, (n_groups,), and next stretch, (n_recipes,), by the likeliest curve.

        Source: expectation step for Student's t, Lange, Little and Taylor 1989, JASA 84, 881.
        """
        cell, level = np.unravel_index(np.argmax(weighted.log_weight), weighted.log_weight.shape)
        precision = self._precision()[:, level]
        residual = self._residual(unit[[cell]])[0] - weighted.log_min[cell, level]
        members, group_variance = self.recipes.membership, self.noise.group[level] ** 2
        offsets = (
            group_variance
            * (members @ (precision * residual))
            / (1.0 + group_variance * (members @ precision))
        )
        common = self.stretch * precision  # precision before stretching
        squares = (residual - offsets @ members) ** 2 * common
        return offsets, (_TAIL_FREEDOM + squares) / (_TAIL_FREEDOM + 1.0)

    def _precision(self) -> FloatArray:
        """Precision of recipes: (n_recipes, n_noises)."""
        variance = self.noise.recipe**2 + self.noise.entry**2 / self.recipes.num_entries[:, None]
        return np.asarray(1.0 / (variance * self.stretch[:, None]))

    def _residual(self, unit: FloatArray) -> FloatArray:
        """Log samples minus the log of the curve with S_min = 1: (n_cells, n_recipes)."""
        growth = 1.0 + self.recipes.batch / self.recipes.critical(unit)[:, None]
        return np.asarray(self.recipes.log_samples - np.log(growth))


def fit_convergence(
    batch_samples: ArrayLike,
    samples_to_target: ArrayLike,
    group: ArrayLike | None = None,
    *,
    stretch: ArrayLike | None = None,
) -> Convergence:
    """Fit the law of samples against batch to entries.

    batch_samples, samples_to_target: above 0, (n_entries,). group: labels of any type, (n_entries,); entries
    of a group share one offset, because targets, rules and data differ between rounds. Entries of one group
    and batch count as one recipe. stretch: of an earlier fit to the same entries, to repeat its last step.
    Raises EvidenceError, with what to add, if the batches differ too little.
    Assumes recipes are tuned about equally well at every batch.
    Source: McCandlish et al. 2018, arXiv 1812.06162 (S_min: their E_min); offsets as in Gelman et al. 2013,
    chapter 15.
    """
    batch, samples = (np.asarray(values, dtype=float) for values in (batch_samples, samples_to_target))
    _require_spread(batch, samples)
    label = np.zeros(len(batch)) if group is None else np.asarray(group)
    index = np.unique(label, return_inverse=True)[1].astype(np.int64)
    recipes = _recipes(batch, samples, index)
    next_stretch = np.ones(len(recipes.batch)) if stretch is None else np.asarray(stretch, dtype=float)
    for _ in range(_REWEIGHTINGS if stretch is None else 1):
        model = _Model(recipes=recipes, noise=_noise(len(recipes.membership)), stretch=next_stretch)
        unit, _ = adaptive_grid(1, model.score)
        weighted = model.weigh(unit)
        offsets, next_stretch = model.departures(unit, weighted)
    cell, level = even_draws(weighted.log_weight, _NUM_DRAWS)
    deviates = even_deviates(_NUM_DRAWS, GOLDEN)
    log_min = weighted.log_min[cell, level] + deviates * weighted.log_min_sd[level]
    found = Convergence(
        draws=np.stack([np.exp(log_min), recipes.critical(unit[cell])], axis=1),
        batch_samples=batch,
        samples_to_target=samples,
        group=index,
        group_factor=np.exp(offsets),
        weight=1.0 / next_stretch[recipes.of_entry],
        stretch=model.stretch,
    )
    bounds = _interval(found.draws[:, 1])
    if bounds.high > _WIDEST_INTERVAL * bounds.low and bounds.low < batch.min():
        raise EvidenceError(
            f"the samples to target at batches of {format_count(batch.min())}-{format_count(batch.max())} "
            "scatter too much to show how they grow: B_crit may be anything from "
            f"{format_amount(bounds.low)} to {format_amount(bounds.high)}.",
            missing=_missing(batch),
        )
    return found


def _interval(draws: FloatArray) -> Interval:
    return percentile_interval(draws, value=float(medians(draws)), level=LEVEL)


def _require_spread(batch: FloatArray, samples: FloatArray) -> None:
    """Raise if values are impossible, or batches too similar to show growth."""
    for name, values in (("batch_samples", batch), ("samples_to_target", samples)):
        wrong = ~(np.isfinite(values) & (values > 0.0))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise DataError(
                f"entry {first + 1} has {name}={values[first]}; expected a finite number above 0."
            )
    distinct = np.array(sorted({*batch.tolist()}))
    if len(distinct) < _MIN_BATCHES or distinct[-1] < _MIN_SPREAD * distinct[0]:
        seen = listed(map(format_count, distinct), MOST_LISTED) or "none"
        raise EvidenceError(
            f"samples against batch need {_MIN_BATCHES} distinct global batches that span a factor of "
            f"{_MIN_SPREAD:g}; got {seen}.",
            missing=_missing(distinct),
        )


def _missing(batch: FloatArray) -> tuple[str, ...]:
    """Measurements that would show how samples grow with the batch."""
    if len(batch) == 0:
        return (f"samples to target at {_MIN_BATCHES} global batches that span a factor of {_MIN_SPREAD:g}",)
    more = format_count(_MIN_SPREAD * batch.max())
    return (f"samples to target at a global batch of {more} or more, repeated",)


def _recipes(batch: FloatArray, samples: FloatArray, group: IntArray) -> _Recipes:
    """Entries grouped by (group, batch); a recipe's log samples are the median of its entries."""
    keys, of_entry, counts = np.unique(
        np.stack([group.astype(float), batch]), axis=1, return_inverse=True, return_counts=True
    )
    log_samples = np.log(samples)
    middle = np.array([medians(log_samples[of_entry == recipe]) for recipe in range(len(counts))])
    return _Recipes(
        batch=keys[1],
        log_samples=middle,
        num_entries=counts.astype(float),
        membership=(keys[0] == np.arange(group.max() + 1)[:, None]).astype(float),
        within=float(np.sum((log_samples - middle[of_entry]) ** 2)),
        freedom=float(len(batch) - len(counts)),
        of_entry=of_entry,
    )


def _noise(num_groups: int) -> _Noise:
    """All combinations of noise levels; a single group has no offset."""
    levels = (_ENTRY_NOISE, _RECIPE_NOISE, _GROUP_NOISE if num_groups > 1 else _GROUP_NOISE[:1])
    entry, recipe, group = (grid.ravel() for grid in np.meshgrid(*levels, indexing="ij"))
    return _Noise(entry=entry, recipe=recipe, group=group)


_NUM_STEPS = 41


class GrowthPoint(Struct, frozen=True, kw_only=True):
    """Samples to target at a batch, with their interval."""

    global_batch_samples: float
    samples: float
    low: float
    high: float


class BatchGrowth(Struct, frozen=True, kw_only=True):
    """Growth of a workload's samples to target with the batch.

    entries: the fitted ones; adjusted_samples: their samples without the offset of their round; weight: about
    0 far from the curve. curve: over the fitted batches. samples_min, batch_critical: S_min and B_crit, whose
    upper bound is infinite where no growth was seen. growth: samples at the largest over the smallest batch.
    stretch: see `Convergence`.
    """

    entries: tuple[ScoredEntry, ...]
    adjusted_samples: FloatArray
    weight: FloatArray
    curve: tuple[GrowthPoint, ...]
    samples_min: Interval
    batch_critical: Interval
    growth: Interval
    stretch: FloatArray

    @property
    def batches(self) -> tuple[int, ...]:
        """The global batch of each entry, samples."""
        return tuple(each.global_batch_samples or 0 for each in self.entries)

    @property
    def num_rounds(self) -> int:
        """Number of rounds with an entry."""
        return len({each.campaign for each in self.entries})


def batch_growth(entries: Iterable[ScoredEntry], *, stretch: ArrayLike | None = None) -> BatchGrowth:
    """Fit the law of samples against batch to the entries of one workload.

    entries: of all rounds; those without batch or samples to target are ignored. stretch: of the law of the
    same entries, with which the fit takes an eighth of the time.
    Raises EvidenceError, with what to add, if the batches differ too little.
    Assumes the entries of a round share its target and rules, hence one offset.
    Source: McCandlish et al. 2018, arXiv 1812.06162; see `fit_convergence`.
    """
    stated = [
        (each.campaign, each.global_batch_samples, each.entry_id, each)
        for each in entries
        if (each.samples_to_target or 0) > 0 and (each.global_batch_samples or 0) > 0
    ]
    known = tuple(each for *_, each in sorted(stated, key=lambda one: one[:3]))
    batch = np.array([each.global_batch_samples for each in known], dtype=float)
    samples = np.array([each.samples_to_target for each in known], dtype=float)
    fitted = fit_convergence(batch, samples, [each.campaign for each in known], stretch=stretch)
    return BatchGrowth(
        entries=known,
        adjusted_samples=samples / fitted.group_factor[fitted.group],
        weight=fitted.weight,
        curve=_curve(fitted, batch),
        samples_min=fitted.samples_min(),
        batch_critical=fitted.batch_critical(),
        growth=fitted.growth(float(batch.min()), float(batch.max())),
        stretch=fitted.stretch,
    )


def _curve(fitted: Convergence, batch: FloatArray) -> tuple[GrowthPoint, ...]:
    steps = np.geomspace(batch.min(), batch.max(), _NUM_STEPS)
    drawn = fitted.drawn_samples(steps)
    low, high = quantiles(drawn, tails(LEVEL))
    columns = (steps, medians(drawn), low, high)
    return tuple(
        GrowthPoint(global_batch_samples=at, samples=middle, low=least, high=most)
        for at, middle, least, most in zip(*(values.tolist() for values in columns), strict=True)
    )
