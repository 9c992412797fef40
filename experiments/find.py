"""What `bench --find` loses against trying everything: docs/experiments/0016-find.md.

    python experiments/find.py [--out DIR] [--minutes M] [--write PAGE]

Runs every way to train of three models on two emulated hosts at two rates, once each, then lets the search
loose on what was measured, as if it ran: the same numbers for both. Resumable; needs root. --write puts the
tables between the markers of PAGE.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from equipoise.advice.exchange_costs import exchange_costs
from equipoise.advice.tune import Found, Space, alone_cells, candidates, search
from equipoise.bench.cell import Cell
from equipoise.bench.launchers import launcher
from equipoise.bench.store import SUCCESS, Finished
from equipoise.bench.timed_run import timed_run
from equipoise.bench.trials import Trials
from equipoise.errors import UsageError

RATES = ("1gbit", "10gbit")
METHODS = ("ddp", "static_graph", "fsdp", "fp16", "accumulate:4", "localsgd:8")
# Parameters of each, and the batches that two ranks share.
MODELS = {"mlp": (85_002, (64, 256)), "small_cnn": (1_199_882, (32, 64)), "large_mlp": (3_832_330, (64, 256))}
NUM_STEPS = 12
NUM_TRIALS = 6
LIMIT_S = 120.0


def space(model: str) -> Space:
    """What is searched for one model."""
    return Space(workload=model, methods=METHODS, sizes=(1, 2), batches=MODELS[model][1], num_steps=NUM_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One search held against trying everything."""

    rate: str
    found: Found
    num_candidates: int
    fastest: Cell
    fastest_per_s: float

    @property
    def regret(self) -> float:
        """The share of samples per second that the search lost."""
        return 1.0 - (self.found.best.samples_per_s or 0.0) / self.fastest_per_s


def measured(out: Path, end_s: float) -> bool:
    """Run what is not on disk yet; whether all of it is."""
    for rate in RATES:
        trials = Trials(
            folder=out / rate, launch_with=launcher(f"emulated:{rate}"), limit_s=LIMIT_S, most_ranks=2
        )
        trials.begin({"rate": rate}, resume=True)
        if time.monotonic() > end_s:
            return False
        trials.costs(2)
        for model in MODELS:
            for cell in (*alone_cells(space(model)), *candidates(space(model))[0]):
                if time.monotonic() > end_s:
                    return False
                (finished,) = trials.measured([cell])
                run = timed_run(finished)
                told = finished.reason if run is None else f"{cell.batch_samples / run.step_s:.0f} samples/s"
                print(f"{time.strftime('%H:%M:%S')} {rate} {cell.cell_id}: {told}", flush=True)
    return True


def outcomes(out: Path) -> list[Outcome]:
    """Every search, on what was measured."""
    found = []
    for rate in RATES:
        trials = Trials(
            folder=out / rate, launch_with=launcher(f"emulated:{rate}"), limit_s=LIMIT_S, most_ranks=2
        )
        costs = {2: exchange_costs(trials.costs(2), rate)}
        for model in MODELS:
            asked = space(model)

            def recall(cells: Sequence[Cell], trials: Trials = trials) -> tuple[Finished, ...]:
                return trials.measured([replace(cell, repetition=1) for cell in cells])

            cells = candidates(asked)[0]
            speeds = {
                cell: cell.batch_samples / run.step_s
                for cell in cells
                for each in recall([cell])
                if each.status == SUCCESS and (run := timed_run(each))
            }
            fastest = max(speeds, key=speeds.__getitem__)
            result = search(asked, recall, costs, num_trials=NUM_TRIALS, num_repetitions=1)
            found.append(
                Outcome(
                    rate=rate,
                    found=result,
                    num_candidates=sum(cell.num_ranks > 1 for cell in cells),
                    fastest=fastest,
                    fastest_per_s=speeds[fastest],
                )
            )
    return found


def tables(found: Sequence[Outcome]) -> str:
    """The tables of the page."""
    titles = ("link", "model", "parameters", "fastest of all", "samples/s", "found", "regret", "trials", "of")
    titles += ("over one device", "over ddp", "foretold, median error")
    lines = [_row(titles), _row(["---"] * len(titles))]
    for each in found:
        best, alone, plain = each.found.best, each.found.alone, each.found.plain
        speed, error = best.samples_per_s or 0.0, each.found.median_error_fraction
        over_plain = "-" if plain is None else f"{speed / (plain.samples_per_s or 1.0):.2f}x"
        model = each.found.space.workload
        lines.append(
            _row(
                (
                    each.rate,
                    model,
                    f"{MODELS[model][0]:,}",
                    _way(each.fastest),
                    f"{each.fastest_per_s:,.0f}",
                    _way(best.cell),
                    f"{each.regret:.1%}",
                    str(each.found.num_trials),
                    str(each.num_candidates),
                    f"{speed / (alone.samples_per_s or 1.0):.2f}x",
                    over_plain,
                    "-" if error is None else f"{error:.0%}",
                )
            )
        )
    regrets, trials = [each.regret for each in found], [each.found.num_trials for each in found]
    all_of = median(each.num_candidates for each in found)
    told = f"Regret: median {median(regrets):.1%}, worst {max(regrets):.1%}"
    lines += ["", f"{told}; trials: median {median(trials):g} of {all_of:g}."]
    return "\n".join(lines)


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _way(cell: Cell) -> str:
    return f"{'one device' if cell.num_ranks == 1 else cell.method}, batch {cell.batch_samples}"


def _between(page: str, table: str) -> str:
    """The page with the table between its markers."""
    head, mark, rest = page.partition("<!-- tables -->\n")
    _, end, tail = rest.partition("<!-- /tables -->")
    return f"{head}{mark}{table}\n{end}{tail}"


def main() -> None:
    """Measure what is missing, then search."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/experiments/find"))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--write", type=Path, help="a page with markers for the tables")
    chosen = parser.parse_args()
    try:
        is_done = measured(chosen.out, time.monotonic() + chosen.minutes * 60)
    except UsageError as err:
        sys.exit(f"find: {err}")
    if not is_done:
        print("not finished: the same command goes on")
        return
    table = tables(outcomes(chosen.out))
    print(table)
    if chosen.write:
        chosen.write.write_text(_between(chosen.write.read_text(), table))


if __name__ == "__main__":
    main()
