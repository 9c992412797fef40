"""Equal loss on slow links: docs/experiments/0013-convergence.md and 0014-slow-links.md.

Stages, each resumable: every finished training is a file of its own, and is not run again.
  steps      speed of one device and of plain data parallel by batch, on emulated hosts, as root
  tune       one device and local SGD over grids of batch and learning rate, on seeds for tuning
  final      what was chosen, on other seeds: loss against samples, which no link changes
  kinds      every method on the smallest model: loss against samples
  rig        what was chosen, on the emulated hosts: seconds
  rig-once   the first seed of that
  kinds-rig  every method there
  write      the tables and the figure from what is there

  python experiments/convergence.py STAGE... [--out DIR] [--models mlp,...] [--minutes M]
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from math import inf, isfinite
from pathlib import Path
from statistics import StatisticsError, mean, median, stdev
from typing import Any

from curves import figure, last_loss, mean_curve, reached_s, sample_rate, samples_to, with_error
from emulated import emulated
from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from equipoise.bench.launchers import LaunchJob
from equipoise.bench.trial import Trial

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "experiments"
PASS_SAMPLES = 1437  # scikit-learn's digits, less every fifth
TUNING_SEEDS = (101, 102, 103, 104)
NUM_TUNING_SEEDS = 2  # or 4, where the error of two's mean is over a tenth of the lowest loss
RATES = {"1gbit": 1e9 / 8, "10gbit": 10e9 / 8}  # bytes a second, of headers too
CORE_SETS = ((0,), (1,))
LIMIT_S = 340.0
# The target is 1.6 times the samples a second of one device; what is predicted was up to a seventh too high.
PREDICTED_FASTER = 1.85
# All on the smallest model at one device's batch and learning rate: only the method differs.
KINDS = (
    "single",
    "ddp",
    "static_graph",
    "fsdp",
    "accumulate:2",
    "accumulate:4",
    "fp16",
    "bf16",
    "powersgd:2",
    "topk:0.05",
    "localsgd:8",
    "localsgd:32",
    "localsgd_fp16:32",
    "diloco:32",
    "diloco_fp16:32",
)
STAGES = ("steps", "tune", "final", "kinds", "rig-once", "kinds-rig", "rig", "write")
KINDS_MODEL, KINDS_BATCH, KINDS_RATE, KINDS_SEEDS = "mlp", 64, 0.05, (1, 2, 3, 4, 5)


class Family(Struct, frozen=True, kw_only=True):
    """A model, its budget of samples, and the grids that one device and two are chosen from."""

    name: str
    params: int
    passes: int
    batches: tuple[int, ...]  # of one device
    rank_batches: tuple[int, ...]  # of each of two; none: what one device chose
    cycles: tuple[int, ...]  # steps between averages
    rates: tuple[float, ...]  # learning rates of one device
    shared_rates: tuple[float, ...]
    num_seeds: int
    num_rig_seeds: int
    num_speed_steps: int  # of a run for its speed alone
    num_tuning_seeds: int

    @property
    def train_samples(self) -> int:
        """The budget of every training."""
        return self.passes * PASS_SAMPLES

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """Seeds that configurations are chosen on, and that no result is of."""
        return TUNING_SEEDS[: self.num_tuning_seeds]

    def alone(self, batch: int, rate: float, seed: int) -> Trial:
        """One device."""
        return self._trial("single", 1, batch, rate, seed)

    def shared(self, method: str, rank_batch: int, rate: float, seed: int) -> Trial:
        """Two devices, `rank_batch` samples of a step on each."""
        return self._trial(method, 2, 2 * rank_batch, rate, seed)

    def _trial(self, method: str, num_ranks: int, batch: int, rate: float, seed: int) -> Trial:
        return Trial(
            workload=self.name,
            method=method,
            num_ranks=num_ranks,
            batch_samples=batch,
            learning_rate=rate,
            seed=seed,
            train_samples=self.train_samples,
        )

    def grid_alone(self) -> list[tuple[Trial, ...]]:
        """Configurations of one device, a trial a tuning seed."""
        return [
            tuple(self.alone(batch, rate, seed) for seed in self.tuning_seeds)
            for batch, rate in product(self.batches, self.rates)
        ]

    def grid_shared(self, batch_alone: int) -> list[tuple[Trial, ...]]:
        """Configurations of two; batch_alone: what one device chose."""
        return [
            tuple(self.shared(f"localsgd_fp16:{cycle}", batch, rate, seed) for seed in self.tuning_seeds)
            for cycle, batch, rate in product(
                self.cycles, self.rank_batches or (batch_alone,), self.shared_rates
            )
        ]


def _family(name: str, params: int, passes: int, **others: Any) -> Family:  # noqa: ANN401 - fields
    usual = {
        "batches": (32, 64),
        "rank_batches": (),
        "rates": (0.02, 0.05, 0.1),
        "shared_rates": (0.05, 0.1),
        "num_seeds": 5,
        "num_rig_seeds": 2,
        "num_speed_steps": 40,
        "num_tuning_seeds": NUM_TUNING_SEEDS,
    }
    return Family(name=name, params=params, passes=passes, **(usual | others))


FAMILIES = (
    _family(
        "mlp",
        85_002,
        40,
        batches=(32, 64, 128),
        rank_batches=(32, 64),
        cycles=(32, 64),
        rates=(0.02, 0.05, 0.1, 0.2),
        shared_rates=(0.05, 0.1, 0.2),
        num_seeds=10,
        num_rig_seeds=5,
        num_speed_steps=600,
    ),
    _family(
        "wide_mlp",
        648_202,
        20,
        rank_batches=(32, 64),
        cycles=(32, 64),
        rates=(0.02, 0.05, 0.1, 0.2),
        shared_rates=(0.05, 0.1, 0.2),
        num_seeds=8,
        num_rig_seeds=5,
        num_speed_steps=300,
    ),
    _family("large_mlp", 3_832_330, 12, cycles=(32,), num_rig_seeds=5),
    _family(
        "small_resnet",
        1_226_442,
        6,
        rank_batches=(32, 64),
        cycles=(8, 16),
        rates=(0.02, 0.05),
        num_tuning_seeds=4,
    ),
    _family(
        "small_cnn",
        1_199_882,
        6,
        batches=(32,),
        cycles=(4, 8),
        rates=(0.01, 0.02, 0.03),
        shared_rates=(0.02, 0.03),
        num_seeds=10,
        num_rig_seeds=5,
        num_tuning_seeds=4,
    ),
)


class Trainings:
    """Finished trainings, a file each: curves by trial and by where they ran."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self.folder = folder
        self._deadline = deadline

    def _path(self, where: str, trial: Trial) -> Path:
        return self.folder / where / f"{trial.trial_id}.json"

    def has(self, where: str, trial: Trial) -> bool:
        """Whether a training is finished; where: `anywhere` or a rate of the rig."""
        return self._path(where, trial).exists()

    def curve(self, where: str, trial: Trial) -> list[dict[str, float]]:
        """Its curve."""
        found: list[dict[str, float]] = json.loads(self._path(where, trial).read_text())["curve"]
        return found

    def learned(self, trial: Trial) -> list[dict[str, float]]:
        """Its losses: equal seeds give equal ones, wherever they are trained."""
        where = next((each for each in ("anywhere", *RATES) if self.has(each, trial)), "anywhere")
        return self.curve(where, trial)

    def keep(self, where: str, trial: Trial, result: dict[str, Any]) -> None:
        """Puts a finished training on disk, and says so."""
        path = self._path(where, trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".part")
        kept = {
            "trial": to_builtins(trial),
            "curve": result["curve"],
            "utilisation": result.get("utilisation"),
        }
        aside.write_text(json.dumps(kept))
        aside.replace(path)
        last = result["curve"][-1]
        print(
            f"{where} {trial.workload} {trial.method} {trial.num_ranks}x{trial.rank_batch_samples} "
            f"rate {trial.learning_rate} seed {trial.seed}: loss {last['loss']:.4f}, {last['seconds']:.1f} s",
            flush=True,
        )

    def in_time(self) -> bool:
        """Whether another training may begin."""
        return time.monotonic() < self._deadline

    def run_anywhere(self, trials: Iterable[Trial]) -> None:
        """Trains for loss against samples: one crew of processes for all, whatever else the machine does."""
        wanted = [trial for trial in trials if not self.has("anywhere", trial)]
        for num_ranks in sorted({trial.num_ranks for trial in wanted}):
            with crew(num_ranks) as trained:
                for trial in wanted:
                    if trial.num_ranks == num_ranks and self.in_time():
                        self.keep("anywhere", trial, trained(trial))

    def run_on_rig(self, rate: str, trials: Iterable[Trial]) -> None:
        """Trains on emulated hosts, each trial in fresh processes; nothing else may run."""
        where = emulated(f"emulated:{rate}")
        for trial in trials:
            if self.has(rate, trial) or not self.in_time():
                continue
            with tempfile.TemporaryDirectory() as folder:
                sets = CORE_SETS[: trial.num_ranks]
                done = where.launch(
                    LaunchJob(task=trial, folder=Path(folder), core_sets=sets, limit_s=LIMIT_S)
                )
            if done.result is None:
                print(f"{rate} {trial.trial_id}: {done.reason}", flush=True)
            else:
                self.keep(rate, trial, dict(done.result))


@contextmanager
def crew(num_ranks: int) -> Iterator[Any]:
    """A function that trains a trial in processes that stay for the next."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "crew.py")]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(num_ranks), f"{folder}/store"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_ranks)
        ]

        def trained(trial: Trial) -> dict[str, Any]:
            for rank in ranks:
                rank.stdin.write(json.dumps(to_builtins(trial)) + "\n")
                rank.stdin.flush()
            answer = ranks[0].stdout.readline()
            if not answer:
                sys.exit(f"{trial.trial_id}: a process of the crew ended")
            result: dict[str, Any] = json.loads(answer)
            return result

        try:
            yield trained
        finally:
            for rank in ranks:
                rank.stdin.close()
                rank.kill()
                rank.wait()


def mean_loss(done: Trainings, trials: Sequence[Trial]) -> float:
    """Mean held-out loss after the budget."""
    return mean(last_loss(done.curve("anywhere", trial)) for trial in trials)


def paced(family: Family, batch: int, num_ranks: int) -> Trial:
    """A short run for its speed: one device, or that batch shared by two under plain data parallel."""
    trial = family.alone(batch, 0.01, 0)
    method = "ddp" if num_ranks > 1 else trial.method
    num_samples = family.num_speed_steps * batch
    return replace(trial, method=method, num_ranks=num_ranks, train_samples=num_samples)


def step_seconds(done: Trainings, family: Family) -> dict[int, float]:
    """Seconds of one step of one device by batch."""
    return {
        batch: batch / sample_rate(done.curve("1gbit", paced(family, batch, 1))) for batch in family.batches
    }


def time_steps(done: Trainings, family: Family) -> None:
    """Times one device and plain data parallel by batch, on the rig."""
    for batch in family.batches:
        done.run_on_rig("1gbit", [paced(family, batch, 1)])  # alone on its host: no link
        for rate in RATES:
            done.run_on_rig(rate, [paced(family, batch, 2)])


class Choice(Struct, frozen=True, kw_only=True):
    """What was chosen on tuning seeds: its first trial, its mean loss there and the standard error of one."""

    trial: Trial
    loss: float
    error: float = 0.0

    def on(self, seed: int) -> Trial:
        """The same with another seed."""
        return replace(self.trial, seed=seed)


def chosen_alone(done: Trainings, family: Family) -> Choice:
    """The fastest configuration of one device whose loss is within one standard error of the lowest."""
    step_s = step_seconds(done, family)
    tried = [(mean_loss(done, trials), trials) for trials in family.grid_alone()]
    lowest = min(loss for loss, _ in tried)
    # Few seeds give no spread of their own: it is pooled over configurations that learned about as well.
    near = [trials for loss, trials in tried if loss < 1.3 * lowest]
    spreads = [stdev(last_loss(done.curve("anywhere", trial)) for trial in trials) ** 2 for trials in near]
    error = (mean(spreads) / family.num_tuning_seeds) ** 0.5
    within = [(loss, trials[0]) for loss, trials in tried if loss <= lowest + error]
    loss, trial = max(
        within, key=lambda each: (each[1].batch_samples / step_s[each[1].batch_samples], -each[0])
    )
    return Choice(trial=trial, loss=loss, error=error)


def predicted_rate(family: Family, trial: Trial, step_s: dict[int, float], link_byte_per_s: float) -> float:
    """Samples a second of two devices, for choosing only: steps, and an average a cycle."""
    cycle = int(trial.method.partition(":")[2])
    average_s = 2 * family.params / link_byte_per_s + 0.001
    return trial.batch_samples / (step_s[trial.rank_batch_samples] + average_s / cycle)


def chosen_shared(done: Trainings, family: Family, rate: str) -> Choice:
    """Two devices: of the configurations whose loss is not above one device's and that are predicted to be
    fast enough, the one predicted to be the first at the target loss.

    Where none is: the fastest at that loss; where none learns as well, the one of the lowest loss.
    """
    step_s, alone = step_seconds(done, family), chosen_alone(done, family)
    grid = family.grid_shared(alone.trial.batch_samples)
    speeds = {trials: predicted_rate(family, trials[0], step_s, RATES[rate]) for trials in grid}
    losses = {trials: mean_loss(done, trials) for trials in grid}
    equal = [trials for trials in grid if losses[trials] <= alone.loss] or [min(grid, key=losses.__getitem__)]
    enough = PREDICTED_FASTER * alone.trial.batch_samples / step_s[alone.trial.batch_samples]

    def order(trials: tuple[Trial, ...]) -> tuple[float, float]:
        samples = mean(
            samples_to(done.curve("anywhere", trial), alone.loss + alone.error) for trial in trials
        )
        return (samples / speeds[trials] if speeds[trials] >= enough else inf, -speeds[trials])

    trials = min(equal, key=order)
    return Choice(trial=trials[0], loss=losses[trials])


def tune(done: Trainings, family: Family) -> None:
    """Both grids on the tuning seeds."""
    alone = [trial for trials in family.grid_alone() for trial in trials]
    done.run_anywhere(alone)
    if all(done.has("anywhere", trial) for trial in alone):
        batch = chosen_alone(done, family).trial.batch_samples
        done.run_anywhere(trial for trials in family.grid_shared(batch) for trial in trials)


def final(done: Trainings, family: Family) -> None:
    """What was chosen, on fresh seeds."""
    choices = {chosen_alone(done, family).trial}
    choices |= {chosen_shared(done, family, rate).trial for rate in RATES}
    done.run_anywhere(
        replace(trial, seed=seed)
        for seed in range(1, family.num_seeds + 1)
        for trial in sorted(choices, key=lambda each: each.trial_id)
    )


def rig(done: Trainings, family: Family) -> None:
    """What was chosen, on the rig."""
    alone = chosen_alone(done, family)
    for seed in range(1, family.num_rig_seeds + 1):
        done.run_on_rig("1gbit", [alone.on(seed)])  # alone on its host: no link
        for rate in RATES:
            done.run_on_rig(rate, [chosen_shared(done, family, rate).on(seed)])


def rig_once(done: Trainings, family: Family) -> None:
    """The same with the first seed only: what every table needs."""
    rig(done, replace(family, num_rig_seeds=1))


def kind_trial(method: str, seed: int) -> Trial:
    """A training of the comparison of methods."""
    (family,) = (each for each in FAMILIES if each.name == KINDS_MODEL)
    if method == "single":
        return family.alone(KINDS_BATCH, KINDS_RATE, seed)
    return family.shared(method, KINDS_BATCH // 2, KINDS_RATE, seed)


def kinds(done: Trainings) -> None:
    """Every method: all seeds anywhere."""
    done.run_anywhere(kind_trial(method, seed) for seed in KINDS_SEEDS for method in KINDS)


def kinds_rig(done: Trainings) -> None:
    """Every method: one seed on the rig."""
    for rate in RATES:
        done.run_on_rig(rate, [kind_trial(method, 1) for method in KINDS])


def kinds_rows(done: Trainings) -> list[dict[str, Any]]:
    """What each method's trainings came to."""
    rows = []
    for method in KINDS:
        trials = [kind_trial(method, seed) for seed in KINDS_SEEDS]
        curves = [done.curve("anywhere", trial) for trial in trials if done.has("anywhere", trial)]
        if not curves:
            continue
        loss, error = with_error([last_loss(curve) for curve in curves])
        row: dict[str, Any] = {
            "method": method,
            "loss": loss,
            "loss_error": error,
            "loss_seed_1": last_loss(curves[0]),
            "num_seeds": len(curves),
            "curve": mean_curve(curves),
        }
        row["accuracy"] = row["curve"][-1]["accuracy"]
        for rate in RATES:
            if done.has(rate, kind_trial(method, 1)):
                row[f"samples_per_s_{rate}"] = sample_rate(done.curve(rate, kind_trial(method, 1)))
        rows.append(row)
    return rows


def row_if_complete(done: Trainings, family: Family, rate: str) -> dict[str, Any] | None:
    """The row of a model at a rate, or None, said aloud, where trainings that it needs are missing."""
    try:
        return target_row(done, family, rate)
    except (FileNotFoundError, StatisticsError):
        print(f"{family.name} at {rate}: trainings are missing, no row")
        return None


def target_row(done: Trainings, family: Family, rate: str) -> dict[str, Any]:
    """Of one model at one rate: what one device does, plain data parallel, and what was found."""
    alone, found = chosen_alone(done, family), chosen_shared(done, family, rate)
    seeds = range(1, family.num_seeds + 1)
    losses = {
        name: with_error([last_loss(done.learned(choice.on(seed))) for seed in seeds])
        for name, choice in (("alone", alone), ("found", found))
    }
    goal = sum(losses["alone"])  # one device's mean, and one standard error: reached at equal loss
    rig_seeds = range(1, family.num_rig_seeds + 1)
    runs = {
        name: [done.curve(where, one.on(seed)) for seed in rig_seeds if done.has(where, one.on(seed))]
        for name, where, one in (("alone", "1gbit", alone), ("found", rate, found))
    }
    speed = {name: median(sample_rate(curve) for curve in curves) for name, curves in runs.items()}
    reached = {name: [reached_s(curve, goal) for curve in curves] for name, curves in runs.items()}
    plain = paced(family, alone.trial.batch_samples, 2)
    return {
        "model": family.name,
        "params": family.params,
        "link": rate,
        "train_samples": family.train_samples,
        "num_seeds": family.num_seeds,
        "alone": _said(alone.trial),
        "found": _said(found.trial),
        "alone_loss": losses["alone"],
        "found_loss": losses["found"],
        "alone_samples_per_s": speed["alone"],
        "found_samples_per_s": speed["found"],
        "ddp_samples_per_s": sample_rate(done.curve(rate, plain)),
        "goal_loss": goal,
        "alone_to_goal_s": reached["alone"],
        "found_to_goal_s": reached["found"],
        "alone_whole_s": [curve[-1]["seconds"] for curve in runs["alone"]],
        "found_whole_s": [curve[-1]["seconds"] for curve in runs["found"]],
    }


def _said(trial: Trial) -> str:
    ranks = (
        f"{trial.method}, 2 x {trial.rank_batch_samples}" if trial.num_ranks > 1 else f"{trial.batch_samples}"
    )
    return f"{ranks}, rate {trial.learning_rate:g}"


def _loss(pair: Sequence[float]) -> str:
    return f"{pair[0]:.4f} ± {pair[1]:.4f}" if isfinite(pair[1]) else f"{pair[0]:.4f}"


def _seconds(values: Sequence[float | None]) -> str:
    """The median of those that got there, and how many did where it was not all."""
    there = [value for value in values if value is not None]
    if not there:
        return f"never of {len(values)}"
    return f"{median(there):.2f}" + (f" ({len(there)} of {len(values)})" if len(there) < len(values) else "")


def slow_links_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows in Markdown."""
    lines = [
        (
            "| model | parameters | link | one device: batch, rate | found: method, batch, rate | plain DDP "
            "| found | loss, one device | loss, found | equal | seconds to target, one device | found |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        alone = row["alone_samples_per_s"]
        equal = row["found_loss"][0] <= sum(row["alone_loss"])
        lines.append(
            f"| {row['model']} | {row['params'] / 1e6:.2f} M | {row['link']} | "
            f"{row['alone']} | {row['found']} | "
            f"{row['ddp_samples_per_s'] / alone:.2f} | "
            f"**{row['found_samples_per_s'] / alone:.2f}** | {_loss(row['alone_loss'])} | "
            f"{_loss(row['found_loss'])} | {'yes' if equal else 'no'} | {_seconds(row['alone_to_goal_s'])} | "
            f"{_seconds(row['found_to_goal_s'])} |"
        )
    return lines


def kinds_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows in Markdown."""
    lines = [
        "| method | seeds | loss after 4 passes | 10 | 40 | 40, seed 1 alone | accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        curve, (loss, error) = row["curve"], (row["loss"], row["loss_error"])
        after = [_at(curve, passes * PASS_SAMPLES) for passes in (4, 10)]
        lines.append(
            f"| `{row['method']}` | {row['num_seeds']} | {after[0]:.3f} | {after[1]:.3f} | "
            f"{_loss((loss, error))} | {row['loss_seed_1']:.4f} | {row['accuracy']:.4f} |"
        )
    return lines


def _at(curve: Sequence[dict[str, float]], samples: float) -> float:
    """The loss after so many samples, between the points beside."""
    for before, after in pairwise(curve):
        if samples <= after["samples"]:
            part = (samples - before["samples"]) / (after["samples"] - before["samples"])
            return before["loss"] + part * (after["loss"] - before["loss"])
    return curve[-1]["loss"]


def write(done: Trainings, wanted: Sequence[Family]) -> None:
    """Data, tables and figure, of what is finished."""
    (DOCS / "data").mkdir(exist_ok=True)
    rows = [row for family in wanted for rate in RATES if (row := row_if_complete(done, family, rate))]
    (DOCS / "data" / "0014-slow-links.json").write_text(json.dumps(_short(rows), indent=1) + "\n")
    _replace_table(DOCS / "0014-slow-links.md", slow_links_table(rows))
    write_trainings(done, DOCS / "data" / "0014-trainings.csv")
    kinds_found = kinds_rows(done)
    (DOCS / "data" / "0013-convergence.json").write_text(json.dumps(_short(kinds_found), indent=None) + "\n")
    _replace_table(DOCS / "0013-convergence.md", kinds_table(kinds_found))
    curves = {row["method"]: row["curve"][1:] for row in kinds_found}
    figure(DOCS / "data" / "0013-convergence.svg", curves, [("samples", "samples")])


def write_trainings(done: Trainings, path: Path) -> None:
    """Every training of the folder as a row: also those of grids tried before, and short ones."""
    rows = []
    for file in done.folder.glob("*/*.json"):
        kept = json.loads(file.read_text())
        trial, curve = convert(kept.get("trial") or kept["cell"], Trial), kept["curve"]
        told = (trial.workload, trial.method, trial.num_ranks, trial.rank_batch_samples, trial.learning_rate)
        ends = [f"{value:.5g}" for value in (curve[-1]["loss"], curve[-1]["seconds"], sample_rate(curve))]
        rows.append((*told, trial.seed, file.parent.name, trial.train_samples, *ends))
    titles = ("model", "method", "ranks", "rank_batch_samples", "learning_rate", "seed", "where")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*titles, "train_samples", "loss", "train_s", "samples_per_s"))
        writer.writerows(sorted(rows))


def _short(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Numbers to five digits: what is behind them is noise."""
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value


def _replace_table(path: Path, lines: Sequence[str]) -> None:
    """Puts a table where the document keeps it: between two comments."""
    text = path.read_text()
    before, begin, rest = text.partition("<!-- table -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    path.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


def families(names: str | None) -> tuple[Family, ...]:
    """Those asked for, or all."""
    wanted = names.split(",") if names else [family.name for family in FAMILIES]
    return tuple(family for family in FAMILIES if family.name in wanted)


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stages", nargs="*", default=list(STAGES))
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "convergence")
    parser.add_argument("--models")
    parser.add_argument("--minutes", type=float, default=240.0)
    asked = parser.parse_args()
    done = Trainings(asked.out, time.monotonic() + 60 * asked.minutes)
    each = {"steps": time_steps, "tune": tune, "final": final, "rig-once": rig_once, "rig": rig}
    whole = {"kinds": kinds, "kinds-rig": kinds_rig}
    for stage in asked.stages:
        if stage in whole:
            whole[stage](done)
        elif stage == "write":
            write(done, families(asked.models))
        else:
            for family in families(asked.models):
                each[stage](done, family)


if __name__ == "__main__":
    main()
