"""What each decision of the calibration on Megatron's measurements is worth: errors with it and without.

    python benchmarks/calibration.py

EQUIPOISE_DATA names the data. All is fitted to vtrain_single.csv or a part of it, so the other three files
are held out in every line. docs/experiments/0006-calibration.md tells what was learnt.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.calibration.accuracy import cluster_weights
from equipoise.calibration.published import PublishedRow
from equipoise.calibration.published.executions import read_executions
from equipoise.calibration.step_rows import StepRows, refusal, step_rows
from equipoise.perfmodel.calibrate import NOISE_LOG_SD, Calibration, calibrate
from equipoise.perfmodel.parameters import PRIORS

ROOT = Path(os.environ.get("EQUIPOISE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
OTHERS = ("vtrain_multi", "korthikanti_table5", "megatron_sc21_mtnlg")
LINKS = tuple(each.name for each in PRIORS if each.name.startswith("collective."))
# What steps of Megatron say something of: not links, memory, experts, few bits, sharded weights.
NAMES = (
    *("product_fraction", "product_ramp_s", "product_traffic", "head_fraction", "unaligned_fraction"),
    *(
        "head_kernels",
        "attention_fraction",
        "memory_fraction",
        "layer_traffic",
        "score_traffic",
        "head_traffic",
    ),
    *(
        "backward_traffic",
        "recompute_share",
        "launch_s",
        "eager_launch",
        "launch_jitter",
        "tp_exposed",
        "dp_overlap",
    ),
    *("pp_overlap", "optimizer_traffic", "rank_jitter", "step_s"),
)

Numbers = NDArray[np.float64]


class Rows(Struct, frozen=True, kw_only=True):
    """Measured steps as arrays, with what they are grouped by."""

    arrays: StepRows
    seconds: Numbers
    clusters: NDArray[np.intp]
    sizes: NDArray[np.intp]
    hidden: NDArray[np.intp]

    def fitted(self, at: NDArray[np.intp], names: Sequence[str], noise: float) -> Calibration:
        """The calibration on some rows."""
        return calibrate(
            self.arrays.taken(at).step_s,
            self.seconds[at],
            names=names,
            weights=cluster_weights(self.clusters[at]),
            noise_log_sd=noise,
        )


def of_rows(rows: Sequence[PublishedRow]) -> Rows:
    """Rows of steps as arrays."""
    models = [row.model.transformer for row in rows if row.model is not None]
    return Rows(
        arrays=step_rows(rows),
        seconds=np.array([row.seconds for row in rows], dtype=float),
        clusters=np.array([row.cluster for row in rows]),
        sizes=np.array([row.num_accelerators for row in rows]),
        hidden=np.array([0 if model is None else model.hidden for model in models]),
    )


def read(name: str) -> list[PublishedRow]:
    """The steps of a file that the model expresses."""
    rows = read_executions([ROOT / "measured" / f"{name}.csv"])
    return [row for row in rows if row.kind == "step" and refusal(row) is None]


def left_out(single: Rows, by: NDArray[np.intp], names: Sequence[str], noise: float) -> str:
    """Errors of every value of a column, held out: each fold, and all by cluster."""
    folds, errors, clusters = [], [], []
    for value in np.unique(by):
        test = np.flatnonzero(by == value)
        found = single.fitted(np.flatnonzero(by != value), names, noise).by_campaign[0]
        folds.append(np.abs(single.arrays.taken(test).step_s(found) / single.seconds[test] - 1))
        errors.append(folds[-1])
        clusters.append(single.clusters[test])
    weights = cluster_weights(np.concatenate(clusters))
    by_cluster = np.average(np.concatenate(errors), weights=weights)
    return " ".join(f"{100 * each.mean():4.1f}" for each in folds) + f" ({100 * by_cluster:.2f})"


def line(label: str, single: Rows, others: dict[str, Rows], names: Sequence[str], **settings: float) -> None:
    """Print one line: both splits of the single nodes, and every other file predicted from all of them."""
    noise = settings.get("noise", NOISE_LOG_SD)
    every = np.arange(len(single.seconds))
    found = single.fitted(every, names, noise)
    parameters = found.by_campaign[0] if settings.get("at_home") else found.parameters
    cells = [left_out(single, by, names, noise) for by in (single.sizes, single.hidden)]
    for rows in others.values():
        error = np.abs(rows.arrays.step_s(parameters) / rows.seconds - 1)
        cells.append(f"{100 * error.mean():5.2f} / {100 * np.median(error):5.2f}")
    print(f"{label:32}", *cells, sep=" | ", flush=True)


def main() -> None:
    """Print every line."""
    single = of_rows(read("vtrain_single"))
    others = {name: of_rows(read(name)) for name in OTHERS}
    megatron = [row for row in read(OTHERS[-1]) if "DeepSpeed" not in row.cells["parallel_config"]]
    others["of these, SC'21"] = of_rows(megatron)
    print(f"{'':32} | n_gpus 2, 4, 8 (by cluster) | hidden | {' | '.join(others)}: mean / median")
    line("as it is", single, others, NAMES)
    line("software carried to others", single, others, NAMES, at_home=1.0)
    for name in ("recompute_share", "unaligned_fraction", "tp_exposed"):
        line(f"{name} not fitted", single, others, [each for each in NAMES if each != name])
    line("links fitted to steps too", single, others, [*NAMES, *LINKS])
    for noise in (0.02, 0.05, 0.07, 0.1):
        line(f"noise {noise}", single, others, NAMES, noise=noise)


if __name__ == "__main__":
    main()
