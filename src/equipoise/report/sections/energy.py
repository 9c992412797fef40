"""Energy to train, where it was measured: joules a run and a sample against accelerators."""

from typing import Final

from equipoise.report.blocks import Block, Cell, Column, Panels, Table, prose, strong
from equipoise.report.charts import Axis, Chart, Mark, Series
from equipoise.report.entry_text import Row, hover, source
from equipoise.report.marks import workload_marks
from equipoise.report.section import Section
from equipoise.report.words import (
    ABSENT,
    accelerator_name,
    count,
    entry_name,
    listed,
    minutes,
    plural,
    printable,
)
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.units import format_si


def _blocks(findings: Findings) -> tuple[Block, ...]:
    measured = [workload for workload in findings.workloads if not workload.energy.is_empty()]
    missing = [printable(workload.name) for workload in findings.workloads if workload.energy.is_empty()]
    if not measured:
        return (
            prose(
                "No entry of these workloads logged its power, so nothing is said about energy: "
                "a figure from nominal power would be a guess."
            ),
        )
    num_rows = sum(workload.energy.height for workload in measured)
    intro = prose(
        strong(plural(num_rows, "entry", "entries")),
        " logged the power of nodes and switches while training. "
        "Energy is theirs, over the official clock, with the rules' convergence scaling.",
        f" None was measured for {listed(missing)}." if missing else "",
    )  # fmt: skip
    marks = workload_marks(findings)
    charts = (
        _chart(measured, marks, column="energy_j", quantity="joules a run"),
        _chart(measured, marks, column="energy_j_per_sample", quantity="joules a training sample"),
    )
    drawn = tuple(chart for chart in charts if sum(len(series.x) for series in chart.series) > 1)
    panels = (Panels(charts=drawn, legend="Workload"),) if drawn else ()
    return (intro, *panels, _table(measured))


def _chart(measured: list[WorkloadFindings], marks: dict[str, Mark], *, column: str, quantity: str) -> Chart:
    """One kind of energy of every workload that has any; logarithmic, for workloads differ a thousandfold."""
    points = [(workload, _points(workload, column)) for workload in measured]
    names = [printable(workload.name) for workload, rows in points if rows]
    return Chart(
        name=column.replace("_", "-"),
        title=f"{quantity[:1].upper()}{quantity[1:]}",
        subtitle="measured at nodes and switches",
        alternative=f"{quantity} of {listed(names)} against accelerators; the table below has every point.",
        x=Axis(title="accelerators", is_log=True),
        y=Axis(title=f"{quantity} (J)", is_log=True),
        series=tuple(
            Series(
                name=printable(workload.name),
                mark=marks[workload.workload],
                x=tuple(float(row["num_accelerators"]) for row in rows),
                y=tuple(float(row[column]) for row in rows),
                hovers=tuple(hover(row, f"{format_si(row[column], 'J')} ({quantity})") for row in rows),
            )
            for workload, rows in points
            if rows
        ),
    )


def _points(workload: WorkloadFindings, column: str) -> list[Row]:
    """The rows that have the energy and a place on a log axis."""
    rows = workload.energy.iter_rows(named=True)
    return [row for row in rows if row["num_accelerators"] and row[column] is not None and row[column] > 0]


def _table(measured: list[WorkloadFindings]) -> Table:
    return Table(
        name="energy-entries",
        caption="Measured energy",
        columns=(
            Column(title="Workload"),
            Column(title="System"),
            Column(title="Accelerators", is_number=True),
            Column(title="Minutes", is_number=True, is_wide=True),
            Column(title="Energy", is_number=True, meaning="joules a run"),
            Column(title="A sample", is_number=True, meaning="joules a training sample"),
            Column(title="Source", is_wide=True),
        ),
        rows=tuple(
            _row(printable(workload.name), row)
            for workload in measured
            for row in workload.energy.iter_rows(named=True)
        ),
    )


def _row(workload: str, row: Row) -> tuple[Cell, ...]:
    a_sample = row["energy_j_per_sample"]
    return (
        Cell(text=workload, key=workload),
        Cell(
            text=entry_name(row["submitter"], row["system"]),
            key=entry_name(row["submitter"], row["system"]),
            detail=accelerator_name(row["accelerator"]),
        ),
        Cell(text=count(row["num_accelerators"]), key=row["num_accelerators"]),
        Cell(text=minutes(row["score_s"]), key=row["score_s"]),
        Cell(text=format_si(row["energy_j"], "J"), key=row["energy_j"]),
        Cell(text=ABSENT if a_sample is None else format_si(a_sample, "J"), key=a_sample),
        Cell(text=source(row), key=row["source_uri"], is_code=True),
    )


SECTION: Final[Section[Findings]] = Section(
    name="energy", title="Energy to train", needs=("workloads",), blocks=_blocks
)
