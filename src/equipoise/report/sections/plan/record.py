"""How wrong predictions of this kind were: steps that the calibration held out, and trainings published."""

from collections.abc import Iterator
from typing import Final

from equipoise.advice.plans.plan_record import PlanRecord
from equipoise.advice.plans.planned import Basis, Plan
from equipoise.findings import PlanFindings
from equipoise.report.blocks import Block, Cell, Column, Heading, Table, code, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, count, listed, printable, ratio, sentence, workload_name
from equipoise.units import format_duration, format_percent

TITLE: Final = "How wrong such predictions were"


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    plan = findings.plan
    return (
        prose(
            "Errors are |predicted / measured - 1|: of steps, on what the calibration held out; of published "
            "trainings, on times of which nothing but the samples to the target was fitted."
        ),
        _table(plan),
        *_seen(plan),
        *_steps(plan.basis),
        *_trainings(plan.record),
        note("Hold the model against measurements of your own: ", code("equipoise validate FILE.csv"), "."),
    )


def _table(plan: Plan) -> Table:
    basis, record = plan.basis, plan.record
    steps = (basis.num_held_out, basis.median_abs_error, basis.p90_abs_error, basis.coverage)
    trainings = (record.num_trainings, record.median, record.p90, None)
    return Table(
        name="plan-record",
        caption="Errors of predictions of like kind",
        columns=(
            Column(title="Predicted"),
            Column(title="How many", is_number=True),
            Column(title="Median error", is_number=True, meaning="half of the predictions were closer"),
            Column(title="90 % below", is_number=True, meaning="nine of ten errors were smaller"),
            Column(title="In the interval", is_number=True, meaning="of those predicted"),
        ),
        rows=(
            *((_row("time of a step", *steps),) if basis.num_held_out else ()),
            _row("time of a published training", *trainings),
        ),
    )


def _row(
    what: str, number: int, median: float | None, p90: float | None, coverage: float | None
) -> tuple[Cell, ...]:
    return (
        Cell(text=what, key=what),
        Cell(text=count(number), key=number),
        *(
            Cell(text=ABSENT) if value is None else Cell(text=format_percent(round(value, 3)), key=value)
            for value in (median, p90, coverage)
        ),
    )


def _seen(plan: Plan) -> Iterator[Block]:
    """The published training beside this very plan."""
    seen, best = plan.seen, plan.recommended
    if seen is None or best is None:
        return
    yield prose(
        strong("Published: "),
        f"{printable(seen.ref)} took {format_duration(seen.time_s)} on as many of the same accelerators, "
        "evaluation and start-up included, by its own strategy and software; this plan says "
        f"{format_duration(best.time.value)}.",
    )


def _steps(basis: Basis) -> Iterator[Block]:
    yield Heading(name="plan-record-steps", text="Steps")
    yield prose("Calibration in use: ", strong(sentence(basis.name)), f" ({sentence(basis.words)}).")
    if basis.median_abs_error is None:
        yield prose(
            "Nothing was held out for it, so no error of a step can be stated: what is not known of the "
            "parameters is all that its part of the interval tells."
        )


def _trainings(record: PlanRecord) -> Iterator[Block]:
    names = listed([workload_name(name) for name in record.workloads])
    left_out = (
        f" {count(record.num_unexpressed)} more had no plan: what they ask for is not known, or nothing fits."
        if record.num_unexpressed
        else ""
    )
    yield Heading(name="plan-record-trainings", text="Whole trainings")
    yield prose(
        f"{count(record.num_trainings)} published trainings were planned at their own size and batch "
        f"({names}), each workload counted alike; the median plan took {ratio(record.bias)} of the published "
        f"time.{left_out} The interval of a plan is at least as wide as {format_percent(record.level)} of "
        "these errors.",
    )


SECTION: Final[Section[PlanFindings]] = Section(
    name="plan-record", title=TITLE, needs=("plan",), blocks=_blocks
)
