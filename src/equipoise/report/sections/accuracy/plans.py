"""How wrong plans were about published trainings."""

from typing import Final

from equipoise.decide.strategies.plan_record import PlanRecord
from equipoise.report.blocks import Block, Cell, Column, Table, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import count, listed, plural, workload_name
from equipoise.study.findings import AccuracyFindings
from equipoise.units import format_percent

KINDS: Final = {"transformer": "Transformers", "other": "Other models"}
COLUMNS: Final = (
    Column(title="Models", is_header=True),
    Column(title="Trainings", is_number=True),
    Column(title="Median", is_number=True, meaning="median error, each workload counted alike"),
    Column(title="90 % below", is_number=True, meaning="nine of ten errors were smaller"),
    Column(title="Planned / published", is_number=True, meaning="median ratio: below 1 is too optimistic"),
    Column(title="No plan", is_number=True, meaning="trainings that could not be planned"),
)


def _blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "Whole trainings that MLPerf published were planned on the same number of the same accelerators "
            "at the same batch, and ",
            strong("nothing but the samples to the target was learnt from them"),
            ". Each workload counts alike.",
        ),
        Table(
            name="plans",
            caption="Errors of planned times to train",
            columns=COLUMNS,
            rows=tuple(map(_row, findings.plans)),
        ),
        note(
            "A submission is tuned for weeks; a plan is the best of the strategies that the model knows. "
            "Plans say their interval from these errors."
        ),
    )


def _row(each: PlanRecord) -> tuple[Cell, ...]:
    names = listed([workload_name(slug) for slug in each.workloads])
    return (
        Cell(
            text=KINDS[each.kind], key=each.kind, detail=f"{plural(len(each.workloads), 'workload')}: {names}"
        ),
        Cell(text=count(each.num_trainings), key=each.num_trainings),
        Cell(text=format_percent(each.median), key=each.median),
        Cell(text=format_percent(each.p90), key=each.p90),
        Cell(text=f"{each.bias:.3g}", key=each.bias),
        Cell(text=count(each.num_unexpressed), key=each.num_unexpressed),
    )


SECTION: Final[Section[AccuracyFindings]] = Section(
    name="plans", title="Plans of published trainings", needs=("plans",), blocks=_blocks
)
