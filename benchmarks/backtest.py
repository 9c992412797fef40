"""How wrong the pooled law was, against perfect scaling and a power law: all protocols, with their time.

Run: PYTHONPATH=src python benchmarks/backtest.py [FOLDER that ingest wrote]; else the embedded data.
"""

import sys
import time

from equipoise.runs import embedded
from equipoise.scaling.backtest import Backtest, BacktestRecord, Protocol, backtest
from equipoise.spec.mlperf import best_per_size

RUNS: tuple[tuple[Protocol, bool], ...] = (("largest", False), ("largest", True), ("new_round", False))


def line(name: str, record: BacktestRecord) -> str:
    """One record in one line; fractions as percent."""
    coverage = "" if record.coverage is None else f"{record.coverage:9.1%}"
    return (
        f"  {name:12} {record.num_groups:5} {record.median_abs_error:8.1%} {record.mean_abs_error:8.1%} "
        f"{record.p90_abs_error:8.1%}{coverage}"
    )


def show(result: Backtest, seconds: float) -> None:
    """Print one backtest."""
    batch = ", given batch" if result.given_batch else ""
    print(f"{result.protocol}{batch}: {seconds:.1f} s")
    print("               held   median     mean      p90 coverage")
    print(line("pooled", result.pooled_law))
    for name, record in result.baselines.items():
        print(line(name, record))
    for title in ("by_jump", "by_cause", "by_workload", "by_round"):
        for name, errors in getattr(result.pooled_law, title).items():
            if errors.num_groups:
                print(
                    f"    {title[3:]:8} {name:20} {errors.num_groups:4} {errors.median_abs_error:8.1%} "
                    f"{errors.p90_abs_error:8.1%}"
                )


def main() -> None:
    """Run every protocol."""
    best = best_per_size(embedded.scores(data=sys.argv[1:]).entries)
    for protocol, given_batch in RUNS:
        start = time.perf_counter()
        result = backtest(best, protocol=protocol, given_batch=given_batch)
        show(result, time.perf_counter() - start)


if __name__ == "__main__":
    main()
