"""How often rules choose right between one accelerator and two, where both were measured.

    python benchmarks/rules.py [--write docs/experiments/0018-field-report.md]

Cases: the field report's five models and its batch sweeps (two GPUs behind a host bridge), and two emulated
hosts at 1 and 10 Gbit/s (docs/experiments/data/0011-*.csv). Right is what the measured steps say; two have to
gain 5 %. Time lost: of the choice over the better one. With --write, tables of the page are replaced.
"""

import argparse
import csv
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median

from field_report import (
    Reproduction,
    Row,
    Sensitivity,
    report,
    reproduced,
    swept_rows,
)
from judged import judged
from msgspec import Struct
from threshold import choice, said

from equipoise.diagnose.links import LEAST_GAIN
from equipoise.launch.settings import placed
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.units import SI_PREFIXES, format_percent, format_si

DATA = Path(__file__).parents[1] / "docs" / "experiments" / "data"
ALONE = "single"
MILLION, MS = SI_PREFIXES["M"], 1e3


class Case(Struct, frozen=True, kw_only=True):
    """One choice: what a step (or a training) takes on one and on two, and the speed-up predicted of two."""

    machine: str
    params: float
    one_s: float
    two_s: float
    predicted: float

    @property
    def best(self) -> str:
        """What the measurement says."""
        return "two" if self.one_s / self.two_s >= LEAST_GAIN else "one"

    def lost(self, chosen: str) -> float:
        """Time of a choice over the better one's."""
        took = {"one": self.one_s, "two": self.two_s}
        return took[chosen] / min(took.values()) - 1.0


RULES: dict[str, Callable[[Case], str]] = {
    "equipoise": lambda case: "two" if case.predicted >= LEAST_GAIN else "one",
    "threshold": lambda case: choice(case.params),
    "always one": lambda _: "one",
    "always two": lambda _: "two",
}


def report_cases(found: Reproduction) -> list[Case]:
    """The field report's models, predicted by the profile."""
    return [
        Case(
            machine="PHB pair, five models",
            params=float(row.workload.params or 0),
            one_s=each.one_s,
            two_s=each.two_s,
            predicted=row.predicted.value,
        )
        for row, each in zip(found.rows, found.report.models, strict=True)
    ]


def sweep_cases() -> list[Case]:
    """Its batch sweeps, predicted from its steps on one."""
    return [
        Case(
            machine="PHB pair, batch sweeps",
            params=row.params,
            one_s=row.one_s,
            two_s=row.two_s,
            predicted=row.one_s / ((row.low_s + row.high_s) / 2),
        )
        for row in swept_rows()
    ]


def host_cases(cells: Path, predicted: Path) -> list[Case]:
    """Two emulated hosts: medians of repetitions, and steps that `diagnose.predicted_steps` predicted."""
    steps: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    params: dict[str, float] = {}
    for row in csv.DictReader(cells.open()):
        if row["counted"] == "0":  # a disturbed repetition
            continue
        steps[row["link"], row["workload"], int(row["batch_samples"])].append(float(row["step_s"]))
        params[row["workload"]] = float(row["params"])
    found = []
    for row in csv.DictReader(predicted.open()):
        link, name, batch = row["link"], row["workload"], int(row["batch_samples"])
        one, two = steps.get((ALONE, name, batch)), steps.get((link, name, batch))
        if one and two:
            found.append(
                Case(
                    machine=f"two hosts at {link.replace('gbit', ' Gbit/s')}",
                    params=params[name],
                    one_s=median(one),
                    two_s=median(two),
                    predicted=median(one) / float(row["predicted_s"]),
                )
            )
    return found


def scores(cases: Sequence[Case]) -> list[list[str]]:
    """By machine: cases, how many are best on two; of each rule: right how often, time lost in the mean."""
    machines = [*dict.fromkeys(case.machine for case in cases), "all"]
    rows = []
    for machine in machines:
        own = [case for case in cases if machine in (case.machine, "all")]
        row = [machine, str(len(own)), str(sum(case.best == "two" for case in own))]
        for rule in RULES.values():
            right = sum(rule(case) == case.best for case in own)
            lost = fmean(case.lost(rule(case)) for case in own)
            row.append(f"{right} ({format_percent(lost)})")
        rows.append(row)
    return rows


def model_rows(rows: Sequence[Row]) -> list[list[str]]:
    """The field report's table with what is predicted."""
    return [
        [
            row.workload.title,
            _size(float(row.workload.params or 0)),
            f"{row.reported:.2f}",
            f"{row.predicted.value:.2f} ({row.predicted.low:.2f} to {row.predicted.high:.2f})",
            row.best,
            row.chosen,
            said(float(row.workload.params or 0)),
        ]
        for row in rows
    ]


def nvlink_rows(rows: Sequence[Row]) -> list[list[str]]:
    """What is predicted where the same cards are bridged; nobody measured it."""
    return [[each[0], each[1], each[3], each[5], each[6]] for each in model_rows(rows)]


def part_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Where a step on two goes, at the medians of the priors."""
    return [
        [row.workload.title, *(f"{MS * row.parts_s[name]:.1f}" for name in ("one", *PARTS))] for row in rows
    ]


PARTS = ("share", "launching", "copying", "buffers", "exposed", "waiting")


def sensitivity_rows(rows: Sequence[Sensitivity]) -> list[list[str]]:
    """By card and batch: choices that are right, the crossover, speed-ups."""
    return [
        [
            row.accelerator,
            str(row.batch),
            f"{row.num_right} of {len(row.speedups)}",
            "none" if row.crossover is None else _size(row.crossover),
            ", ".join(f"{value:.2f}" for value in row.speedups),
        ]
        for row in rows
    ]


def sweep_rows() -> list[list[str]]:
    """The report's sweeps, predicted from its own steps on one."""
    return [
        [
            _size(row.params),
            str(row.batch),
            f"{MS * row.one_s:.1f}",
            f"{MS * row.two_s:.1f}",
            f"{MS * row.low_s:.1f} to {MS * row.high_s:.1f}",
        ]
        for row in swept_rows()
    ]


def setting_rows() -> list[list[str]]:
    """The report's settings, judged for its machine."""
    known = report()
    pair = cluster(known.pair.accelerator.slug, num_accelerators=2)
    place = placed(pair, Strategy(dp=2, global_batch_samples=2))
    return [[f"`{each.name}={each.value}`", each.verdict, each.why] for each in judged(known.settings, place)]


def _size(params: float) -> str:
    return format_si(float(f"{params:.2g}"), "").strip()


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(found: Reproduction) -> dict[str, str]:
    """Every table by its name on the page."""
    every = [
        *report_cases(found),
        *sweep_cases(),
        *host_cases(DATA / "0011-cells.csv", DATA / "0011-predicted.csv"),
    ]
    heads = ["model", "parameters", "report", "predicted (90 %)", "right", "ours", "its rule"]
    return {
        "rules": table(["machine", "cases", "best on two", *RULES], scores(every)),
        "models": table(heads, model_rows(found.rows)),
        "nvlink": table([heads[0], heads[1], heads[3], heads[5], heads[6]], nvlink_rows(found.nvlink_rows)),
        "parts": table(["model", "one, ms", *PARTS], part_rows(found.rows)),
        "nvlink parts": table(["model", "one, ms", *PARTS], part_rows(found.nvlink_rows)),
        "crossovers": table(
            ["", "crossover"],
            [
                ["report", _size(found.reported_crossover or 0)],
                ["ours, its machine", _size(found.crossover or 0)],
                ["ours, the same cards on NVLink", _size(found.nvlink_crossover or 0)],
            ],
        ),
        "sensitivity": table(
            ["card", "batch", "right", "crossover", "speed-ups, small to large"],
            sensitivity_rows(found.sensitivity),
        ),
        "sweeps": table(
            ["parameters", "batch", "one, ms", "two, ms", "predicted, ms"],
            sweep_rows(),
        ),
        "settings": table(["setting", "verdict", "why"], setting_rows()),
        "statements": table(
            ["the report says", "its own figures say"],
            [[each.says, each.against] for each in found.report.statements],
        ),
    }


def write(page: Path, found: dict[str, str]) -> None:
    """Replace what lies between the marks of each table."""
    text = page.read_text()
    for name, body in found.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        text = re.sub(
            f"{re.escape(begin)}.*?{re.escape(end)}",
            lambda _, b=body, s=begin, e=end: f"{s}\n{b}\n{e}",
            text,
            flags=re.DOTALL,
        )
    page.write_text(text)


def main() -> None:
    """Print every table, and put them into a page where one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    found = tables(reproduced())
    for name, body in found.items():
        print(f"\n{name}\n{body}")
    if arguments.write:
        write(arguments.write, found)


if __name__ == "__main__":
    main()
