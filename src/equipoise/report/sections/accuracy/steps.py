"""How wrong the performance model was about steps that its calibration had not seen."""

from typing import Final

from equipoise.advice.validation.profiles import Profile
from equipoise.report.blocks import Block, Cell, Column, Table, code, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import accelerator_name, count, listed, printable
from equipoise.study.findings import AccuracyFindings
from equipoise.units import format_percent

COLUMNS: Final = (
    Column(title="Calibration", is_header=True),
    Column(title="Accelerators"),
    Column(title="Held out", meaning="which rows were left out in turn"),
    Column(title="Measurements", is_number=True),
    Column(title="Median", is_number=True, meaning="median error"),
    Column(title="Mean", is_number=True, meaning="mean absolute percentage error"),
    Column(title="90 % below", is_number=True, meaning="nine of ten errors were smaller"),
    Column(title="In range", is_number=True, meaning="share of measurements within their interval"),
)


def _blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The performance model foretells the time of a step from sizes and rates. Each calibration was "
            "fitted to some measurements and ",
            strong("held against others, whole groups of which it had not seen"),
            ". Errors are |predicted / measured - 1|.",
        ),
        Table(
            name="steps",
            caption="Errors of predicted steps on measurements held out",
            columns=COLUMNS,
            rows=tuple(map(_row, findings.profiles)),
        ),
        note(
            "Your own rows: ",
            code("equipoise validate FILE --split leave-COLUMN-out"),
            ". Without a calibration of like software the priors speak, and are further off.",
        ),
    )


def _row(each: Profile) -> tuple[Cell, ...]:
    record = each.record
    names = listed([accelerator_name(slug) for slug in each.accelerators])
    return (
        Cell(text=printable(each.name), key=each.name, detail=printable(each.title)),
        Cell(text=names, key=names),
        Cell(text=printable(record.split), key=record.split),
        Cell(text=count(record.num_executions), key=record.num_executions),
        *(
            Cell(text=format_percent(value), key=value)
            for value in (record.median, record.mape, record.p90, record.coverage)
        ),
    )


SECTION: Final[Section[AccuracyFindings]] = Section(
    name="steps", title="Steps of the performance model", needs=("profiles",), blocks=_blocks
)
