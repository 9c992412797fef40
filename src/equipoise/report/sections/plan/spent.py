"""Where the time of the best strategy at each size goes, by cause."""

from typing import Final

from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Panels, Span, prose, strong
from equipoise.report.charts import BarChart
from equipoise.report.section import Section
from equipoise.report.stacked import Stack
from equipoise.report.words import count, listed, printable
from equipoise.units import MICROSECOND_S, MILLISECOND_S, format_step

UNITS: Final = (("s", 1.0), ("ms", MILLISECOND_S), ("µs", MICROSECOND_S))
TITLE: Final = "Accelerator time of one sample, by cause"


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    options = tuple(each.option for each in findings.sizes)
    stack = Stack(options=options, parts=findings.spent, titles=option_text.CAUSES)
    return (
        prose(
            "A bar is the accelerator time that one sample takes, by cause. ",
            strong("With perfect scaling all bars would be equally high"),
            ": what a bar has more than its left neighbour is what the larger size costs.",
        ),
        Panels(charts=(_chart(findings, stack),), legend="Cause"),
        prose(*_largest(findings, stack)),
    )


def _chart(findings: PlanFindings, stack: Stack) -> BarChart:
    most = max(sum(row) for row in stack.parts.amounts)
    unit, scale = next((each for each in UNITS if most >= each[1]), UNITS[-1])
    return BarChart(
        name="plan-seconds",
        title=TITLE,
        subtitle="best strategy of each size; above it, the time of its step",
        alternative=f"{TITLE}, {printable(findings.plan.workload.title)}. {stack.words()}",
        x_title="accelerators",
        y_title=f"accelerator-{unit} a sample",
        categories=tuple(count(each.num_accelerators) for each in stack.options),
        labels=tuple(format_step(each.step_s) for each in stack.options),
        limits=(0.0, most / scale),
        series=stack.series(scale),
    )


def _largest(findings: PlanFindings, stack: Stack) -> tuple[Span, ...]:
    """Where the time of the recommended size goes; of the largest where none is recommended."""
    best = findings.plan.recommended
    numbers = [each.num_accelerators for each in stack.options]
    place = numbers.index(best.num_accelerators) if best is not None else len(numbers) - 1
    return (strong(f"At {count(numbers[place])}: "), f"{listed(stack.shares(place))}.")


SECTION: Final[Section[PlanFindings]] = Section(
    name="spent", title="Where the time goes", needs=("sizes",), blocks=_blocks
)
