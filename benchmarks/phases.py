"""Whether phases sum to their step, and steps to the time they took, for every method, in real runs.

    python benchmarks/phases.py [--workloads mlp,small_cnn] [--ranks 1,2] [--device cpu] [--out DIR]

The first gap is none by construction; the second is read by a clock around all timed steps. Both must stay
below 5 %.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from equipoise.bench.equipment import launcher
from equipoise.bench.sweep import planned, run_sweep
from equipoise.bench.training import METHODS

BATCH_SAMPLES = 64
LIMIT_S = 120.0


def main() -> None:
    """Run every method; leave with exit code 1 if a trial does not sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workloads", default="mlp,small_cnn")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    methods = [
        f"{each.name}:{each.takes.example}" if each.takes and each.takes.needed else each.name
        for each in METHODS
        if each.name != "single"
    ]
    trials = planned(
        workloads=given.workloads.split(","),
        methods=methods,
        sizes=[int(size) for size in given.ranks.split(",")],
        batches=[BATCH_SAMPLES],
        num_repetitions=1,
        device=given.device,
    )
    with tempfile.TemporaryDirectory() as folder:
        finished = run_sweep(trials, given.out or Path(folder), launcher("inprocess"), limit_s=LIMIT_S)
    print(f"{'workload':14}{'method':18}{'ranks':>6}{'warm-up':>9}  {'parts miss':>11}{'steps miss':>11}")
    failed = 0
    for one in sorted(finished, key=lambda one: (one.trial.workload, one.trial.num_ranks, one.trial.method)):
        named = f"{one.trial.workload:14}{one.trial.method:18}{one.trial.num_ranks:6}"
        if one.reason:
            failed += 1
            print(f"{named}  {one.reason}")
            continue
        sums = one.result["sums"]
        failed += not sums["hold"]
        print(
            f"{named}{one.result['num_warm_up']:9}  {100 * sums['parts_gap_fraction']:9.4f} %"
            f"{100 * sums['steps_gap_fraction']:9.2f} %" + ("" if sums["hold"] else "  over 5 %")
        )
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
