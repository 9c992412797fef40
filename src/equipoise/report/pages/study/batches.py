"""Samples to target against batch, and measured energy to train."""

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import asdict

from equipoise.intervals import Interval
from equipoise.report.blocks import (
    Block,
    Cell,
    Panels,
    Strong,
    Table,
    bullets,
    number,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.charts import Axis, Chart, Mark, Point, Series, band_of, series_mark, series_of
from equipoise.report.format import (
    DASH,
    capital,
    count,
    energy,
    entry_name,
    listed,
    minutes,
    printable,
    ratio,
)
from equipoise.report.pages.study.balance import not_enough
from equipoise.report.pages.study.entries import entry_cell, hardware, hover, source_cell
from equipoise.scaling.convergence import BatchGrowth
from equipoise.spec.mlperf import ScoredEntry
from equipoise.study.diminishing_returns import Unanswered
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.units import format_percent, plural

HERE: Final = Mark(colour=1, symbol="circle")
ELSEWHERE: Final = Mark(colour=None, symbol="x")
LAW: Final = Mark(colour=2, symbol="square")
LAW_NAME: Final = "S(B)"
MILLION: Final = 1_000_000


def batches_blocks(findings: Findings) -> tuple[Block, ...]:
    """The law of samples to target against batch, for each workload."""
    fitted = [(each, each.batches) for each in findings.workloads if isinstance(each.batches, BatchGrowth)]
    intro = prose(
        "More accelerators usually mean a larger global batch B, and a larger batch needs more samples to "
        "reach the target: ",
        Strong("S(B) = S_min (1 + B / B_crit)"),
        " (McCandlish et al. 2018). At B_crit twice the samples of a very small batch are needed. ",
        "The law is fitted over all rounds of a workload; each round has its own offset, since targets "
        "and rules change, and a recipe used by several entries counts once.",
    )
    charts = tuple(_batches_chart(workload, growth, findings.round) for workload, growth in fitted)
    return (
        intro,
        bullets(_words(workload, growth) for workload, growth in fitted),
        Panels(charts=charts, legend="Entries"),
        _batches_table(fitted),
        *(
            not_enough(printable(each.name), each.batches)
            for each in findings.workloads
            if isinstance(each.batches, Unanswered)
        ),
    )


def _words(workload: WorkloadFindings, growth: BatchGrowth) -> str:
    batches = growth.batches
    span = f"from a batch of {count(min(batches))} to one of {count(max(batches))}"
    grown = f"{ratio(growth.growth.value)}-fold ({_range(growth.growth)})"
    return f"{printable(workload.name)}: {span} the samples grow {grown}."


def _batches_chart(workload: WorkloadFindings, growth: BatchGrowth, round_: str) -> Chart:
    rows = list(zip(growth.entries, growth.adjusted_samples.tolist(), strict=True))
    here = [(each, adjusted) for each, adjusted in rows if each.campaign == round_]
    elsewhere = [(each, adjusted) for each, adjusted in rows if each.campaign != round_]
    name = printable(workload.name)
    scale, unit = (MILLION, " (millions)") if growth.samples_min.value >= MILLION else (1.0, "")
    points: list[Point] = [
        (
            each.global_batch_samples,
            each.samples / scale,
            (
                f"{name}, the law",
                f"at a batch of {ratio(each.global_batch_samples)}",
                f"{ratio(each.samples)} samples",
            ),
        )
        for each in growth.curve
    ]
    bounds = ((each.global_batch_samples, each.low, each.high) for each in growth.curve)
    return Chart(
        name=f"{workload.workload}-batches",
        title=name,
        subtitle=f"B_crit {_value(growth.batch_critical)}; points less the offset of their round",
        alternative=f"Samples to target of {name} against global batch: S_min {_value(growth.samples_min)}, "
        f"B_crit {_value(growth.batch_critical)}, {plural(len(rows), 'entry', 'entries')}.",
        x=Axis(title="global batch (samples)", is_log=True),
        y=Axis(title=f"samples to target{unit}", is_log=True),
        series=(
            *(_batch_points(part, rows, mark, scale=scale) for part, rows, mark in (
                (printable(round_), here, HERE), ("other rounds", elsewhere, ELSEWHERE)) if rows),
            series_of(LAW_NAME, LAW, points, is_curve=True),
        ),
        bands=(band_of(LAW_NAME, LAW, bounds, scale=scale),),
    )  # fmt: skip


def _batch_points(
    name: str, rows: Sequence[tuple[ScoredEntry, float]], mark: Mark, *, scale: float
) -> Series:
    points = (
        (
            float(each.global_batch_samples or 0),
            adjusted / scale,
            (
                f"{printable(each.campaign)}: {entry_name(each.submitter, each.system)}",
                hardware(asdict(each)),
                f"batch {count(each.global_batch_samples)}, {ratio(each.samples_to_target)} samples",
            ),
        )
        for each, adjusted in rows
    )
    return series_of(name, mark, points)


def _batches_table(fitted: list[tuple[WorkloadFindings, BatchGrowth]]) -> Table:
    levels = {format_percent(growth.samples_min.level) for _, growth in fitted}
    columns = (
        words("Workload", "workload.name"),
        numbers(
            "S_min",
            lambda row: _interval(row["growth"].samples_min),
            meaning="samples needed at a very small batch",
        ),
        numbers(
            "B_crit",
            lambda row: _interval(row["growth"].batch_critical),
            meaning="the batch that needs twice S_min",
        ),
        numbers("Entries", lambda row: len(row["growth"].entries)),
        numbers("Rounds", "growth.num_rounds"),
        words("Batches", lambda row: _batches(row["growth"]), is_wide=True),
    )
    return table_of(
        "batch-laws",
        columns,
        [{"workload": workload, "growth": growth} for workload, growth in fitted],
        caption=f"Samples to target: S_min and B_crit, with {listed([*levels])} intervals",
    )


def _batches(growth: BatchGrowth) -> Cell:
    batches = growth.batches
    return Cell(text=f"{count(min(batches))}{DASH}{count(max(batches))}", key=max(batches))


def _interval(interval: Interval) -> Cell:
    """A value with its interval below. An infinite upper bound means that no growth was observed."""
    if math.isinf(interval.high):
        return Cell(text=f"at least {_rounded(interval.low)}", key=interval.low)
    return number(interval.value, _rounded, detail=_range(interval))


def _value(interval: Interval) -> str:
    if math.isinf(interval.high):
        return f"at least {_rounded(interval.low)}"
    return f"{_rounded(interval.value)} ({_range(interval)})"


def _range(interval: Interval) -> str:
    return f"{_rounded(interval.low)}{DASH}{_rounded(interval.high)}"


def _rounded(value: float) -> str:
    """A number to three significant digits, which is the precision of an estimate."""
    return ratio(float(f"{value:.3g}"))


def energy_blocks(findings: Findings) -> tuple[Block, ...]:
    """Measured energy per run and per sample."""
    measured = [workload for workload in findings.workloads if not workload.energy.is_empty()]
    missing = [printable(workload.name) for workload in findings.workloads if workload.energy.is_empty()]
    if not measured:
        return (
            prose(
                "No entry of these workloads logged its power, so there are no energy figures: "
                "a figure from rated power would be a guess."
            ),
        )
    num_rows = sum(workload.energy.height for workload in measured)
    intro = prose(
        Strong(plural(num_rows, "entry", "entries")),
        " logged the power of nodes and switches while training. "
        "Energy is that of nodes and switches over the official time, with the rules' convergence scaling.",
        f" None was measured for {listed(missing)}." if missing else "",
    )  # fmt: skip
    marks = {each.workload: series_mark(place) for place, each in enumerate(findings.workloads)}
    charts = (
        _energy_chart(measured, marks, column="energy_j", quantity="joules per run"),
        _energy_chart(measured, marks, column="energy_j_per_sample", quantity="joules per training sample"),
    )
    drawn = tuple(chart for chart in charts if sum(len(series.x) for series in chart.series) > 1)
    return (intro, Panels(charts=drawn, legend="Workload"), _energy_table(measured))


def _energy_chart(
    measured: list[WorkloadFindings], marks: dict[str, Mark], *, column: str, quantity: str
) -> Chart:
    """One kind of energy for every workload that has it; logarithmic, as workloads differ a thousandfold."""
    points = [(workload, _energy_points(workload, column, quantity)) for workload in measured]
    shown = [printable(workload.name) for workload, found in points if found]
    return Chart(
        name=column.replace("_", "-"),
        title=capital(quantity),
        subtitle="measured at nodes and switches",
        alternative=f"{quantity} of {listed(shown)} against accelerators; the table below has every point.",
        x=Axis(title="accelerators", is_log=True),
        y=Axis(title=f"{quantity} (J)", is_log=True),
        series=tuple(
            series_of(printable(workload.name), marks[workload.workload], found)
            for workload, found in points
            if found
        ),
    )


def _energy_points(workload: WorkloadFindings, column: str, quantity: str) -> list[Point]:
    return [
        (
            float(row["num_accelerators"]),
            float(row[column]),
            hover(row, f"{energy(row[column])}: {quantity}"),
        )
        for row in workload.energy.iter_rows(named=True)
        if row["num_accelerators"] and row[column] is not None and row[column] > 0
    ]


_ENERGY_COLUMNS: Final = (
    words("Workload", "name"),
    words("System", entry_cell),
    numbers("Accelerators", "num_accelerators"),
    numbers("Minutes", "score_s", minutes, is_wide=True),
    numbers("Energy", "energy_j", energy, meaning="per run"),
    numbers("Per sample", "energy_j_per_sample", energy, meaning="per training sample"),
    words("Source", source_cell, is_wide=True),
)


def _energy_table(measured: list[WorkloadFindings]) -> Table:
    rows = [
        {**row, "name": workload.name}
        for workload in measured
        for row in workload.energy.iter_rows(named=True)
    ]
    return table_of("energy-entries", _ENERGY_COLUMNS, rows, caption="Measured energy")
