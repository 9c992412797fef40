"""Where time and memory of the best strategy at each size go: by cause, and by kind."""

from collections.abc import Mapping, Sequence
from typing import Final

from equipoise.advice.planned import Option
from equipoise.advice.sizing import Parts
from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Heading, Panels, Span, prose, strong
from equipoise.report.charts import NUM_COLOURS, SYMBOLS, BarChart, Mark, Part
from equipoise.report.section import Section
from equipoise.report.words import count, listed, printable, ratio
from equipoise.units import MICROSECOND_S, MILLISECOND_S, SI_PREFIXES, format_percent, format_si

REST: Final = "rest"
SECOND_UNITS: Final = (("s", 1.0), ("ms", MILLISECOND_S), ("µs", MICROSECOND_S))
GIGA: Final = SI_PREFIXES["G"]
SMALL_SHARE: Final = 0.01  # of a bar: less is not worth a word


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    sizes = [each.option for each in findings.sizes]
    return (
        prose(
            "A bar is the accelerator time that one sample takes, by cause. ",
            strong("With perfect scaling all bars would be equally high"),
            ": what a bar has more than its left neighbour is what the larger size costs.",
        ),
        Panels(charts=(_seconds(findings, sizes),), legend="Cause"),
        prose(*_largest(findings, sizes)),
        Heading(name="plan-memory", text="Memory of the fullest accelerator"),
        Panels(charts=(_memory(findings, sizes),), legend="Kind"),
    )


def _seconds(findings: PlanFindings, sizes: Sequence[Option]) -> BarChart:
    totals = [sum(row) for row in findings.spent.amounts]
    unit, scale = next((each for each in SECOND_UNITS if max(totals) >= each[1]), SECOND_UNITS[-1])
    title = "Accelerator time of one sample, by cause"
    return BarChart(
        name="plan-seconds",
        title=title,
        subtitle="best strategy of each size; above it, the time of its step",
        alternative=_alternative(f"{title}, {_subject(findings)}", findings.spent, sizes, option_text.CAUSES),
        x_title="accelerators",
        y_title=f"accelerator-{unit} a sample",
        categories=tuple(count(each.num_accelerators) for each in sizes),
        labels=tuple(option_text.short_time(each.step_s) for each in sizes),
        limits=(0.0, max(totals) / scale),
        series=_parts(findings.spent, sizes, option_text.CAUSES, scale=scale),
    )


def _memory(findings: PlanFindings, sizes: Sequence[Option]) -> BarChart:
    whole = findings.plan.cluster.accelerator.memory_bytes
    room = "" if whole is None else f"; dashed: the {format_si(float(whole), 'B')} an accelerator has"
    title = "Memory, by kind"
    most = max(float(whole or 0), *(each.memory_bytes for each in sizes))
    told = _alternative(f"{title}, {_subject(findings)}", findings.held, sizes, option_text.KINDS)
    return BarChart(
        name="plan-memory",
        title=title,
        subtitle=f"best strategy of each size; above it, the sum{room}",
        alternative=told if whole is None else f"{told} An accelerator has {format_si(float(whole), 'B')}.",
        x_title="accelerators",
        y_title="GB an accelerator",
        categories=tuple(count(each.num_accelerators) for each in sizes),
        labels=tuple(ratio(each.memory_bytes / GIGA) for each in sizes),
        limits=(0.0, most / GIGA),
        series=_parts(findings.held, sizes, option_text.KINDS, scale=GIGA),
        level=None if whole is None else whole / GIGA,
    )


def _subject(findings: PlanFindings) -> str:
    return printable(findings.plan.workload.title)


def _parts(
    parts: Parts, sizes: Sequence[Option], titles: Mapping[str, str], *, scale: float
) -> tuple[Part, ...]:
    """The parts as they are stacked: heights in `scale`, shares of the bar beside them."""
    return tuple(
        Part(
            name=titles[name],
            mark=_mark(place, name),
            heights=tuple(row[place] / scale for row in parts.amounts),
            hovers=tuple(
                (option_text.hardware(option), f"{titles[name]}: {_share(row[place], row)}")
                for option, row in zip(sizes, parts.amounts, strict=True)
            ),
        )
        for place, name in enumerate(parts.names)
    )


def _mark(place: int, name: str) -> Mark:
    colour = None if name == REST or place >= NUM_COLOURS else place + 1
    return Mark(colour=colour, symbol=SYMBOLS[place % len(SYMBOLS)])


def _share(amount: float, row: Sequence[float]) -> str:
    return format_percent(round(amount / sum(row), 3))


def _shares(parts: Parts, place: int, titles: Mapping[str, str]) -> list[str]:
    """The parts of one whole that are worth a word, the largest first."""
    row = parts.amounts[place]
    pairs = sorted(zip(row, parts.names, strict=True), reverse=True)
    return [
        f"{titles[name]} {_share(amount, row)}" for amount, name in pairs if amount >= SMALL_SHARE * sum(row)
    ]


def _largest(findings: PlanFindings, sizes: Sequence[Option]) -> tuple[Span, ...]:
    """Where the time of the recommended size goes; of the largest where none is recommended."""
    best = findings.plan.recommended
    numbers = [each.num_accelerators for each in sizes]
    place = numbers.index(best.num_accelerators) if best is not None else len(sizes) - 1
    shares = _shares(findings.spent, place, option_text.CAUSES)
    return (strong(f"At {count(numbers[place])}: "), f"{listed(shares)}.")


def _alternative(what: str, parts: Parts, sizes: Sequence[Option], titles: Mapping[str, str]) -> str:
    told = [
        f"{count(each.num_accelerators)} accelerators: {', '.join(_shares(parts, place, titles))}"
        for place, each in enumerate(sizes)
    ]
    return f"{what}. {'; '.join(told)}."


SECTION: Final[Section[PlanFindings]] = Section(
    name="spent", title="Where time and memory go", needs=("sizes",), blocks=_blocks
)
