"""Which one calibration serves all chips of NVIDIA: the errors of several on every file of steps.

    python benchmarks/one_calibration.py

EQUIPOISE_DATA names the data. A file that a calibration is fitted to is left out of the fit first; where it
is the only one, its error is that of the record that ships, with groups of the file left out.
docs/experiments/0025-one-calibration.md tells what was learnt.
"""

import os
import sys
from pathlib import Path

import numpy as np

from equipoise.calibration.profiles import profile
from equipoise.calibration.published import PublishedRow
from equipoise.calibration.published.executions import read_executions
from equipoise.calibration.step_rows import calibrated, refusal, step_rows
from equipoise.perfmodel.parameters import Parameters

sys.path.append(str(Path(__file__).resolve().parents[1] / "records"))
from calibrations import RECIPES

ROOT = Path(os.environ.get("EQUIPOISE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
FITTED = tuple(name for recipe in RECIPES for name in recipe.file_names)
# Files that no calibration is fitted to.
OUTSIDE = (
    "megatron_lm_h100_scaling.csv",
    "mpt_llm_foundry.csv",
    "nvidia_dgxc_recipes.csv",
    "bigscience_bloom_a100.csv",
    "nemo_long_sequence.csv",
    "llama3_herd_table4.csv",
)
CANDIDATES = {recipe.name: recipe.file_names for recipe in RECIPES} | {"all files": FITTED, "priors": ()}


def read(names: tuple[str, ...]) -> list[PublishedRow]:
    """The steps of some files that the model expresses."""
    rows = read_executions([ROOT / "measured" / name for name in names])
    return [row for row in rows if row.kind == "step" and refusal(row) is None]


def parameters_without(candidate: str, left_out: str) -> Parameters | None:
    """The calibration fitted to its files but one; None where none is left."""
    files = CANDIDATES[candidate]
    rest = tuple(name for name in files if name != left_out)
    if not files:
        return Parameters()
    if rest == files and candidate != "all files":
        return profile(candidate).parameters
    return calibrated(read(rest)).parameters if rest else None


def median_error(name: str, parameters: Parameters) -> float:
    """The median over configurations of |predicted / measured - 1|."""
    rows = read((name,))
    measured_s = np.array([row.seconds for row in rows], dtype=float)
    errors = np.abs(step_rows(rows).step_s(parameters) / measured_s - 1)
    clusters = np.array([row.cluster for row in rows])
    return float(np.median([errors[clusters == each].mean() for each in np.unique(clusters)]))


def main() -> None:
    """Print a line a calibration: its median error on every file, their mean and the largest."""
    print(
        "calibration",
        *(name.removesuffix(".csv") for name in (*FITTED, *OUTSIDE)),
        "mean",
        "worst",
        sep=" | ",
    )
    for candidate in CANDIDATES:
        whole = parameters_without(candidate, "")
        errors = []
        for name in (*FITTED, *OUTSIDE):
            found = parameters_without(candidate, name) if name in CANDIDATES[candidate] else whole
            errors.append(profile(candidate).record.median if found is None else median_error(name, found))
        cells = [f"{100 * each:.1f}" for each in (*errors, float(np.mean(errors)), max(errors))]
        print(candidate, *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
