"""What `bench --find` loses against trying everything: docs/experiments/0016-find.md.

    python experiments/find.py [--out DIR] [--minutes M] [--write PAGE]

Runs every way to train of three models on two emulated hosts at two rates, once each, then lets the search
loose on what was measured, as if it ran: the same numbers for both. Resumable; needs root. --write puts the
tables between the markers of PAGE.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from emulated import emulated
from msgspec import Struct
from two_hosts import timed

from equipoise.bench.summary import timed_run
from equipoise.bench.sweep import in_random_order, interference
from equipoise.bench.trial import FinishedTrial, Store, Trial, write_whole
from equipoise.diagnose.method_search import (
    FoundMethod,
    MethodSpace,
    candidates,
    one_device_trials,
    search_methods,
)
from equipoise.diagnose.predicted_steps import exchange_costs, needed
from equipoise.errors import UsageError

RATES = ("1gbit", "10gbit")
METHODS = ("ddp", "static_graph", "fsdp", "fp16", "accumulate:2", "localsgd:8")
# Parameters of each, and the batches that two ranks share.
MODELS = {
    "mlp": (85_002, (64, 256)),
    "small_cnn": (1_199_882, (32, 64)),
    "large_mlp": (3_832_330, (64, 256)),
}
NUM_STEPS = 12
NUM_TRIALS = 6


def space(model: str) -> MethodSpace:
    """What is searched for one model."""
    return MethodSpace(
        workload=model, methods=METHODS, sizes=(1, 2), batches=MODELS[model][1], num_steps=NUM_STEPS
    )


class JobOutcome(Struct, frozen=True, kw_only=True):
    """One search held against trying everything."""

    rate: str
    found: FoundMethod
    num_candidates: int
    fastest: Trial
    fastest_per_s: float

    @property
    def regret(self) -> float:
        """How much longer a sample takes than with the fastest way there was."""
        return self.fastest_per_s / (self.found.best.samples_per_s or 0.0) - 1.0


def planned(num_ranks: int) -> tuple[Trial, ...]:
    """Every run of all models on so many hosts."""
    wanted = {}
    for model in MODELS:
        asked = space(model)
        for trial in (*one_device_trials(asked), *candidates(asked)[0]):
            if trial.num_ranks == num_ranks:
                wanted[trial.trial_id] = trial
    return tuple(wanted.values())


def measured(out: Path, end_s: float) -> bool:
    """Run what is not on disk yet; whether all of it is."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    for name, rate, num_ranks in (("single", RATES[0], 1), *((rate, rate, 2) for rate in RATES)):
        store = Store(out / name)
        plan = in_random_order(planned(num_ranks), seed=0)
        with store.opened(plan, resume=True):
            left = [each for each in plan if not store.has(each)]
            if left and not timed(store, rate, left, cores, end_s=end_s):
                return False
        path = out / f"interference-{rate}.json"
        if not path.exists():
            if time.monotonic() > end_s:
                return False
            document = interference(needed(METHODS, num_ranks=2, device="cpu"), emulated(f"emulated:{rate}"))
            write_whole(path, json.dumps(document, indent=1).encode())
    return True


def outcomes(out: Path) -> list[JobOutcome]:
    """Every search, on what was measured."""
    found = []
    alone = {each.trial.trial_id: each for each in Store(out / "single").finished()}
    for rate in RATES:
        known = alone | {each.trial.trial_id: each for each in Store(out / rate).finished()}
        path = out / f"interference-{rate}.json"
        costs = {2: exchange_costs(json.loads(path.read_text()), str(path))}
        for model in MODELS:
            trials = candidates(space(model))[0]
            runs = {trial: timed_run(known[trial.trial_id]) for trial in trials}
            speeds = {trial: trial.batch_samples / run.step_s for trial, run in runs.items() if run}
            fastest = max(speeds, key=speeds.__getitem__)
            result = search_methods(
                space(model),
                partial(_remembered, known),
                costs,
                num_trials=NUM_TRIALS,
                num_repetitions=1,
            )
            found.append(
                JobOutcome(
                    rate=rate,
                    found=result,
                    num_candidates=sum(trial.num_ranks > 1 for trial in trials),
                    fastest=fastest,
                    fastest_per_s=speeds[fastest],
                )
            )
    return found


def _remembered(known: Mapping[str, FinishedTrial], trials: Sequence[Trial]) -> list[FinishedTrial]:
    """What runs gave that were made before."""
    return [known[trial.trial_id] for trial in trials]


def tables(found: Sequence[JobOutcome]) -> str:
    """The tables of the page."""
    titles = ("link", "model", "parameters", "fastest of all", "samples/s", "found", "regret", "trials", "of")
    titles += ("over one device", "over ddp", "predicted, median error")
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
                    _way(best.trial),
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


def _way(trial: Trial) -> str:
    return f"{'one device' if trial.num_ranks == 1 else trial.method}, batch {trial.batch_samples}"


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
    chosen.out.mkdir(parents=True, exist_ok=True)
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
