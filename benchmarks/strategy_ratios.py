"""How well the model tells two strategies of one training apart: published pairs of steps.

    python benchmarks/strategy_ratios.py

Published steps of one source, software, model, chip, number of accelerators, sequence and precision that
differ in strategy are compared by their time per sample with the one that the model takes for the fastest of
them: log of the published ratio less log of the model's. docs/experiments/0038 has the figures.
"""

from collections import defaultdict

import numpy as np

from equipoise.calibration.published import published_steps, rows_of_table
from equipoise.calibration.validate import predictions

SAME = (
    "repository", "software", "model", "layers", "hidden", "accelerator", "num_accelerators",
    "sequence_tokens", "dtype", "trained",
)  # fmt: skip


def main() -> None:
    """Print the errors of ratios, by source."""
    table = published_steps()
    groups = defaultdict(list)
    for row, found in zip(table.iter_rows(named=True), predictions(rows_of_table(table)), strict=True):
        if found is not None and row["step_s"] and row["strategy"]:
            batch = row["global_batch_samples"] or 1
            pair = (row["strategy"], row["step_s"] / batch, found.step_s / batch)
            groups[tuple(row[name] for name in SAME)].append(pair)
    errors, trainings = defaultdict(list), defaultdict(set)
    for key, group in groups.items():
        best = min(group, key=lambda each: each[2])
        for strategy, published, modelled in group:
            if strategy != best[0]:
                errors[key[0]].append(np.log(published / best[1]) - np.log(modelled / best[2]))
                trainings[key[0]].add(key)
    print(f"{'source':45} {'trainings':>9} {'pairs':>6} {'median':>7} {'sd':>6}")
    for source, found in sorted(errors.items(), key=lambda pair: -len(pair[1])):
        middle, spread = np.median(np.abs(found)), np.sqrt(np.mean(np.square(found)))
        print(f"{source:45} {len(trainings[source]):9} {len(found):6} {middle:7.3f} {spread:6.3f}")
    largest = max(errors, key=lambda source: len(errors[source]))
    few = np.concatenate([found for source, found in errors.items() if source != largest])
    print(f"all but the largest source: sd {np.sqrt(np.mean(np.square(few))):.3f} of {len(few)} pairs")


if __name__ == "__main__":
    main()
