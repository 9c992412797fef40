"""Memory of the fullest accelerator by kind, against what an accelerator has."""

from typing import Final

from equipoise.advice.plans.planned import Option, Plan
from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Panels, code, prose, strong
from equipoise.report.charts import BarChart
from equipoise.report.section import Section
from equipoise.report.stacked import Stack
from equipoise.report.words import count, listed, printable, ratio
from equipoise.units import SI_PREFIXES, format_si

GIGA: Final = SI_PREFIXES["G"]
TITLE: Final = "Memory of the fullest accelerator, by kind"


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    plan = findings.plan
    stack = Stack(options=findings.stored, parts=findings.held, titles=option_text.KINDS)
    leanest = () if plan.leanest is None else (_too_large(plan, plan.leanest, stack),)
    return (*leanest, Panels(charts=(_chart(plan, stack),), legend="Kind"))


def _too_large(plan: Plan, leanest: Option, stack: Stack) -> Block:
    """What stands in the way, where nothing fits."""
    whole = plan.cluster.accelerator.memory_bytes
    room = "" if whole is None else f", and has {format_si(float(whole), 'B')}"
    return prose(
        "Of all strategies on ",
        option_text.hardware(leanest),
        ", this one needs the least memory: ",
        code(option_text.strategy(leanest)),
        ". Its fullest accelerator needs ",
        strong(f"{format_si(leanest.memory_bytes, 'B')}{room}"),
        f": {listed(stack.shares(0))}.",
    )


def _chart(plan: Plan, stack: Stack) -> BarChart:
    whole = plan.cluster.accelerator.memory_bytes
    room = "" if whole is None else f"; dashed: the {format_si(float(whole), 'B')} an accelerator has"
    told = f"{TITLE}, {printable(plan.workload.title)}. {stack.words()}"
    most = max(float(whole or 0), *(each.memory_bytes for each in stack.options))
    return BarChart(
        name="plan-memory",
        title=TITLE,
        subtitle=f"above each bar, its sum{room}",
        alternative=told if whole is None else f"{told} An accelerator has {format_si(float(whole), 'B')}.",
        x_title="accelerators",
        y_title="GB an accelerator",
        categories=tuple(
            f"{count(each.num_accelerators)}{' (too large)' if each is plan.leanest else ''}"
            for each in stack.options
        ),
        labels=tuple(ratio(each.memory_bytes / GIGA) for each in stack.options),
        limits=(0.0, most / GIGA),
        series=stack.series(GIGA),
        level=None if whole is None else whole / GIGA,
    )


SECTION: Final[Section[PlanFindings]] = Section(
    name="memory", title="What fills the memory", needs=("stored",), blocks=_blocks
)
