"""Time against the number of accelerators: the joint answer, what each witness says, results behind it."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from equipoise.advice.answer.advice import Choice, Standing
from equipoise.advice.answer.evidence import EvidenceKind, Source
from equipoise.findings import AdviceFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Bullets, Cell, Column, Panels, Table, prose, strong
from equipoise.report.charts import Axis, Band, Chart, Mark, Note, Series
from equipoise.report.option_text import hardware
from equipoise.report.section import Section
from equipoise.report.sections.advice.answer import ends, usd
from equipoise.report.words import ABSENT, DASH, accelerator_name, count, printable, sentence
from equipoise.scaling.equilibrium import words
from equipoise.units import format_duration, format_percent, format_si

JOINT: Final = "joint answer"
JOINT_MARK: Final = Mark(colour=1, symbol="circle")
TAKEN: Final = "recommended"
TAKEN_MARK: Final = Mark(colour=5, symbol="star")
STOPS: Final = "where more stop paying"
STOPS_MARK: Final = Mark(colour=2, symbol="diamond")
RESULTS: Final = "single results"
RESULTS_MARK: Final = Mark(colour=None, symbol="x")
KINDS: Final[dict[EvidenceKind, tuple[str, Mark]]] = {
    "published": ("published results say", Mark(colour=3, symbol="square")),
    "measured": ("your runs say", Mark(colour=4, symbol="triangle-up")),
    "modelled": ("the model says", Mark(colour=6, symbol="cross")),
}


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    standing = findings.advice.standing
    choices = standing.everyone
    charts = (_chart(findings, choices),) if len(choices) > 1 else ()
    return (
        prose(
            "The line joins the evidence of every kind by how wrong each was; the shaded range is where the "
            "time lies in 90 % of cases. Points are what each kind says by itself."
        ),
        *((Panels(charts=charts, legend="Shown"),) if charts else ()),
        *_points(standing),
        _table(findings),
    )


def _chart(findings: AdviceFindings, choices: Sequence[Choice]) -> Chart:
    standing = findings.advice.standing
    unit = option_text.time_unit([each.time.value for each in choices])
    x = tuple(float(each.num_accelerators) for each in choices)

    def heights(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(value / unit.seconds for value in values)

    joint = Series(
        name=JOINT,
        mark=JOINT_MARK,
        x=x,
        y=heights([each.time.value for each in choices]),
        hovers=tuple(_hover(each) for each in choices),
        is_line=True,
    )
    band = Band(
        name=JOINT,
        mark=JOINT_MARK,
        x=x,
        low=heights([each.time.low for each in choices]),
        high=heights([each.time.high for each in choices]),
    )
    best = findings.advice.recommended
    marked = [] if best is None else [_marked(best, unit.seconds)]
    located = [point for point in standing.points if point.bound == "at"]
    stops = Series(
        name=STOPS,
        mark=STOPS_MARK,
        x=tuple(float(point.num_accelerators) for point in located),
        y=heights([point.time_s for point in located]),
        hovers=tuple((f"{point.kind}: {count(point.num_accelerators)}",) for point in located),
    )
    series = (
        joint,
        *_said(choices, unit.seconds),
        *_results(choices, unit.seconds),
        stops,
        *marked,
    )
    told = [f"{format_duration(each.time.value)} at {count(each.num_accelerators)}" for each in choices]
    return Chart(
        name="advice-times",
        title="Time to train",
        subtitle="shaded: the 90 % range of the joint answer",
        alternative=f"Time to train {printable(findings.advice.title)} by accelerators: {', '.join(told)}.",
        x=Axis(title=f"{accelerator_name(standing.accelerator)}, number", is_log=True),
        y=Axis(title=unit.name, is_log=True),
        series=tuple(each for each in series if each.x),
        notes=()
        if best is None
        else (
            Note(
                x=float(best.num_accelerators),
                y=best.time.value / unit.seconds,
                text=count(best.num_accelerators),
                is_above=True,
            ),
        ),
        bands=(band,),
    )


def _marked(best: Choice, unit_s: float) -> Series:
    return Series(
        name=TAKEN,
        mark=TAKEN_MARK,
        x=(float(best.num_accelerators),),
        y=(best.time.value / unit_s,),
        hovers=(_hover(best),),
        is_main=True,
    )


def _said(choices: Sequence[Choice], unit_s: float) -> Iterator[Series]:
    """What each kind of evidence says, by itself."""
    for kind, (name, mark) in KINDS.items():
        told = [(each.num_accelerators, one) for each in choices for one in each.evidence if one.kind == kind]
        if told:
            yield Series(
                name=name,
                mark=mark,
                x=tuple(float(size) for size, _ in told),
                y=tuple(one.time.value / unit_s for _, one in told),
                hovers=tuple(
                    (
                        f"{sentence(one.name)}: {format_duration(one.time.value)} ({ends(one.time)})",
                        f"weight {format_percent(round(one.weight, 2))}",
                        sentence(one.why),
                    )
                    for _, one in told
                ),
            )


def _results(choices: Sequence[Choice], unit_s: float) -> Iterator[Series]:
    """The single results of this accelerator behind them, at their own sizes."""
    found: dict[str, Source] = {}
    for each in choices:
        for one in each.evidence:
            found |= {source.ref: source for source in one.sources if source.time_s is not None}
    told = [each for each in found.values() if each.num_accelerators is not None]
    if told:
        yield Series(
            name=RESULTS,
            mark=RESULTS_MARK,
            x=tuple(float(each.num_accelerators or 0) for each in told),
            y=tuple((each.time_s or 0.0) / unit_s for each in told),
            hovers=tuple((printable(each.ref), format_duration(each.time_s or 0.0)) for each in told),
        )


def _hover(each: Choice) -> tuple[str, ...]:
    paid = "" if each.bill.usd is None else usd(each.bill.usd)
    return (
        hardware(each),
        f"{format_duration(each.time.value)} ({ends(each.time)})",
        *((paid,) if paid else ()),
        *(f"{sentence(one.name)}: {format_duration(one.time.value)}" for one in each.evidence),
        *(
            ()
            if each.option is None
            else wrap(option_text.strategy(each.option), option_text.HOVER_CHARACTERS)
        ),
    )


def _points(standing: Standing) -> Iterator[Block]:
    """Where more stop paying, the first reason first."""
    if not standing.points:
        return
    ordered = sorted(standing.points, key=lambda each: each is not standing.answer)
    yield prose("Where more accelerators stop paying, the first reason first:")
    yield Bullets(items=tuple((strong(f"{each.kind}: "), sentence(f"{words(each)}.")) for each in ordered))


def _table(findings: AdviceFindings) -> Table:
    advice = findings.advice
    rows = []
    for standing in (advice.standing, *advice.others):
        for each in standing.everyone:
            remark = "recommended" if each is advice.recommended else None
            if each.num_accelerators in standing.beyond:
                remark = "beyond the limit"
            named = Cell(text=accelerator_name(each.accelerator), key=each.accelerator)
            rows.append((*((named,) if advice.others else ()), *_cells(each, remark)))
    return Table(
        name="advice-sizes",
        caption="Every size: the joint time, what each kind of evidence says, and what it costs",
        columns=(
            *((Column(title="Accelerator"),) if advice.others else ()),
            Column(title="Number", is_number=True, is_header=True),
            Column(title="Time", is_number=True),
            Column(title="Published", is_number=True),
            Column(title="Yours", is_number=True),
            Column(title="Model", is_number=True),
            Column(title="USD", is_number=True),
            Column(title="Energy", is_number=True, is_wide=True),
        ),
        rows=tuple(rows),
    )


def _cells(each: Choice, remark: str | None) -> Iterator[Cell]:
    said = {one.kind: one for one in each.evidence}
    low, high = format_duration(each.time.low), format_duration(each.time.high)
    yield Cell(text=count(each.num_accelerators), key=each.num_accelerators, detail=remark)
    yield Cell(text=format_duration(each.time.value), key=each.time.value, detail=f"{low} {DASH} {high}")
    for kind in KINDS:
        one = said.get(kind)
        if one is None:
            yield Cell(text=ABSENT)
        else:
            weight = f"weight {format_percent(round(one.weight, 2))}"
            yield Cell(text=format_duration(one.time.value), key=one.time.value, detail=weight)
    bill = each.bill
    yield Cell(text=ABSENT if bill.usd is None else format_si(bill.usd), key=bill.usd)
    yield Cell(text=ABSENT if bill.energy_j is None else format_si(bill.energy_j, "J"), key=bill.energy_j)


SECTION: Final[Section[AdviceFindings]] = Section(
    name="sizes", title="Time against accelerators", needs=("advice",), blocks=_blocks
)
