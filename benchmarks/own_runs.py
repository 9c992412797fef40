"""What a user's own runs make of the model: steps on the most accelerators of a set-up, from a few on fewer.

Needs the CSV files of measured/ in $EQUIPOISE_DATA (default ../shared/data). About a minute.

Every table, hardware, model and precision with three sizes or more stands for a user, who has twelve rows of
the smaller sizes. The calibration is that before any measurement: shipped ones were fitted to some of them.
"""

import os
from collections import defaultdict
from pathlib import Path

import numpy as np

from equipoise.calibration.profiles import prior_model
from equipoise.calibration.published import PublishedRow
from equipoise.calibration.published.executions import read_executions
from equipoise.calibration.step_rows import refusal, step_rows
from equipoise.decide.evidence import LEAST_LOG_SD
from equipoise.decide.user_evidence.fit import UserFit, user_fit, user_level
from equipoise.decide.user_evidence.runs import UserSteps

DATA = Path(os.environ.get("EQUIPOISE_DATA", "../shared/data")) / "measured"
FILES = (
    "nvidia_deeplearningexamples.csv",
    "torchtitan.csv",
    "megatron_bridge_nemo.csv",
    "vtrain_multi.csv",
    "vtrain_single.csv",
)
FEWEST_ROWS, FEWEST_SIZES, USER_ROWS, MOST_HELD_OUT = 5, 3, 12, 60
DEVIATE = 1.645


def users() -> dict[tuple[str, ...], list[PublishedRow]]:
    """The rows of each table, hardware, model and precision, in order of size."""
    found: dict[tuple[str, ...], list[PublishedRow]] = defaultdict(list)
    for row in read_executions([DATA / name for name in FILES]):
        if row.kind != "step" or refusal(row) is not None or row.strategy is None:
            continue
        model = None if row.model is None else row.model.transformer
        name = row.workload if model is None else f"{model.layers} layers of {model.hidden}"
        found[row.file, row.hardware, name, row.strategy.precision].append(row)
    return {key: sorted(rows, key=lambda row: row.num_accelerators) for key, rows in found.items()}


def steps(rows: list[PublishedRow]) -> UserSteps:
    """Rows as the steps of a user."""
    return UserSteps(
        rows=step_rows(rows),
        measured_s=np.array([row.seconds for row in rows], dtype=float),
        log_sds=np.full(len(rows), LEAST_LOG_SD),
        sizes=np.array([row.num_accelerators for row in rows], dtype=float),
        strategies=tuple(row.strategy for row in rows if row.strategy is not None),
        run_ids=tuple(f"{row.file}:{row.row}" for row in rows),
        are_assumed=(False,) * len(rows),
    )


def judged(known: UserSteps, held_out: UserSteps) -> tuple[str, list[float]]:
    """What was taken; median errors before, by the level and as taken, and interval coverage."""
    start = prior_model()
    before = held_out.log_ratios(start.parameters)
    levels = user_level(known, start, "")
    level = before - np.array([levels.log_at(int(size)) for size in held_out.sizes])
    found = user_fit(known, start)
    taken, inside = level, np.nan
    if isinstance(found, UserFit):
        taken = held_out.log_ratios(found.model.parameters)
        spread = np.std([held_out.log_ratios(each) for each in found.model.draws], axis=0)
        half = np.hypot(DEVIATE * spread, found.model.log_half_width)
        inside = float(np.mean(np.abs(taken) <= half))
    errors = [float(np.median(np.abs(np.expm1(each)))) for each in (before, level, taken)]
    return "fit" if isinstance(found, UserFit) else "level", [*errors, inside]


def main() -> None:
    """Print the errors on the largest size of every user, and over all users."""
    all_errors = []
    rng = np.random.default_rng(0)
    for key, rows in sorted(users().items()):
        largest = rows[-1].num_accelerators
        below = [row for row in rows if row.num_accelerators < largest]
        held = [row for row in rows if row.num_accelerators == largest]
        below = [below[at] for at in sorted(rng.permutation(len(below))[:USER_ROWS])]
        held = [held[at] for at in sorted(rng.permutation(len(held))[:MOST_HELD_OUT])]
        num_sizes = len({row.num_accelerators for row in below}) + 1
        if num_sizes < FEWEST_SIZES or len(rows) < FEWEST_ROWS:
            continue
        way, errors = judged(steps(below), steps(held))
        all_errors.append(errors)
        print(
            f"{key[1][:30]:30} {key[2][:26]:26} {key[3]:6} {len(below):3} rows -> {largest:4}: "
            f"before {errors[0]:7.1%}, level {errors[1]:6.1%}, taken ({way}) {errors[2]:6.1%}, "
            f"coverage {errors[3]:.0%}"
        )
    before, level, taken, _ = np.median(all_errors, axis=0)
    coverage = np.nanmean([each[-1] for each in all_errors])
    print(
        f"{len(all_errors)} users, median: before {before:.1%}, level {level:.1%} "
        f"({level / taken:.1f} times ours), taken {taken:.1%}; interval coverage of fits {coverage:.0%}"
    )


if __name__ == "__main__":
    main()
