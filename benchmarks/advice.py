"""How right the advised number of accelerators was, against simple rules, as ratios of what each loses.

Run: PYTHONPATH=src python benchmarks/advice.py [FOLDER that ingest wrote]; else the embedded data.

Every group is asked where to stop without its largest size, and without its larger half.
"""

import sys
import time

from equipoise.calibration.advice_backtest import advice_errors, held_out_advice
from equipoise.calibration.curves import OURS, AdviceErrors
from equipoise.runs import embedded


def show(each: AdviceErrors) -> None:
    """Print the errors of one objective and one way to hold out."""
    print(
        f"{each.objective}, {each.held_out} held out, jumps {each.jump}: {each.num_groups} groups, "
        f"{each.num_compared} compared; beyond the sizes: both {each.num_both_beyond}, advised "
        f"{each.num_advised_beyond}, found {each.num_found_beyond}; 90 % interval held {each.coverage:.1%}"
    )
    ours = each.methods[OURS]
    for name, way in each.methods.items():
        if way.within_doubling is None or way.median_regret is None or way.p90_regret is None:
            continue
        print(
            f"  {name:14} within a doubling {way.within_doubling:6.1%}   regret median "
            f"{way.median_regret:6.1%} p90 {way.p90_regret:6.1%}",
            end="",
        )
        if way.mean_measured_regret is None or not ours.mean_measured_regret:
            print()
            continue
        ratio = way.mean_measured_regret / ours.mean_measured_regret
        print(f"   lost, measured {way.mean_measured_regret:6.1%}: {ratio:.2f} times ours")


def main() -> None:
    """Hold sizes out of every group."""
    entries = embedded.scores(data=sys.argv[1:]).entries
    start = time.perf_counter()
    errors = advice_errors(held_out_advice(entries))
    print(f"{time.perf_counter() - start:.1f} s")
    for each in errors:
        show(each)


if __name__ == "__main__":
    main()
