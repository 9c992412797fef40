"""The tables and the figure of docs/experiments/0011-two-hosts.md, from what two_hosts.py measured.

    python experiments/two_hosts_page.py [--out DIR] [--held-out DIR]

Where DIR holds measurements, writes 0011-cells.csv and 0011-predicted.csv of docs/experiments/data; tables
and figure are of these two files, which the repository keeps.
"""

import argparse
import csv
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, get_type_hints

from growing import num_params
from msgspec import Struct, to_builtins
from predicted_steps import compared
from two_hosts import IMAGE_BATCH, PARTS, RATES, SWEPT_BATCHES, SWEPT_WIDTHS, TABLE_BATCH, undisturbed
from two_hosts_figure import Line, svg

from equipoise.bench.phases import EXPOSED, OVERLAPPED
from equipoise.bench.phases import PARTS as PHASES
from equipoise.bench.summary import timed_run
from equipoise.bench.training import ZOO
from equipoise.bench.trial import Store
from equipoise.stats import ratio_interval

DOCS = Path(__file__).parents[1] / "docs" / "experiments"
PAGE = DOCS / "0011-two-hosts.md"
TRIALS, PREDICTED = DOCS / "data" / "0011-cells.csv", DOCS / "data" / "0011-predicted.csv"
HELD_OUT_TRIALS = DOCS / "data" / "0012-cells.csv"
FIGURE = DOCS / "data" / "0011-two-hosts.svg"
LEVEL = 0.9
NUM_DRAWS = 2000
# A crossover that so many draws do not have is not certain to be there.
FEWEST_WITH = 0.95
ALONE = "single"
MLP, IMAGES = "growing:mlp_", "growing:image_"
FIELD_REPORT = ((1.2e6, 0.66), (3.5e6, 0.80), (25e6, 1.18), (60e6, 1.60), (307e6, 1.71))
MS = 1e3


class Timed(Struct, frozen=True, kw_only=True):
    """One repetition of one configuration; link `single`: one device."""

    part: str
    link: str
    workload: str
    params: int
    batch_samples: int
    repetition: int
    num_warm_up: int
    steady: int
    counted: int
    step_s: float
    input_s: float
    forward_s: float
    backward_s: float
    communication_exposed_s: float
    optimizer_s: float
    rest_s: float
    communication_overlapped_s: float


class Predicted(Struct, frozen=True, kw_only=True):
    """One two-device step that was predicted from one device and the link."""

    link: str
    part: str
    workload: str
    params: int
    batch_samples: int
    predicted_s: float


Key = tuple[str, str, int]  # link, workload, global batch
Table = Mapping[Key, Sequence[Timed]]
Points = list[tuple[int, float]]  # parameters, speedup


def params_of(workload: str) -> int:
    """Weights and biases of a workload."""
    if workload.startswith("growing:"):
        return num_params(int(workload.rpartition("_")[2]))
    return next(each.params for each in ZOO if each.name == workload)


def measured(out: Path) -> list[Timed]:
    """Every repetition that was timed, in order."""
    rows = []
    for part in PARTS:
        counted = undisturbed(out, part) if (out / part).exists() else ()
        for link in (ALONE, *RATES):
            folder = out / part / link
            for one in Store(folder).finished() if folder.exists() else ():
                run = timed_run(one)
                if run is None:
                    print(f"not timed: {part} {link} {one.trial.trial_id}: {one.reason}")
                    continue
                phases = {
                    f"{name}_s": run.shares.get(name, 0.0) * run.step_s for name in (*PHASES, OVERLAPPED)
                }
                rows.append(
                    Timed(
                        part=part,
                        link=link,
                        workload=one.trial.workload,
                        params=params_of(one.trial.workload),
                        batch_samples=one.trial.batch_samples,
                        repetition=one.trial.repetition,
                        num_warm_up=run.num_warm_up or 0,
                        steady=int(run.is_steady),
                        counted=int(one.trial.repetition in counted),
                        step_s=run.step_s,
                        **phases,
                    )
                )
    return sorted(rows, key=lambda row: (row.part, row.link, row.params, row.batch_samples, row.repetition))


def predicted_rows(out: Path) -> list[Predicted]:
    """What advice.predicted_steps says of every two-device step that was measured."""
    return [
        Predicted(**{name: getattr(row, name, row.rate) for name in Predicted.__struct_fields__})
        for row, _, _ in compared(out, list(PARTS))
        if row.method == "ddp"
    ]


def kept(path: Path, kind: type[Any], rows: Iterable[Any]) -> list[Any]:
    """The rows, written to a file of the repository; those in it where there are no new ones."""
    hints = get_type_hints(kind)
    written = [
        {
            name: f"{value:.6g}" if isinstance(value, float) else value
            for name, value in to_builtins(row).items()
        }
        for row in rows
    ]
    if written:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(hints), lineterminator="\n")
            table.writeheader()
            table.writerows(written)
    with path.open(newline="") as file:
        return [
            kind(**{name: hints[name](text) for name, text in row.items()}) for row in csv.DictReader(file)
        ]


def by_key(rows: Iterable[Timed]) -> Table:
    """The repetitions of every configuration that count; one measured in two parts is one."""
    found = defaultdict(list)
    for row in rows:
        if row.counted:
            found[row.link, row.workload, row.batch_samples].append(row)
    return dict(found)


def step_s(rows: Sequence[Timed]) -> float:
    """The median over repetitions."""
    return median(row.step_s for row in rows)


def ratio(table: Table, link: str, workload: str, batch: int) -> str:
    """Speedup over one device with its interval."""
    one, two = ([row.step_s for row in table[where, workload, batch]] for where in (ALONE, link))
    if min(len(one), len(two)) < 2:  # noqa: PLR2004 - one value has no spread
        return f"{median(one) / median(two):.2f} (once)"
    found = ratio_interval(one, two, level=LEVEL)
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})"


def sized(table: Table, batch: int, kind: str = MLP) -> list[str]:
    """The workloads of a family that devices trained at a batch, alone and over both links, by size."""
    trained = [{name for at, name, of in table if (at, of) == (link, batch)} for link in (ALONE, *RATES)]
    found = {name for name in set.intersection(*trained) if name.startswith(kind)}
    return sorted(found, key=params_of)


def milliseconds(seconds: float) -> str:
    """With three digits, or all before the point."""
    return f"{seconds * MS:.3g}" if seconds < 1 else f"{seconds * MS:,.0f}"


def speedups(table: Table, asked: Iterable[tuple[str, int]], *, with_batch: bool) -> str:
    """Steps and speedups of workloads at batches."""
    lines = [
        f"| model | parameters |{' batch |' * with_batch} one, ms |"
        + "".join(f" two at {rate}, ms | speedup (90 %) |" for rate in RATES),
        "|---" * (3 + with_batch + 2 * len(RATES)) + "|",
    ]
    for workload, batch in asked:
        trials = [workload.removeprefix("growing:"), f"{params_of(workload) / 1e6:.3g} M"]
        trials += [str(batch)] * with_batch
        trials.append(milliseconds(step_s(table[ALONE, workload, batch])))
        for rate in RATES:
            trials += [
                milliseconds(step_s(table[rate, workload, batch])),
                ratio(table, rate, workload, batch),
            ]
        lines.append(f"| {' | '.join(trials)} |")
    return "\n".join(lines)


def batches(table: Table, workloads: Sequence[str], swept: Sequence[int]) -> str:
    """Samples a second and efficiency by batch."""
    lines = [
        "| parameters | batch | one, samples/s |"
        + "".join(f" two at {rate} | efficiency |" for rate in RATES),
        "|---" * (3 + 2 * len(RATES)) + "|",
    ]
    for workload in workloads:
        for batch in swept:
            alone = batch / step_s(table[ALONE, workload, batch])
            trials = [f"{params_of(workload) / 1e6:.3g} M", str(batch), f"{alone:,.0f}"]
            for rate in RATES:
                both = batch / step_s(table[rate, workload, batch])
                trials += [f"{both:,.0f}", f"{both / alone / 2:.0%}"]
            lines.append(f"| {' | '.join(trials)} |")
    return "\n".join(lines)


def phases(table: Table, asked: Iterable[tuple[str, int]]) -> str:
    """Where the steps of two devices go, in milliseconds; parts sum to the step."""
    lines = [
        (
            "| model | batch | link | input | forward | backward | exposed communication | optimizer | rest |"
            " step | exposed share | overlapped besides |"
        ),
        "|---" * 12 + "|",
    ]
    for workload, batch in asked:
        for link in (ALONE, *RATES):
            rows = table[link, workload, batch]
            whole = step_s(rows)
            shares = [median(getattr(row, f"{name}_s") / row.step_s for row in rows) for name in PHASES]
            parts = {name: share / sum(shares) * whole for name, share in zip(PHASES, shares, strict=True)}
            overlapped = median(row.communication_overlapped_s for row in rows)
            trials = [workload.removeprefix("growing:"), str(batch), "one device" if link == ALONE else link]
            trials += [f"{parts[name] * MS:.2f}" for name in PHASES]
            trials += [f"{whole * MS:.2f}", f"{parts[EXPOSED] / whole:.0%}", f"{overlapped * MS:.2f}"]
            lines.append(f"| {' | '.join(trials)} |")
    return "\n".join(lines)


def crossings(points: Sequence[tuple[int, float]]) -> list[tuple[float, bool]]:
    """Parameters at which the speedup passes 1, and whether upward: lines between points on logarithms."""
    found = []
    for (size, speedup), (later_size, later) in pairwise(points):
        if (speedup < 1) != (later < 1):
            share = log(speedup) / (log(speedup) - log(later))
            found.append((exp(log(size) + share * log(later_size / size)), later >= 1))
    return found


def curve(
    table: Table, link: str, batch: int, middle: Callable[[Sequence[Timed]], float], kind: str = MLP
) -> list[tuple[int, float]]:
    """Speedup by parameters of a family at a batch."""
    return [
        (params_of(name), middle(table[ALONE, name, batch]) / middle(table[link, name, batch]))
        for name in sized(table, batch, kind)
    ]


def without(points: Points) -> str:
    """What is to say where no speedup passes 1."""
    low, high = min(each for _, each in points), max(each for _, each in points)
    where = f"below {points[0][0] / 1e6:.3g} M" if low >= 1 else "none"
    return f"{where}: {low:.2f} to {high:.2f} at all sizes"


def crossover(table: Table, link: str, batch: int, kind: str) -> tuple[float | None, str]:
    """The lowest upward crossing, and in words with its interval over draws of repetitions."""
    points = curve(table, link, batch, step_s, kind)
    up = [size for size, is_up in crossings(points) if is_up]
    if not up:
        return None, without(points)
    rng = random.Random(0)  # noqa: S311 - draws, no secret

    def drawn(rows: Sequence[Timed]) -> float:
        return median(rng.choice(rows).step_s for _ in rows)

    sizes = []
    for _ in range(NUM_DRAWS):
        also = [size for size, is_up in crossings(curve(table, link, batch, drawn, kind)) if is_up]
        if also:
            sizes.append(min(also, key=lambda size: abs(log(size / up[0]))))
    sizes.sort()
    words = f"{up[0] / 1e6:.3g} M"
    if len(sizes) < FEWEST_WITH * NUM_DRAWS:
        return up[0], f"{words}, not in {1 - len(sizes) / NUM_DRAWS:.0%} of draws"
    low, high = (sizes[round(level * (len(sizes) - 1))] for level in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return up[0], f"{words} ({low / 1e6:.3g}-{high / 1e6:.3g})"


def crossovers(table: Table, said: Mapping[Key, float], asked: Sequence[tuple[str, int]]) -> str:
    """Crossovers measured, and predicted from the link and one device, by family and batch."""
    lines = [
        "| family | batch | link | measured (90 %) | predicted | off by |",
        "|---|---|---|---|---|---|",
    ]
    for kind, batch in asked:
        for rate in RATES:
            found, words = crossover(table, rate, batch, kind)
            points = [
                (params_of(name), step_s(table[ALONE, name, batch]) / said[rate, name, batch])
                for name in sized(table, batch, kind)
                if (rate, name, batch) in said
            ]
            up = [size for size, is_up in crossings(points) if is_up]
            if up:
                predicted = f"{up[0] / 1e6:.3g} M"
            elif points:
                predicted = without(points)
            else:
                predicted = "not predicted"
            off = f"{up[0] / found - 1:+.0%}" if found and up else ""
            family = kind.removeprefix("growing:").rstrip("_")
            lines.append(f"| {family} | {batch} | {rate} | {words} | {predicted} | {off} |")
    return "\n".join(lines)


def figure(table: Table, asked: Sequence[int]) -> str:
    """Speedup by parameters, ours and the field report's."""
    lines = [
        Line(name=f"batch {batch}, {rate}", points=tuple(curve(table, rate, batch, step_s)))
        for batch in asked
        for rate in RATES
    ]
    lines += [
        Line(name=f"images, {rate}", points=tuple(curve(table, rate, IMAGE_BATCH, step_s, IMAGES)))
        for rate in RATES
    ]
    lines.append(Line(name="field report", points=FIELD_REPORT, is_dashed=True))
    return svg(lines, x="parameters", y="speedup of two over one")


def with_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """The page with what stands between each block's marks replaced."""
    for name, text in blocks.items():
        marks = f"<!-- {name} -->", f"<!-- end {name} -->"
        found = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
        whole = f"{marks[0]}\n{text}\n{marks[1]}"
        page, num_replaced = found.subn(lambda _, whole=whole: whole, page)
        if not num_replaced:
            print(f"{PAGE.name} has no {marks[0]}:\n{text}")
    return page


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/experiments/two-hosts"))
    parser.add_argument("--held-out", type=Path, help="a folder of two_hosts.py for 0012-cells.csv alone")
    chosen = parser.parse_args()
    if chosen.held_out:
        kept(HELD_OUT_TRIALS, Timed, measured(chosen.held_out))
        return
    rows = kept(TRIALS, Timed, measured(chosen.out))
    said = kept(PREDICTED, Predicted, predicted_rows(chosen.out))
    table = by_key(rows)
    family = by_key(row for row in rows if row.part in {"family", "images"})
    two = [
        key
        for key in table
        if key[0] == RATES[0] and all((link, *key[1:]) in table for link in (ALONE, *RATES))
    ]
    asked = sorted({batch for _, name, batch in two if len(sized(family, batch)) > 2})  # noqa: PLR2004 - a curve
    zoo = [(each.name, batch) for each in ZOO for _, name, batch in two if name == each.name]
    swept = [
        name for name in (f"growing:mlp_{width}" for width in SWEPT_WIDTHS) if name in {key[1] for key in two}
    ]
    blocks = {
        f"speedups {batch}": speedups(family, ((n, batch) for n in sized(family, batch)), with_batch=False)
        for batch in asked
    }
    blocks["speedups images"] = speedups(
        family, ((n, IMAGE_BATCH) for n in sized(family, IMAGE_BATCH, IMAGES)), with_batch=False
    )
    if zoo:
        blocks["zoo"] = speedups(table, zoo, with_batch=True)
    shared = [batch for batch in SWEPT_BATCHES if all((RATES[0], name, batch) in two for name in swept)]
    blocks["batches"] = batches(family, swept, shared)
    blocks["phases"] = phases(table, [*((name, TABLE_BATCH) for name in sized(family, TABLE_BATCH)), *zoo])
    blocks["crossovers"] = crossovers(
        family,
        {(each.link, each.workload, each.batch_samples): each.predicted_s for each in said},
        [*((MLP, batch) for batch in asked), (IMAGES, IMAGE_BATCH)],
    )
    FIGURE.write_text(figure(family, asked))
    PAGE.write_text(with_blocks(PAGE.read_text(), blocks))


if __name__ == "__main__":
    main()
