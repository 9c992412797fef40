"""How wrong the performance model is on published measurements it has not seen, against other tools.

Run: PYTHONPATH=src python benchmarks/accuracy.py [--write docs/understand/accuracy.md].
EQUIPOISE_DATA names the data. Every line names its split; nothing in it was predicted by a model that had
seen it.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from equipoise.calibration.accuracy import TimeErrors, time_errors
from equipoise.calibration.published.quantities import number
from equipoise.calibration.validate import ValidatedRow, Validation, validate
from equipoise.runs.readers.cells import TextRow

sys.path.append(str(Path(__file__).resolve().parents[1] / "records"))
from software_fit import held_out_steps
from step_table import source_of

DATA = (
    Path(os.environ.get("EQUIPOISE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    / "measured"
)
VTRAIN = ("vtrain_single", "vtrain_multi")
Wanted = Callable[[ValidatedRow], bool]


class Figure(Struct, frozen=True, kw_only=True):
    """One figure of a line: its name, how it is read off the errors, and what it may be at most."""

    name: str
    read: Callable[[TimeErrors], float]
    most: float


MAPE = ("mean", lambda errors: errors.mape)
MEDIAN = ("median", lambda errors: errors.median)


def at_most(figure: tuple[str, Callable[[TimeErrors], float]], most: float) -> Figure:
    """A figure with its bound."""
    return Figure(name=figure[0], read=figure[1], most=most)


class Target(Struct, frozen=True, kw_only=True):
    """What is held out of which files, which rows count, and how wrong they may be.

    others: what other tools reached, in words. folds: whether every fold has to reach the bound too.
    """

    name: str
    files: tuple[str, ...]
    figures: tuple[Figure, ...]
    split: str = "none"
    calibrate: tuple[str, ...] = ()
    wanted: Wanted = lambda _: True
    others: str = ""
    folds: bool = False
    regret: float | None = None
    memory: float | None = None


def on(num_accelerators: int) -> Wanted:
    """Whether a row is on so many accelerators and not predicted by its FLOP and bytes."""
    return lambda verdict: verdict.by != "step" and verdict.row.num_accelerators == num_accelerators


def _is_mtnlg(verdict: ValidatedRow) -> bool:
    """Rows of Smith et al. 2022, another paper with another code base than Megatron's of SC'21."""
    return verdict.row.workload.startswith("MT-NLG")


TARGETS = (
    Target(
        name="vTrain, one node",
        files=("vtrain_single",),
        split="leave-n_gpus-out",
        figures=(at_most(MAPE, 0.06),),
        folds=True,
        others="Calculon, stock: 37.3 % (rows); vTrain, which profiles the GPU: 8.4 % of all 1,440 rows",
    ),
    Target(
        name="vTrain, one node",
        files=("vtrain_single",),
        split="leave-hidden-out",
        figures=(at_most(MAPE, 0.10),),
        others="a 9-parameter physical model: 15.9 %",
    ),
    Target(
        name="vTrain, 8 to 64 nodes",
        files=("vtrain_multi",),
        calibrate=("vtrain_single",),
        figures=(at_most(MAPE, 0.07), at_most(MEDIAN, 0.04)),
        others="Calculon: 10.7 % (median 6.1 %); vTrain: 14.7 % of all 109 rows",
    ),
    Target(
        name="Korthikanti et al. 2022, table 5",
        files=("korthikanti_table5",),
        calibrate=VTRAIN,
        figures=(at_most(MAPE, 0.05),),
        others="Calculon: 3.9 %",
    ),
    Target(
        name="Megatron SC'21",
        files=("megatron_sc21_mtnlg",),
        calibrate=VTRAIN,
        wanted=lambda verdict: not _is_mtnlg(verdict),
        figures=(at_most(MAPE, 0.10),),
    ),
    Target(
        name="MT-NLG 530B, in the same file",
        files=("megatron_sc21_mtnlg",),
        calibrate=VTRAIN,
        wanted=_is_mtnlg,
        figures=(),
    ),
    Target(
        name="torchtitan",
        files=("torchtitan",),
        split="leave-strategy-out",
        figures=(at_most(MAPE, 0.10),),
        memory=0.05,
    ),
    Target(
        name="Megatron-Bridge",
        files=("megatron_bridge_nemo",),
        split="leave-model-out",
        figures=(at_most(MEDIAN, 0.15),),
    ),
    Target(
        name="DeepLearningExamples, 1 to 8",
        files=("nvidia_deeplearningexamples",),
        split="leave-workload-out",
        wanted=on(8),
        figures=(at_most(MEDIAN, 0.035),),
        others="a constant efficiency: 5.3 %; perfect scaling: 6.8 %",
    ),
    Target(
        name="NCCL all-reduce, A100",
        files=("nccl_vtrain_allreduce",),
        split="leave-half-of-bytes-out",
        figures=(at_most(MEDIAN, 0.03),),
        others="interpolation in logarithms: 2.5 %",
    ),
    Target(
        name="NCCL all-reduce, A100",
        files=("nccl_vtrain_allreduce",),
        split="leave-n_gpus-out",
        figures=(at_most(MEDIAN, 0.10),),
    ),
    Target(
        name="NCCL all-reduce, B200, 8 to 32",
        files=("nccl_published",),
        split="leave-n_gpus-out",
        wanted=on(32),
        figures=(at_most(MEDIAN, 0.15),),
    ),
    Target(
        name="choice among vTrain's strategies",
        files=("vtrain_single",),
        split="leave-hidden+n_gpus-out",
        figures=(),
        regret=0.03,
        others="Calculon: 10.0 % (at most 53.5 %)",
    ),
)


class Result(Struct, frozen=True, kw_only=True):
    """A target with what was reached."""

    target: Target
    found: Validation
    errors: TimeErrors
    seconds: float

    @property
    def expressed(self) -> float:
        """Share of the rows that ask for a prediction and got one."""
        asked = len(self.found.verdicts) - self.found.num_given
        return self.found.num_modelled / asked

    def words(self) -> list[tuple[str, float, float]]:
        """Every figure with a bound: its name, its value, the bound."""
        told = [(each.name, each.read(self.errors), each.most) for each in self.target.figures]
        if not told and self.target.regret is None:
            told.append(("mean", self.errors.mape, float("inf")))
        if self.target.folds:
            worst = max(self.found.by_fold.items(), key=lambda item: item[1].mape)
            told.append((f"worst fold ({worst[0]})", worst[1].mape, self.target.figures[0].most))
        if self.target.regret is not None and self.found.regret is not None:
            told.append(("regret", self.found.regret.mean, self.target.regret))
        if self.target.memory is not None and self.found.memory is not None:
            told.append(("memory", self.found.memory.mean, self.target.memory))
        return told


def errors_where(found: Validation, wanted: Wanted) -> TimeErrors | None:
    """Errors over the executions whose counted row is wanted; None where there are none."""
    rows = {}
    for each in found.verdicts:
        row, conversion = each.row, each.row.conversion
        if each.is_counted and conversion is not None and wanted(each):
            bounds = sorted(conversion.seconds(side or 0.0) for side in (each.low, each.high))
            rows[row.execution] = (
                row.seconds,
                conversion.seconds(each.predicted or 0.0),
                *bounds,
                row.cluster,
            )
    if not rows:
        return None
    measured_s, predicted_s, low_s, high_s, clusters = map(np.array, zip(*rows.values(), strict=True))
    return time_errors(
        measured_s=measured_s, predicted_s=predicted_s, low_s=low_s, high_s=high_s, clusters=clusters
    )


def reached(target: Target) -> Result:
    """What a target's rows give."""
    start = time.perf_counter()
    found = validate(
        [DATA / f"{name}.csv" for name in target.files],
        calibrate_on=[DATA / f"{name}.csv" for name in target.calibrate],
        split=target.split,
    )
    errors = errors_where(found, target.wanted)
    if errors is None:
        raise SystemExit(f"{target.name}: no row is expressed")
    return Result(target=target, found=found, errors=errors, seconds=time.perf_counter() - start)


def rival_errors(found: Validation) -> tuple[int, float, float, float] | None:
    """On the rows that state another tool's prediction: their number, its mean and median error, and ours."""
    theirs, ours = [], []
    for each in found.verdicts:
        cells = TextRow(place="", cells=each.row.cells)
        told = number(cells, "other_tool_prediction", most=1e30)
        if told is not None and each.error is not None and each.row.measured:
            theirs.append(abs(told / each.row.measured - 1.0))
            ours.append(each.error)
    if not theirs:
        return None
    return len(theirs), float(np.mean(theirs)), float(np.median(theirs)), float(np.mean(ours))


def split_words(target: Target) -> str:
    """What was held out, in words."""
    on = f"calibrated on {' and '.join(target.calibrate)}" if target.calibrate else ""
    if target.split == "none":
        return on
    what = target.split.removeprefix("leave-").removesuffix("-out").replace("+", " and ").replace("-", " ")
    return f"one {what} left out" if not what.startswith("half") else f"given {what}"


def table(results: list[Result]) -> str:
    """All targets as a table."""
    lines = [
        "| measured by | held out | runs (clusters) | expressed | reached | at most | in range | others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        told = each.words()
        values = ", ".join(f"{name} {value:.1%}" for name, value, _ in told)
        bounds = ", ".join(f"{most:.1%}" for _, _, most in told if most < float("inf"))
        misses = "" if all(value <= most for _, value, most in told) else " **missed**"
        lines.append(
            f"| {each.target.name} | {split_words(each.target)} | {each.errors.num_executions} "
            f"({each.errors.num_clusters}) | {each.expressed:.1%} | {values}{misses} | {bounds} | "
            f"{each.errors.coverage:.0%} | {each.target.others} |"
        )
    return "\n".join(lines)


def rows_of(result: Result) -> str:
    """Every execution of a small target by itself."""
    lines = ["| row | measured | predicted | 90 % range | unit | error |", "|---|---|---|---|---|---|"]
    for each in result.found.verdicts:
        if each.predicted is None or each.low is None or each.high is None:
            continue
        lines.append(
            f"| {each.row.workload}, {each.row.num_accelerators}, {each.row.cells.get('recompute', '')} | "
            f"{each.row.measured:.4g} | {each.predicted:.4g} | {each.low:.4g} to {each.high:.4g} | "
            f"{each.row.unit} | {each.error:.1%} |"
        )
    return "\n".join(lines)


PAGE = """# Accuracy of the performance model

This page compares the performance model with measured steps that were held out. An error is
|predicted time / measured time - 1|. The first table has one line per set of measurements: `reached` is the
error, `at most` the limit set for it, `in range` the share of executions inside their 90 % range, and
`others` the errors of other tools. `expressed` is the share of rows with a prediction, not counting rows that
only serve to predict others. Held-out rows were used neither to fit the parameters nor to set the width of
the intervals. An execution that is stated in two units counts once. A cluster (one width of model, machine
and strategy) counts once, however many layers and micro-batches were measured; `mean` and `median` are over
clusters.

The form of the model and the medians of its priors were chosen with these measurements in view, so every
figure here is optimistic; docs/experiments/0005 to 0009 describe what was tried. On measurements that were
not available then, the error was 7.7 % (eight steps of larger torchtitan models, docs/experiments/0007) and
22 % (published trainings, with only their samples fitted, docs/experiments/0010).

`make accuracy` writes this page; repeat a line with `equipoise validate` and the files named.

{table}

{rivals}

## Sources left out whole

The shipped table of published steps: each repository or paper is predicted with the parameters of its
software fitted to all other sources, and each cluster counts once. [published-steps.md](published-steps.md)
describes the protocol and compares other tools on the same rows.

{sources}

## Korthikanti et al., each row

{korthikanti}

## Folds

{folds}

## Rows that are not expressed, and why

{reasons}
"""


def page(results: list[Result]) -> str:
    """The whole page."""
    rivals = []
    for each in results:
        found = rival_errors(each.found)
        if found is not None:
            count, theirs, median, ours = found
            rivals.append(
                f"- {each.target.name}, {split_words(each.target)}: on the {count} rows for which "
                f"Calculon's prediction is known, its error is {theirs:.1%} (median {median:.1%}), this "
                f"model's {ours:.1%}: {theirs / ours:.1f} times smaller."
            )
    folds = []
    for each in results:
        if each.found.by_fold:
            told = ", ".join(f"{name}: {errors.mape:.1%}" for name, errors in each.found.by_fold.items())
            folds.append(f"- {each.target.name}, {split_words(each.target)}: {told}.")
    reasons = {
        f"- {each.target.files[0]}: {count} x {reason}"
        for each in results
        for reason, count in each.found.reasons
    }
    small = next(each for each in results if each.target.files == ("korthikanti_table5",))
    from published_steps import by_group, table_rows  # noqa: PLC0415 - beside this file, where it is run

    rows = table_rows()
    return PAGE.format(
        table=table(results),
        sources=by_group("source", held_out_steps(rows, source_of), [source_of(row) for row in rows]),
        rivals="\n".join(rivals),
        korthikanti=rows_of(small),
        folds="\n".join(folds),
        reasons="\n".join(sorted(reasons)) or "None.",
    )


def bound(value: float, most: float) -> str:
    """What a figure may be at most, and whether it is more; nothing where it has no bound."""
    if most == float("inf"):
        return ""
    return f" (at most {most:.1%}{'' if value <= most else ', MISSED'})"


def main() -> None:
    """Print every target as it is reached; write the page where asked to."""
    results = []
    for target in TARGETS:
        found = reached(target)
        results.append(found)
        told = "; ".join(f"{name} {value:.2%}{bound(value, most)}" for name, value, most in found.words())
        print(
            f"{target.name}, {split_words(target)}: {told}; {found.errors.num_executions} executions, "
            f"{found.errors.num_clusters} clusters, {found.expressed:.1%} expressed, "
            f"{found.errors.coverage:.0%} in range; {found.seconds:.1f} s",
            flush=True,
        )
        rival = rival_errors(found.found)
        if rival is not None:
            count, theirs, _, ours = rival
            print(f"    Calculon on {count} of these rows: {theirs:.1%}, {theirs / ours:.1f} times ours")
    if sys.argv[1:2] == ["--write"]:
        Path(sys.argv[2]).write_text(page(results))


if __name__ == "__main__":
    main()
