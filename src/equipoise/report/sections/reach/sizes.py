"""What each number of accelerators does in the money and time there are."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.advice.reach import Reach, Within
from equipoise.findings import ReachFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Cell, Column, Panels, Table, prose
from equipoise.report.charts import Axis, Band, Chart, Mark, Note, Series
from equipoise.report.reach_text import unit
from equipoise.report.section import Section
from equipoise.report.words import DASH, accelerator_name, count, printable
from equipoise.units import SI_PREFIXES, format_percent, format_si

REACHED: Final = "within money and time"
REACHED_MARK: Final = Mark(colour=1, symbol="circle")
TAKEN: Final = "taken"
TAKEN_MARK: Final = Mark(colour=5, symbol="star")


def _blocks(findings: ReachFindings) -> tuple[Block, ...]:
    best = findings.reaches.best
    if not best.by_size:
        return (prose("A model's size is looked for over all numbers of accelerators at once."),)
    charts = (_chart(best, best.by_size),) if len(best.by_size) > 1 else ()
    return (
        *((Panels(charts=charts, legend="Accelerators"),) if charts else ()),
        _table(best),
    )


def _chart(best: Reach, sizes: Sequence[Within]) -> Chart:
    x = tuple(float(each.option.num_accelerators) for each in sizes)
    words = [f"{format_si(each.amount.value)} on {count(each.option.num_accelerators)}" for each in sizes]
    prefix, scale = _prefix(best.tokens.value)
    taken = next(each for each in sizes if each.option.num_accelerators == best.option.num_accelerators)

    def series(name: str, mark: Mark, shown: Sequence[Within], *, is_main: bool) -> Series:
        return Series(
            name=name,
            mark=mark,
            x=tuple(float(each.option.num_accelerators) for each in shown),
            y=tuple(each.amount.value / scale for each in shown),
            hovers=tuple(
                (f"{format_si(each.amount.value)} {unit(best)}", *option_text.hover(each.option))
                for each in shown
            ),
            is_line=not is_main,
            is_main=is_main,
        )

    return Chart(
        name="reach-sizes",
        title=f"{unit(best).capitalize()} within money and time",
        subtitle=f"shaded: the {format_percent(best.tokens.level)} range",
        alternative=f"{unit(best)} of {printable(best.workload.title)} by accelerators: {', '.join(words)}.",
        x=Axis(title=f"{accelerator_name(best.cluster.accelerator.slug)}, number", is_log=True),
        y=Axis(title=f"{prefix} {unit(best)}".strip(), is_log=True),
        series=(
            series(REACHED, REACHED_MARK, sizes, is_main=False),
            series(TAKEN, TAKEN_MARK, (taken,), is_main=True),
        ),
        notes=(
            Note(
                x=float(taken.option.num_accelerators),
                y=taken.amount.value / scale,
                text=count(taken.option.num_accelerators),
                is_above=True,
            ),
        ),
        bands=(
            Band(
                name=REACHED,
                mark=REACHED_MARK,
                x=x,
                low=tuple(each.amount.low / scale for each in sizes),
                high=tuple(each.amount.high / scale for each in sizes),
            ),
        ),
    )


def _prefix(amount: float) -> tuple[str, float]:
    """The largest SI prefix of which there is at least one."""
    fitting = ((name, size) for name, size in reversed(SI_PREFIXES.items()) if amount >= size)
    return next(fitting, ("", 1.0))


def _table(best: Reach) -> Table:
    return Table(
        name="reach-sizes",
        caption=f"Each number of accelerators: {unit(best)}, time and money of all it can do",
        columns=(
            Column(title="Number", is_number=True, is_header=True),
            Column(title=unit(best).capitalize(), is_number=True),
            Column(title="Time", is_number=True),
            Column(title="USD", is_number=True),
            Column(title="Ends at"),
        ),
        rows=tuple(tuple(_cells(best, each)) for each in best.by_size),
    )


def _cells(best: Reach, each: Within) -> Iterator[Cell]:
    option, amount = each.option, each.amount
    remark = "taken" if option.num_accelerators == best.option.num_accelerators else None
    yield Cell(text=count(option.num_accelerators), key=option.num_accelerators, detail=remark)
    yield Cell(
        text=format_si(amount.value),
        key=amount.value,
        detail=f"{format_si(amount.low)} {DASH} {format_si(amount.high)}",
    )
    yield option_text.time_cell(option)
    yield Cell(text=option_text.usd(option.bill), key=option.bill.usd)
    yield Cell(text=each.limit, key=each.limit)


SECTION: Final[Section[ReachFindings]] = Section(
    name="sizes", title="By number of accelerators", needs=("reaches",), blocks=_blocks
)
