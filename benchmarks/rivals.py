"""How wrong the pooled law was, against what a user would pick instead, on the same held-out groups.

    python benchmarks/rivals.py [--extrap-python PYTHON | --install] [--data FOLDER]

The largest size of each group is held out; every way is given the group's smaller sizes: ours (which knows
earlier rounds too), perfect scaling, a power law, scipy.optimize.curve_fit of Amdahl's law and of the USL
(weighing seconds, as it does by default, and weighing relative errors), and Extra-P (with its defaults, and
with negative exponents allowed). PYTHON is an interpreter that has extrap; --install makes one in a folder
that is deleted afterwards; without either, Extra-P is left out.
docs/experiments/0004-rivals.md has the figures.
"""

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import venv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from scipy.optimize import OptimizeWarning, curve_fit

from equipoise.runs import embedded
from equipoise.scaling.backtest import HeldOut, backtest
from equipoise.scaling.laws import AMDAHL, USL, FloatArray, Law
from equipoise.spec.mlperf import Entries, best_per_size

OURS = "pooled law (ours)"
# Seconds predicted for each held-out group, in their order; None where there is no answer.
Answers = Sequence[float | None]

# Runs in the interpreter that has extrap. stdin: [[path of a group's JSONL, size asked], ...].
EXTRAP_PROGRAM = """
import json, sys, warnings
import extrap
from extrap.fileio.file_reader.jsonlines_file_reader import read_jsonlines_file
from extrap.modelers.model_generator import ModelGenerator

warnings.simplefilter("ignore")
found = {"version": extrap.__version__, "predicted": {}, "constant": {}}
asked = json.load(sys.stdin)
for title, allow in (("defaults", False), ("negative exponents", True)):
    laws = []
    for path, _ in asked:
        generator = ModelGenerator(read_jsonlines_file(path))
        generator.modeler.allow_negative_exponents = allow
        generator.model_all()
        laws += [model.hypothesis.function for model in generator.models.values()]
    found["fewest_points"] = generator.modeler.min_measurement_points
    pairs = zip(laws, asked, strict=True)
    found["predicted"][title] = [float(law.evaluate(size)) for law, (_, size) in pairs]
    found["constant"][title] = sum(not law.compound_terms for law in laws)
print(json.dumps(found))
"""


class Task(Struct, frozen=True, kw_only=True):
    """A held-out entry and the smaller sizes of its group, (n_sizes,), smallest first."""

    held_out: HeldOut
    num_accelerators: FloatArray
    time_s: FloatArray

    @property
    def work_s(self) -> float:
        """Accelerator-seconds at the smallest size: the time on one accelerator if scaling were perfect."""
        return float(self.num_accelerators[0] * self.time_s[0])


def tasks(best: Entries, held_out: Sequence[HeldOut]) -> Iterator[Task]:
    """Each held-out entry with what was known of its group. best: as best_per_size gives it."""
    for one in held_out:
        group = (one.round, one.workload, one.accelerator)
        own = [each for each in best if each.group == group and each.num_accelerators < one.num_accelerators]
        yield Task(
            held_out=one,
            num_accelerators=np.array([each.num_accelerators for each in own], dtype=float),
            time_s=np.array([each.score_s for each in own]),
        )


def curve_fit_s(
    law: Law, task: Task, start: tuple[float, ...], most: tuple[float, ...], *, weighs_relative: bool
) -> float | None:
    """The held-out time by scipy.optimize.curve_fit, parameters from 0 to most; None if it cannot fit."""
    if len(task.time_s) < len(start):
        return None
    sigma = task.time_s if weighs_relative else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # about the covariance, which is not used
        try:
            values, _ = curve_fit(
                law.predict_s,
                task.num_accelerators,
                task.time_s,
                p0=start,
                sigma=sigma,
                bounds=(0.0, most),
                x_scale="jac",
            )
        except RuntimeError:  # no optimum within the evaluations allowed
            return None
    return float(law.predict_s(float(task.held_out.num_accelerators), *values))


def scipy_answers(asked: Sequence[Task]) -> dict[str, Answers]:
    """What curve_fit of Amdahl's law and of the USL predicts, by way."""
    found: dict[str, Answers] = {}
    for title, weighs_relative in (("", False), (", relative", True)):
        found[f"Amdahl, curve_fit{title}"] = [
            curve_fit_s(
                AMDAHL,
                task,
                (task.time_s[-1] / 2.0, task.work_s),
                (np.inf, np.inf),
                weighs_relative=weighs_relative,
            )
            for task in asked
        ]
        found[f"USL, curve_fit{title}"] = [
            curve_fit_s(
                USL, task, (task.work_s, 1e-2, 1e-5), (np.inf, 1.0, 1.0), weighs_relative=weighs_relative
            )
            for task in asked
        ]
    return found


@contextlib.contextmanager
def extrap_interpreter(chosen: argparse.Namespace) -> Iterator[str | None]:
    """An interpreter that has extrap, if one was named or asked for; None with the reason printed."""
    with tempfile.TemporaryDirectory() as scratch:
        python = chosen.extrap_python or sys.executable
        if chosen.install:
            venv.create(scratch, with_pip=True)
            python = f"{scratch}/bin/python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", "extrap"], check=True)
        probe = subprocess.run(
            [python, "-I", "-c", "import extrap"], capture_output=True, text=True, check=False
        )
        if probe.returncode:
            reason = probe.stderr.strip().splitlines()[-1]
            print(f"Extra-P: left out, {python} cannot import it ({reason}).")
            print("  Have it installed in a folder of its own: --install. Or: python -m venv extrap-env;")
            print("  extrap-env/bin/pip install extrap; then --extrap-python extrap-env/bin/python")
        yield None if probe.returncode else python


def extrap_answers(python: str, asked: Sequence[Task]) -> tuple[dict[str, Answers], int]:
    """What Extra-P predicts by way, and how many points it asks for. One process; an experiment a group."""
    with tempfile.TemporaryDirectory() as scratch:
        experiments = []
        for index, task in enumerate(asked):
            path = Path(scratch) / f"{index}.jsonl"
            known = zip(task.num_accelerators.tolist(), task.time_s.tolist(), strict=True)
            path.write_text(
                "".join(json.dumps({"params": {"p": size}, "value": time_s}) + "\n" for size, time_s in known)
            )
            experiments.append((str(path), task.held_out.num_accelerators))
        ran = subprocess.run(
            [python, "-I", "-c", EXTRAP_PROGRAM],
            input=json.dumps(experiments),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found = json.loads(ran.stdout)
    print(f"Extra-P {found['version']}: asks for {found['fewest_points']} points, answers with fewer")
    for title, num_constant in found["constant"].items():
        print(f"  {title}: a constant for {num_constant} of {len(asked)} groups")
    answers = {
        f"Extra-P, {title}": [value if math.isfinite(value) else None for value in predicted]
        for title, predicted in found["predicted"].items()
    }
    return answers, found["fewest_points"]


def show(title: str, asked: Sequence[Task], answers: Mapping[str, Answers], chosen: Sequence[int]) -> None:
    """Errors on the chosen groups (indices) a way, and ours over theirs on those that the way answered.

    A time below 0 counts as an answer: it is what the way says.
    """
    print(f"\n{title}: {len(chosen)} groups")
    print(f"{'':30}answered  below 0   median     mean      p90   ours/rival: median    p90")
    for name, predicted in answers.items():
        answered = [index for index in chosen if predicted[index] is not None]
        if not answered:
            print(f"{name:30}{0:8}")
            continue
        num_impossible = sum(predicted[index] < 0.0 for index in answered)
        theirs, ours = (errors(asked, each, answered) for each in (predicted, answers[OURS]))
        print(
            f"{name:30}{len(answered):8} {num_impossible:8} {theirs[0]:8.1%} {theirs[1]:8.1%}"
            f" {theirs[2]:8.1%}{ours[0] / theirs[0]:21.3f} {ours[2] / theirs[2]:6.3f}"
        )


def errors(asked: Sequence[Task], predicted: Answers, chosen: Sequence[int]) -> tuple[float, float, float]:
    """Median, mean and p90 of |predicted / actual - 1| of the chosen groups (indices)."""
    sizes = np.abs([predicted[index] / asked[index].held_out.actual_s - 1.0 for index in chosen])
    return float(np.median(sizes)), float(np.mean(sizes)), float(np.quantile(sizes, 0.9))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--extrap-python", metavar="PYTHON", help="an interpreter that has extrap")
    source.add_argument("--install", action="store_true", help="install extrap for this run")
    parser.add_argument("--data", type=Path, help="a folder that ingest wrote; the embedded data by default")
    chosen = parser.parse_args()
    best = best_per_size(embedded.scores(data=chosen.data).entries)
    held_out = backtest(best).groups
    asked = list(tasks(best, held_out))
    answers: dict[str, Answers] = {
        OURS: [one.predicted_s for one in held_out],
        "perfect scaling": [one.perfect_s for one in held_out],
        "power law": [one.power_law_s for one in held_out],
        **scipy_answers(asked),
    }
    fewest_points = None
    with extrap_interpreter(chosen) as python:
        if python:
            found, fewest_points = extrap_answers(python, asked)
            answers |= found
    everything = range(len(asked))
    show("all held-out groups", asked, answers, everything)
    common = [index for index in everything if all(each[index] is not None for each in answers.values())]
    show("groups that every way answered", asked, answers, common)
    if fewest_points:
        rich = [index for index in common if len(asked[index].time_s) >= fewest_points]
        show(f"groups with the {fewest_points} known sizes that Extra-P asks for", asked, answers, rich)


if __name__ == "__main__":
    main()
