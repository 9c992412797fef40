"""Times at sizes beyond those that ran: how far the next ones are off, with rules for what a doubling loses.

    python experiments/own_sizes.py

Needs the CSV files of measured/ in $EQUIPOISE_DATA (default ../shared/data). A set-up is a model, machine,
precision, strategy and micro-batch of one table; of those with three sizes or more the largest is predicted
from the one below it. docs/experiments/0024-own-runs.md has the figures.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from equipoise.calibration.published import PublishedRow
from equipoise.calibration.published.executions import read_executions
from equipoise.decide.evidence import LEAST_LOG_SD
from equipoise.errors import EquipoiseError

DATA = Path(os.environ.get("EQUIPOISE_DATA", "../shared/data")) / "measured"
FEWEST_SIZES = 3
# Of whole models whose steps rows state as means over months, sizes are not of one set-up.
LEFT_OUT = ("nemo_long", "mpt_llm")


def set_up(row: PublishedRow) -> tuple[object, ...]:
    """What rows of one set-up have in common."""
    assert row.strategy is not None
    model = None if row.model is None else row.model.transformer
    sizes = None if model is None else (model.layers, model.hidden)
    of = row.strategy
    return (row.file, row.hardware, row.workload, sizes, of.precision, of.tp, of.pp, of.microbatch_samples)


def curves() -> list[tuple[list[int], list[float]]]:
    """Of each set-up the sizes, and the logarithm of accelerator-seconds a sample there."""
    found: dict[tuple[object, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(DATA.glob("*.csv")):
        try:
            rows = read_executions([path])
        except (EquipoiseError, KeyError):  # whole trainings, which have columns of their own
            continue
        for row in rows:
            if (
                row.kind == "step"
                and row.strategy is not None
                and not any(each in row.file for each in LEFT_OUT)
            ):
                per_sample_s = row.seconds / row.strategy.global_batch_samples
                found[set_up(row)][row.num_accelerators].append(per_sample_s)
    return [
        (sizes, [float(np.log(np.median(by_size[size]) * size)) for size in sizes])
        for by_size in found.values()
        if len(sizes := sorted(by_size)) >= FEWEST_SIZES
    ]


# What a doubling is taken to lose on, from its slope between the smallest and largest size that ran and the
# standard error of that.
RULES: dict[str, Callable[[float, float], float]] = {
    "nothing": lambda _slope, _error: 0.0,
    "the slope, where it is two standard errors (taken)": lambda slope, error: (
        slope if slope > 2 * error else 0.0
    ),
    "the slope less a standard error, where it is above zero": lambda slope, error: max(0.0, slope - error),
    "the slope, where it is above zero": lambda slope, _error: max(0.0, slope),
}


def main() -> None:
    """Print the errors at the largest size by rule."""
    known = curves()
    print(f"{len(known)} set-ups\n\n| lost on with each doubling | median | mean | 90 % |\n|---|---|---|---|")
    for name, lost in RULES.items():
        errors = []
        for sizes, logs in known:
            span, further = np.log2(sizes[-2] / sizes[0]), np.log2(sizes[-1] / sizes[-2])
            slope, error = (logs[-2] - logs[0]) / span, LEAST_LOG_SD * np.sqrt(2) / span
            errors.append(abs(np.expm1(logs[-2] + lost(slope, error) * further - logs[-1])))
        print(
            f"| {name} | {np.median(errors):.1%} | {np.mean(errors):.1%} | {np.quantile(errors, 0.9):.1%} |"
        )


if __name__ == "__main__":
    main()
