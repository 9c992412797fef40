"""Coverage of the intervals of scaling/fit.py on laws that are known, against what SciPy alone gives.

    python benchmarks/laws.py [--cases 1000] [--nulls 4000] [--seed 1] [--scores scores.parquet]

Prints, for each way of fitting: how often the 90 % interval holds the true time at 1, 2 and 4 times the
largest size, its width, the error of its middle, and how many cases got no answer; then how often times that
do not depend on the size got an answer; then, with --scores (a table that `equipoise ingest --into` wrote),
how the largest size of published groups is predicted from their smaller ones, and samples against batch.
docs/experiments/0001-law-intervals.md tells what was learnt.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from numpy.typing import NDArray
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.stats import t as student_t

from equipoise.errors import EvidenceError, FitError
from equipoise.scaling.convergence import fit_convergence
from equipoise.scaling.fit import fit, measured_times, predict
from equipoise.scaling.laws import AMDAHL, CANDIDATES, LAWS, USL, FloatArray, Law
from equipoise.scaling.posterior import MEASURED_NOISE, PUBLISHED_NOISE, law_noise

LEVEL = 0.9
LEAST_GROUP = 4  # published sizes: three to fit and one to predict
BEYOND = np.array([1.0, 2.0, 4.0])
REGIMES = ("where it shows", "wide", "textbook")

# A way of fitting: (law that is true, sizes, times, sizes asked) -> (low, middle, high), or None: no answer.
Way = Callable[[Law, FloatArray, FloatArray, FloatArray], tuple[FloatArray, FloatArray, FloatArray] | None]


class Case(Struct, frozen=True, kw_only=True):
    """One synthetic experiment: a true law and the runs measured of it."""

    law: Law
    values: FloatArray
    num_accelerators: FloatArray
    time_s: FloatArray

    def true_s(self, num_accelerators: FloatArray) -> FloatArray:
        """The true times."""
        return self.law.predict_s(num_accelerators, *self.values)


def synthetic(rng: np.random.Generator, index: int, *, stray: float = 0.0, slow: float = 1.0) -> Case:
    """A law, a regime and a design in turn: 4-8 sizes, 1-5 repetitions, noise of 1-5 %.

    stray: log standard deviation by which whole sizes depart from the law. slow: by how much one run, not at
    the largest size, takes longer than it should.
    """
    law = CANDIDATES[index % len(CANDIDATES)]
    num_sizes, num_repetitions = int(rng.integers(4, 9)), int(rng.integers(1, 6))
    steps = np.arange(1.0, num_sizes + 1.0) if rng.random() < 1 / 3 else 2.0 ** np.arange(num_sizes)
    sizes = rng.choice([1.0, 2.0, 4.0, 8.0, 16.0]) * steps
    values = _true_values(rng, law, REGIMES[index % len(REGIMES)], sizes[-1])
    runs = np.repeat(sizes, num_repetitions)
    noise = np.exp(rng.uniform(np.log(0.01), np.log(0.05))) * rng.standard_normal(len(runs))
    strays = np.repeat(stray * rng.standard_normal(num_sizes), num_repetitions)
    time_s = law.predict_s(runs, *values) * np.exp(noise + strays)
    time_s[rng.integers(len(runs) - num_repetitions)] *= slow
    return Case(law=law, values=values, num_accelerators=runs, time_s=time_s)


def _true_values(rng: np.random.Generator, law: Law, regime: str, largest: float) -> FloatArray:
    """Parameters drawn without regard to what the fit holds plausible."""

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    if regime == "where it shows":
        serial, pairs = min(log_uniform(0.02, 5.0) / largest, 0.9), log_uniform(0.01, 2.0) / largest**2
    elif regime == "wide":
        serial, pairs = log_uniform(0.002, 0.1), log_uniform(1e-6, 1e-3)
    else:
        serial, pairs = rng.uniform(0.01, 0.1), rng.uniform(1e-4, 1e-3)
    single_s = rng.uniform(100.0, 10_000.0)
    values = {
        "perfect": (single_s,),
        "amdahl": (serial * single_s, (1.0 - serial) * single_s),
        "gustafson": (single_s, serial),
        "usl": (single_s, serial, pairs),
        "power": (single_s, rng.uniform(0.5, 1.0)),
        "alpha_beta": (single_s, serial * single_s / 2.0, pairs * single_s / 2.0),
        "overlap": (single_s, serial * single_s / 2.0, rng.uniform(1.0, 4.0)),
    }
    return np.array(values[law.name])


def null_case(rng: np.random.Generator, index: int) -> tuple[FloatArray, FloatArray]:
    """Times that do not depend on the size, of each kind in turn: (num_accelerators, time_s)."""
    sizes = 2.0 ** (np.arange(rng.integers(3, 9)) + rng.integers(0, 5))
    kind = index % 8
    if kind == 0:
        sizes = sizes[:1]
    if kind == 1:
        sizes = sizes[:2]
    runs = np.repeat(sizes, int(rng.integers(1, 6)))
    spread = (0.02, 0.03, 0.0, 0.03, 0.1, 0.3, 1.0, None)[kind]
    if spread is None:
        return runs, rng.uniform(0.1, 1.0, len(runs))
    law_s = 1000.0 / runs if kind <= 1 else np.full(len(runs), 1000.0)
    return runs, law_s * np.exp(spread * rng.standard_normal(len(runs)))


def ours(*, knows_law: bool = False, knows_no_stray: bool = False) -> Way:
    """The package: all laws weighed, or the true law given; with or without allowing for sizes that stray."""
    noise = law_noise([0.0], [1.0]) if knows_no_stray else MEASURED_NOISE

    def way(law: Law, sizes: FloatArray, time_s: FloatArray, asked: FloatArray):  # noqa: ANN202 - as Way
        try:
            fitted = fit(measured_times(sizes, time_s), (law,) if knows_law else CANDIDATES, noise=noise)
        except FitError:
            return None
        found = predict(fitted, asked, level=LEVEL)
        return found.low_s, found.time_s, found.high_s

    return way


class Plain(Struct, frozen=True, kw_only=True):
    """One law fitted by scipy.optimize.curve_fit, errors being relative."""

    law: Law
    values: FloatArray
    covariance: FloatArray
    aicc: float
    freedom: int

    def log_times(self, values: FloatArray, asked: FloatArray) -> FloatArray:
        """Log seconds of parameter sets (n, num_params) at the sizes asked; negative times do not count."""
        times_s = self.law.times_s(values, asked)
        return np.log(np.where(times_s > 0.0, times_s, np.nan))


def plain_fit(law: Law, sizes: FloatArray, time_s: FloatArray) -> Plain | None:
    """The law by curve_fit; None when it fails or has no freedom left."""
    freedom = len(sizes) - len(law.params)
    if freedom < 1:
        return None
    start = law.at(np.full((1, law.num_shapes), 0.6), measured_times(sizes, time_s).domain)
    scale = np.median(time_s / law.times_s(start, sizes)[0], keepdims=True)
    try:
        values, covariance = curve_fit(
            law.predict_s, sizes, time_s, sigma=time_s, p0=law.scaled(start, scale)[0], maxfev=5000
        )
    except (RuntimeError, ValueError):
        return None
    if not np.all(np.isfinite(covariance)):
        return None
    squares = float(np.sum((law.predict_s(sizes, *values) / time_s - 1.0) ** 2))
    num_params, num_runs = len(law.params) + 1, len(sizes)
    spare = num_runs - num_params - 1
    penalty = 2 * num_params * (1 + (num_params + 1) / spare) if spare > 0 else np.inf
    aicc = num_runs * np.log(max(squares, 1e-12) / num_runs) + penalty
    return Plain(law=law, values=values, covariance=covariance, aicc=aicc, freedom=freedom)


def delta_interval(found: Plain, asked: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Student t times the standard error of the log time, by the delta method."""
    middle = found.log_times(found.values[None], asked)[0]
    step = 1e-6 * np.maximum(np.abs(found.values), 1e-9)
    slopes = (found.log_times(found.values + np.diag(step), asked) - middle) / step[:, None]
    error = np.sqrt(np.einsum("ps,pq,qs->s", slopes, found.covariance, slopes))
    reach = student_t.ppf(0.5 + LEVEL / 2, found.freedom) * error
    return np.exp(middle - reach), np.exp(middle), np.exp(middle + reach)


def scipy_true_law(law: Law, sizes: FloatArray, time_s: FloatArray, asked: FloatArray):  # noqa: ANN201 - as Way
    """Design A0: the true law given, curve_fit, interval by covariance."""
    found = plain_fit(law, sizes, time_s)
    return None if found is None else delta_interval(found, asked)


def scipy_best_aicc(_law: Law, sizes: FloatArray, time_s: FloatArray, asked: FloatArray):  # noqa: ANN201 - as Way
    """Design A: the law of the least AICc, interval by its covariance alone."""
    found = [each for law in LAWS if (each := plain_fit(law, sizes, time_s))]
    return delta_interval(min(found, key=lambda each: each.aicc), asked) if found else None


def scipy_averaged(rng: np.random.Generator) -> Way:
    """Design B: laws weighed by AICc, each by draws from its covariance, t-distributed."""

    def way(_law: Law, sizes: FloatArray, time_s: FloatArray, asked: FloatArray):  # noqa: ANN202 - as Way
        found = [each for law in LAWS if (each := plain_fit(law, sizes, time_s)) and np.isfinite(each.aicc)]
        if not found:
            return None
        weights = np.exp(-0.5 * (np.array([each.aicc for each in found]) - min(each.aicc for each in found)))
        draws = []
        for each, count in zip(found, np.round(2000 * weights / weights.sum()).astype(int), strict=True):
            wide = np.sqrt(each.freedom / rng.chisquare(each.freedom, size=(count, 1)))
            normal = rng.multivariate_normal(np.zeros(len(each.values)), each.covariance, size=count)
            draws.append(each.log_times(each.values + wide * normal, asked))
        tail = (1.0 - LEVEL) / 2.0
        low, middle, high = np.exp(np.nanquantile(np.concatenate(draws), [tail, 0.5, 1.0 - tail], axis=0))
        return low, middle, high

    return way


def scipy_amdahl(_law: Law, sizes: FloatArray, time_s: FloatArray, asked: FloatArray):  # noqa: ANN201 - as Way
    """What a user would write first: curve_fit of Amdahl's law, whatever the truth."""
    return scipy_true_law(AMDAHL, sizes, time_s, asked)


def scipy_usl(_law: Law, sizes: FloatArray, time_s: FloatArray, asked: FloatArray):  # noqa: ANN201 - as Way
    """What a user would write next: curve_fit of the USL."""
    return scipy_true_law(USL, sizes, time_s, asked)


def measured(way: Way, cases: list[Case]) -> dict[str, NDArray]:
    """Per answered case and distance: held (bool), log width, error of the middle; and the law's index."""
    rows: dict[str, list[object]] = {"law": [], "held": [], "width": [], "error": []}
    for case in cases:
        asked = case.num_accelerators.max() * BEYOND
        answer = way(case.law, case.num_accelerators, case.time_s, asked)
        if answer is None:
            continue
        low, middle, high = answer
        true_s = case.true_s(asked)
        rows["law"].append(case.law.name)
        rows["held"].append((low <= true_s) & (true_s <= high))
        rows["width"].append(np.log(high / low))
        rows["error"].append(np.abs(middle / true_s - 1.0))
    return {name: np.array(values) for name, values in rows.items()}


def show(name: str, rows: dict[str, NDArray], num_cases: int, seconds: float) -> None:
    """One line of the table, then the coverage by law."""
    held, width, error = (rows[key] for key in ("held", "width", "error"))
    figures = "  ".join(
        f"{beyond:g}x: {share:.3f} ({wide:.3f}, {off:.4f})"
        for beyond, share, wide, off in zip(
            BEYOND, held.mean(axis=0), np.nanmedian(width, axis=0), np.nanmedian(error, axis=0), strict=True
        )
    )
    print(
        f"{name:34s} {figures}  no answer {num_cases - len(held)}  {1e3 * seconds / num_cases:.0f} ms a case"
    )
    if name.startswith("ours"):
        for law in CANDIDATES:
            mine = rows["law"] == law.name
            print(
                f"    true {law.name:12s} {mine.sum():4d}  "
                + "  ".join(f"{x:.3f}" for x in held[mine].mean(axis=0))
            )


def show_published(scores: pl.DataFrame) -> None:
    """The largest size of each (round, workload, accelerator) predicted from its smaller ones."""
    keys = ["campaign", "workload", "accelerator"]
    best = (
        scores.filter((pl.col("division") == "closed") & pl.col("score_s").is_not_null())
        .group_by(*keys, "num_accelerators")
        .agg(pl.col("score_s").min())
        .sort(*keys, "num_accelerators")
    )
    groups = [group for _, group in best.group_by(keys, maintain_order=True) if len(group) >= LEAST_GROUP]
    for name, noise in (("MEASURED_NOISE", MEASURED_NOISE), ("PUBLISHED_NOISE", PUBLISHED_NOISE)):
        held, errors = [], []
        for group in groups:
            sizes, time_s = group["num_accelerators"].to_numpy().astype(float), group["score_s"].to_numpy()
            try:
                fitted = fit(measured_times(sizes[:-1], time_s[:-1]), noise=noise)
            except FitError:
                continue
            found = predict(fitted, sizes[-1], level=LEVEL, of="run")
            held.append(found.low_s[0] <= time_s[-1] <= found.high_s[0])
            errors.append(abs(found.time_s[0] / time_s[-1] - 1.0))
        print(
            f"published, {name}: {len(groups)} groups, {len(groups) - len(held)} no answer, "
            f"coverage {np.mean(held):.3f}, median error {np.median(errors):.3f}"
        )


def show_convergence(scores: pl.DataFrame) -> None:
    """S(B) of every workload over all rounds, each round with its own offset."""
    usable = scores.filter(
        (pl.col("division") == "closed")
        & pl.col("samples_to_target").is_not_null()
        & pl.col("global_batch_samples").is_not_null()
    )
    print(
        f"\n{'workload':18s} entries {'batches':>14s} {'S_min':>24s} {'B_crit':>26s}  growth over the batches"
    )
    for (workload,), entries in usable.group_by("workload", maintain_order=True):
        batch = entries["global_batch_samples"].to_numpy()
        seen = f"{batch.min()}-{batch.max()}"
        try:
            found = fit_convergence(
                batch, entries["samples_to_target"].to_numpy(), entries["campaign"].to_numpy()
            )
        except EvidenceError as too_little:
            print(f"{workload:18s} {len(entries):7d} {seen:>14s} {too_little}")
            continue
        figures = (found.samples_min(), found.batch_critical(), found.growth(batch.min(), batch.max()))
        shown = "  ".join(f"{each.value:.3g} ({each.low:.3g}-{each.high:.3g})" for each in figures)
        print(f"{workload:18s} {len(entries):7d} {seen:>14s}  {shown}")


def main() -> None:
    """Run every way on the same cases and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--nulls", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scores", type=Path)
    options = parser.parse_args()
    ways: dict[str, Way] = {
        "ours, laws weighed": ours(),
        "ours, true law given": ours(knows_law=True),
        "C: ours without straying sizes": ours(knows_no_stray=True),
        "A0: curve_fit, true law given": scipy_true_law,
        "A: curve_fit, least AICc": scipy_best_aicc,
        "B: curve_fit, AICc weights": scipy_averaged(np.random.default_rng(options.seed)),
        "curve_fit Amdahl": scipy_amdahl,
        "curve_fit USL": scipy_usl,
    }
    warnings.simplefilter("ignore", OptimizeWarning)
    warnings.simplefilter("ignore", RuntimeWarning)
    print("coverage of 90 % intervals (median log width, median error)")
    scenarios = {
        "noise of 1-5 % alone": {},
        "and sizes stray by 2 %": {"stray": 0.02},
        "and one run takes 1.6 times as long": {"slow": 1.6},
    }
    for scenario, settings in scenarios.items():
        rng = np.random.default_rng(options.seed)
        cases = [synthetic(rng, index, **settings) for index in range(options.cases)]
        print(f"\n{scenario}")
        for name, way in ways.items():
            start = time.perf_counter()
            rows = measured(way, cases)
            show(name, rows, len(cases), time.perf_counter() - start)
    rng = np.random.default_rng(options.seed)
    answered = sum(
        ours()(AMDAHL, *null_case(rng, index), np.ones(1)) is not None for index in range(options.nulls)
    )
    print(f"\nnull data: {options.nulls - answered} of {options.nulls} got 'not enough evidence'")

    if options.scores:
        scores = pl.read_parquet(options.scores)
        show_published(scores)
        show_convergence(scores)


if __name__ == "__main__":
    main()
