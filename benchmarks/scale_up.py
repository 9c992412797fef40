"""Predict DeepLearningExamples on many accelerators from few, each workload left out: this law, and others.

Needs measured/nvidia_deeplearningexamples.csv in $EQUIPOISE_DATA (default ../shared/data). About two minutes.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import least_squares

from equipoise.calibration.accuracy import cluster_weights
from equipoise.calibration.published.executions import read_executions
from equipoise.calibration.scale_up_rows import SCALE_UP, Pairs, scale_up_pairs
from equipoise.perfmodel.scale_up import SCALE_UP_PRIORS, ScaleUpParameters
from equipoise.stats import conformal_half_width

DATA = Path(os.environ.get("EQUIPOISE_DATA", "../shared/data")) / "measured/nvidia_deeplearningexamples.csv"
# Models that share code and input pipeline: a stricter split than by workload.
KIN = {
    "images": ("resnet", "resnext", "efficientnet", "gpunet"),
    "nnunet": ("nnunet",),
    "ssd": ("ssd",),
    "bert": ("bert", "electra"),
}
Floats = NDArray[np.float64]
ONE, FOUR, NODE, TWO_NODES = 1, 4, 8, 16
# From fitted pairs (indices) to predicted slowdowns of all.
Method = Callable[[NDArray[np.intp]], Floats]


def pairs_and_features() -> tuple[Pairs, Floats]:
    """The pairs of the table, and what a model of nearest neighbours sees of each."""
    rows = read_executions([DATA])
    mine = [row for row, claimed in zip(rows, SCALE_UP.claims(rows), strict=True) if claimed]
    pairs = scale_up_pairs(mine)
    if pairs is None:
        sys.exit(f"{DATA}: no pair of sizes")
    step_s = np.where(np.isnan(pairs.measured.microbatch_s), 0.2, pairs.measured.microbatch_s)
    halved = [mine[at].cells["precision"] == "mixed" for at in pairs.rows]
    features = np.stack(
        [
            np.log(pairs.num_accelerators),
            np.log(step_s),
            0.5 * np.log(pairs.measured.gradient_bytes),
            np.log(pairs.microbatch_ratio),
            np.array(halved, dtype=float),
            np.minimum(np.log(pairs.num_accumulated), 2.0),
        ],
        axis=1,
    )
    return pairs, features


def kin_of(workload: str) -> str:
    """The family of a workload."""
    return next((kin for kin, words in KIN.items() if any(word in workload for word in words)), workload)


def left_out(method: Method, groups: NDArray[np.str_]) -> Floats:
    """Slowdowns of every pair, predicted from those of other groups."""
    found = np.full(len(groups), np.nan)
    for group in np.unique(groups):
        found[groups == group] = method(np.flatnonzero(groups != group))[groups == group]
    return found


def law(pairs: Pairs, **priors: tuple[float, float]) -> Method:
    """The law with other priors: median times, log_sd times, by name or `all`."""
    if not priors:
        return lambda chosen: pairs.slowdown(pairs.fitted(chosen))
    return fitted_otherwise(pairs, priors=priors)


def fitted_otherwise(
    pairs: Pairs,
    *,
    weigh: str = "workload",
    loss: str = "absolute",
    effects: tuple[NDArray[np.str_], float] | None = None,
    priors: dict[str, tuple[float, float]] | None = None,
) -> Method:
    """The law fitted with other weights, losses or priors, or with effects of groups on what ranks add."""
    scales = {
        prior.name: (priors or {}).get(prior.name, (priors or {}).get("all", (1, 1)))
        for prior in SCALE_UP_PRIORS
    }
    medians = np.log([prior.median * scales[prior.name][0] for prior in SCALE_UP_PRIORS])
    spreads = np.array([prior.log_sd * scales[prior.name][1] for prior in SCALE_UP_PRIORS])
    names, member = (
        np.unique(effects[0], return_inverse=True) if effects else (np.empty(0), np.zeros(0, dtype=int))
    )
    num_own = len(medians)

    def predicted(units: Floats) -> Floats:
        values = np.exp(medians + units[:num_own] * spreads)
        parameters = replace(
            ScaleUpParameters(),
            **{each.name: float(value) for each, value in zip(SCALE_UP_PRIORS, values, strict=True)},
        )
        whole = pairs.slowdown(parameters)
        if effects is None:
            return whole
        return np.maximum(1 + (whole - 1) * np.exp(effects[1] * units[num_own:][member]), 0.01)

    def method(chosen: NDArray[np.intp]) -> Floats:
        numbers = np.unique(pairs.workloads[chosen], return_inverse=True)[1]
        weights = cluster_weights(numbers) ** {"workload": 1.0, "root": 0.5, "row": 0.0}[weigh]

        def cost(units: Floats) -> Floats:
            errors = (np.log(pairs.slowdowns / predicted(units)))[chosen]
            if loss == "squares":
                scaled = errors / 0.05
            elif loss == "soft":
                scaled = np.sign(errors) * np.sqrt(8 * (np.sqrt(1 + (errors / 0.1) ** 2) - 1))
            else:
                scaled = np.sign(errors) * np.sqrt(2 * (np.sqrt(errors**2 + 1e-4) - 0.01) / 0.08)
            return np.concatenate([np.sqrt(weights) * scaled, units])

        return predicted(least_squares(cost, np.zeros(num_own + len(names))).x)

    return method


def neighbours(pairs: Pairs, features: Floats, num: int) -> Method:
    """The median slowdown, over the ideal, of the nearest pairs."""
    spread = np.std(features, axis=0)

    def method(chosen: NDArray[np.intp]) -> Floats:
        distance = np.linalg.norm((features[:, None] - features[None, chosen]) / spread, axis=2)
        nearest = chosen[np.argsort(distance, axis=1)[:, :num]]
        return pairs.microbatch_ratio * np.median((pairs.slowdowns / pairs.microbatch_ratio)[nearest], axis=1)

    return method


def constant(pairs: Pairs) -> Method:
    """One slowdown over the ideal for all pairs of a size, and one where micro-batches shrink."""
    above = pairs.slowdowns / pairs.microbatch_ratio
    kinds = np.where(pairs.microbatch_ratio == 1.0, 1, -1) * pairs.num_accelerators

    def method(chosen: NDArray[np.intp]) -> Floats:
        found = np.full(len(above), np.median(above[chosen]))
        for kind in np.unique(kinds[chosen]):
            found[kinds == kind] = np.median(above[chosen][kinds[chosen] == kind])
        return found * pairs.microbatch_ratio

    return method


def methods(pairs: Pairs, features: Floats) -> Iterator[tuple[str, Method]]:
    """What is compared."""
    yield "perfect scaling", lambda _: pairs.microbatch_ratio
    yield "a constant a size", constant(pairs)
    yield "this law", law(pairs)
    yield "this law, priors alone", lambda _: pairs.slowdown(ScaleUpParameters())
    for loss in ("squares", "soft", "absolute"):
        for weigh in ("row", "root", "workload"):
            yield f"  {loss}, by {weigh}", fitted_otherwise(pairs, loss=loss, weigh=weigh)
    known = read_executions([DATA])
    mine = [row for row, claimed in zip(known, SCALE_UP.claims(known), strict=True) if claimed]
    words = [mine[at].workload.split("/") for at in pairs.rows]
    for sd in (0.2, 0.8):
        frameworks = np.array([each[0] for each in words])
        areas = np.array([each[1] if len(each) > 1 else "" for each in words])
        yield f"  effect of framework, sd {sd}", fitted_otherwise(pairs, effects=(frameworks, sd))
        yield f"  effect of area, sd {sd}", fitted_otherwise(pairs, effects=(areas, sd))
    precision = np.array([mine[at].cells["precision"] == "mixed" for at in pairs.rows]).astype(str)
    yield "  effect of precision, sd 0.4", fitted_otherwise(pairs, effects=(precision, 0.4))
    for num in (5, 9):
        yield f"{num} nearest neighbours", neighbours(pairs, features, num)
    for prior in SCALE_UP_PRIORS:
        for times in (0.5, 2.0):
            yield f"  prior of {prior.name} x {times:g}", law(pairs, **{prior.name: (times, 1.0)})
    yield "  priors twice as wide", law(pairs, all=(1.0, 2.0))
    unimaged = replace(pairs, measured=replace(pairs.measured, decoded_per_s=0.0))
    yield "  no images", law(unimaged)
    yield "  cores not known", law(replace(pairs, measured=replace(pairs.measured, num_cores=np.nan)))
    yield "  all of equal length", law(replace(pairs, measured=replace(pairs.measured, is_ragged=0.0)))
    yield (
        "  parameters not known",
        law(replace(pairs, measured=replace(pairs.measured, gradient_bytes=np.nan + pairs.alike_s))),
    )
    yield (
        "  step times not known",
        law(replace(pairs, measured=replace(pairs.measured, microbatch_s=np.nan + pairs.alike_s))),
    )


def main() -> None:
    """Print the errors of every method, and the coverage of this one's intervals."""
    pairs, features = pairs_and_features()
    few, many = np.asarray(pairs.measured.num_accelerators), pairs.num_accelerators
    same = pairs.microbatch_ratio == 1.0
    from_one = {
        "1->8 same": (few == ONE) & (many == NODE) & same,
        "1->8 less": (few == ONE) & (many == NODE) & ~same,
        "1->8 all": (few == ONE) & (many == NODE),
        "1->4": (few == ONE) & (many == FOUR),
        "1->16": (few == ONE) & (many == TWO_NODES),
        "1->32,64": (few == ONE) & (many > TWO_NODES),
        "8->16..256": few == NODE,
    }
    kin = np.array([kin_of(each) for each in pairs.workloads])
    print(f"{len(many)} pairs of {len(np.unique(pairs.workloads))} workloads, {len(np.unique(kin))} families")
    print("median |error| of time in percent, each workload left out; `kin`: each family left out, 1->8 same")
    print(f"{'':36}" + "".join(f"{name:>11}" for name in (*from_one, "kin", "mean same")))
    print(f"{'pairs':36}" + "".join(f"{each.sum():11d}" for each in from_one.values()))
    for name, method in methods(pairs, features):
        found = left_out(method, pairs.workloads)
        errors = 100 * np.abs(found / pairs.slowdowns - 1)
        by_kin = 100 * np.abs(left_out(method, kin) / pairs.slowdowns - 1)
        eight = from_one["1->8 same"]
        cells = [np.median(errors[each]) for each in from_one.values()]
        print(
            f"{name:36}"
            + "".join(
                f"{value:11.2f}" for value in (*cells, np.median(by_kin[eight]), np.mean(errors[eight]))
            )
        )
    coverage(pairs, from_one)


def coverage(pairs: Pairs, parts: dict[str, NDArray[np.bool_]]) -> None:
    """Print how many measurements lie in 90 % intervals made of the errors of all other workloads."""
    log_errors = np.log(left_out(law(pairs), pairs.workloads) / pairs.slowdowns)
    inside = np.zeros(len(log_errors))
    for group in np.unique(pairs.workloads):
        others = pairs.workloads != group
        half = conformal_half_width(log_errors[others], pairs.workloads[others], level=0.9)
        inside[~others] = np.abs(log_errors[~others]) <= half
    half = conformal_half_width(log_errors, pairs.workloads, level=0.9)
    print(
        f"half of a 90 % interval, of the logarithm: {half:.3f}; share of rows inside, by workloads left out:"
    )
    print(", ".join(f"{name} {np.mean(inside[each]):.3f}" for name, each in parts.items()))
    shares = [np.mean(inside[pairs.workloads == group]) for group in np.unique(pairs.workloads)]
    print(f"mean over workloads {np.mean(shares):.3f}; all rows {np.mean(inside):.3f}")
    print(pairs.fitted(np.arange(len(log_errors))))


if __name__ == "__main__":
    main()
