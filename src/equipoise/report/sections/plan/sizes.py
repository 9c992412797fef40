"""Time against the number of accelerators: the curve, perfect scaling, and where one more stops paying."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.advice.plans.planned import Plan
from equipoise.advice.plans.sizing import Sized
from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Bullets, Cell, Column, Panels, Table, note, prose, strong
from equipoise.report.charts import Axis, Band, Chart, Level, Mark, Note, Series
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, BOUND_WORDS, count, listed, printable, ratio, sentence
from equipoise.scaling.equilibrium import KINDS, Equilibrium, doubling_words, words
from equipoise.units import format_duration, format_percent, format_si

FEWEST: Final = 2
BEST: Final = "best strategy"
BEST_MARK: Final = Mark(colour=1, symbol="circle")
BEYOND: Final = "beyond what was asked"
BEYOND_MARK: Final = Mark(colour=None, symbol="circle")
IDEAL: Final = "perfect scaling"
IDEAL_MARK: Final = Mark(colour=None, symbol="cross")
TAKEN: Final = "recommended"
TAKEN_MARK: Final = Mark(colour=5, symbol="star")
SEEN: Final = "published training"
SEEN_MARK: Final = Mark(colour=3, symbol="square")
STOPS: Final = "where more stop paying"
STOPS_MARK: Final = Mark(colour=2, symbol="diamond")


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    if len(findings.sizes) < FEWEST:
        return (prose("Only one size has a strategy that fits: there is no curve to draw."), _table(findings))
    return (
        prose(
            "Each point is the best strategy on that many accelerators; perfect scaling starts at the "
            "smallest. "
            "Sizes beyond those asked for were tried to see what more would do."
        ),
        Panels(charts=(_times(findings), _efficiencies(findings)), legend="Shown"),
        *_points(findings.plan),
        _table(findings),
        *((_definitions(),) if findings.plan.points else ()),
    )


def _times(findings: PlanFindings) -> Chart:
    sizes = findings.sizes
    unit = option_text.time_unit([each.option.time.value for each in sizes])

    def scaled(times_s: Sequence[float]) -> tuple[float, ...]:
        return tuple(time_s / unit.seconds for time_s in times_s)

    ideal = Series(
        name=IDEAL,
        mark=IDEAL_MARK,
        x=_x(sizes),
        y=scaled([each.ideal_s for each in sizes]),
        hovers=tuple((f"{IDEAL}: {format_duration(each.ideal_s)}",) for each in sizes),
        is_curve=True,
        is_extrapolated=True,
    )
    band = Band(
        name=BEST,
        mark=BEST_MARK,
        x=_x(sizes),
        low=scaled([each.option.time.low for each in sizes]),
        high=scaled([each.option.time.high for each in sizes]),
    )
    located = _located(findings.plan)
    heights = scaled([each.option.time.value for each in sizes])
    series = _series(findings, heights, located, scaled([point.time_s for point in located]))
    level = format_percent(sizes[0].option.time.level)
    return Chart(
        name="plan-times",
        title="Time to train",
        subtitle=f"shaded: its {level} interval; dotted: {IDEAL}",
        alternative=_alternative(findings),
        x=Axis(title="accelerators", is_log=True),
        y=Axis(title=unit.name, is_log=True),
        series=(ideal, *series, *_seen(findings.plan, unit)),
        notes=_notes(findings, heights),
        bands=(band,),
    )


def _seen(plan: Plan, unit: option_text.TimeUnit) -> tuple[Series, ...]:
    """What was published on as many of the same accelerators as are recommended."""
    seen = plan.seen
    if seen is None:
        return ()
    hover = (printable(seen.ref), f"{format_duration(seen.time_s)}, evaluation and start-up included")
    return (
        Series(
            name=SEEN,
            mark=SEEN_MARK,
            x=(float(seen.num_accelerators),),
            y=(seen.time_s / unit.seconds,),
            hovers=(hover,),
        ),
    )


def _efficiencies(findings: PlanFindings) -> Chart:
    sizes = findings.sizes
    located = _located(findings.plan)
    heights = tuple(each.efficiency for each in sizes)
    told = [f"{ratio(each.efficiency)} at {count(each.option.num_accelerators)}" for each in sizes]
    return Chart(
        name="plan-efficiencies",
        title="Efficiency",
        subtitle=f"what an accelerator does, against one of {count(sizes[0].option.num_accelerators)}",
        alternative=f"Efficiency against accelerators: {', '.join(told)}.",
        x=Axis(title="accelerators", is_log=True),
        y=Axis(title="efficiency", starts_at_zero=True),
        series=_series(findings, heights, located, tuple(point.efficiency for point in located)),
        level=Level(y=1.0, text=IDEAL),
    )


def _x(sizes: Sequence[Sized]) -> tuple[float, ...]:
    return tuple(float(each.option.num_accelerators) for each in sizes)


def _located(plan: Plan) -> list[Equilibrium]:
    """The equilibria that lie within the sizes tried."""
    return [point for point in plan.points if point.bound == "at"]


def _is_taken(findings: PlanFindings, each: Sized) -> bool:
    best = findings.plan.recommended
    return best is not None and each.option.num_accelerators == best.num_accelerators


def _series(
    findings: PlanFindings,
    heights: Sequence[float],
    located: Sequence[Equilibrium],
    stop_heights: Sequence[float],
) -> tuple[Series, ...]:
    """The best of each size, joined; over it, which are beyond what was asked, the stops and the one to take.

    heights: (n_sizes,) of findings.sizes. stop_heights: (n_located,).
    """

    def marked(name: str, mark: Mark, wanted: Sequence[bool]) -> Series:
        kept = [place for place, is_wanted in enumerate(wanted) if is_wanted]
        return Series(
            name=name,
            mark=mark,
            x=tuple(_x(findings.sizes)[place] for place in kept),
            y=tuple(heights[place] for place in kept),
            hovers=tuple(_hover(findings.sizes[place]) for place in kept),
            is_line=name == BEST,
            is_main=name == TAKEN,
        )

    stops = Series(
        name=STOPS,
        mark=STOPS_MARK,
        x=tuple(float(point.num_accelerators) for point in located),
        y=tuple(stop_heights),
        hovers=tuple(_stop_hover(point) for point in located),
    )
    every = (
        marked(BEST, BEST_MARK, [True] * len(heights)),
        marked(BEYOND, BEYOND_MARK, [not each.is_asked for each in findings.sizes]),
        stops,
        marked(TAKEN, TAKEN_MARK, [_is_taken(findings, each) for each in findings.sizes]),
    )
    return tuple(each for each in every if each.x)


def _notes(findings: PlanFindings, heights: Sequence[float]) -> tuple[Note, ...]:
    """The size to take, above its star."""
    return tuple(
        Note(x=x, y=height, text=count(x), is_above=True)
        for x, height, each in zip(_x(findings.sizes), heights, findings.sizes, strict=True)
        if _is_taken(findings, each)
    )


def _alternative(findings: PlanFindings) -> str:
    times = [
        f"{format_duration(each.option.time.value)} at {count(each.option.num_accelerators)}"
        for each in findings.sizes
    ]
    answer = findings.plan.answer
    stop = "" if answer is None else f" Where more stop paying: {sentence(words(answer))}."
    title = printable(findings.plan.workload.title)
    return f"Time to train {title} against accelerators: {', '.join(times)}.{stop}"


def _hover(each: Sized) -> tuple[str, ...]:
    smallest = count(each.reference.num_accelerators)
    return option_text.hover(
        each.option, f"efficiency {ratio(each.efficiency)} against {smallest} accelerators"
    )


def _stop_hover(point: Equilibrium) -> tuple[str, ...]:
    return (
        f"{point.kind}: {count(point.num_accelerators)} accelerators, {_range(point)}",
        f"{format_duration(point.time_s)}, efficiency {ratio(point.efficiency)}",
    )


def _range(point: Equilibrium) -> str:
    low, high = (ABSENT if size is None else count(size) for size in (point.low, point.high))
    return f"{low} to {high} ({format_percent(point.level)})"


def _points(plan: Plan) -> tuple[Block, ...]:
    """Where more stop paying; kinds that lie at one place share a line."""
    places: dict[tuple[int, str], list[Equilibrium]] = {}
    for point in sorted(plan.points, key=lambda each: each is not plan.answer):
        places.setdefault((point.num_accelerators, point.bound), []).append(point)
    if not places:
        return (note("Too few sizes could be tried to tell where more accelerators stop paying."),)
    items = tuple(
        (
            strong(
                f"{BOUND_WORDS[bound]}{count(size)} accelerators ({listed([each.kind for each in group])})"
            ),
            f": {_place(group[0])}{doubling_words(group[0])}.",
        )
        for (size, bound), group in places.items()
    )
    return (prose("Where more accelerators stop paying, the first reason first:"), Bullets(items=items))


def _place(point: Equilibrium) -> str:
    """How surely the point lies there."""
    return f"{_range(point)}; " if point.bound == "at" else ""


def _definitions() -> Block:
    told = "; ".join(f"{kind.name}: {kind.definition}" for kind in KINDS)
    return note(f"{told}.")


def _table(findings: PlanFindings) -> Table:
    return Table(
        name="plan-sizes",
        caption="The best strategy at each size",
        columns=(
            Column(
                title="Accelerators",
                is_number=True,
                is_header=True,
                meaning="and whether they were asked for",
            ),
            Column(title="Time", is_number=True, meaning="below it the interval"),
            Column(title="Efficiency", is_number=True, meaning="against the smallest size"),
            Column(title="Of peak", is_number=True, meaning="FLOP of the model over those of the peak"),
            Column(title="USD", is_number=True),
            Column(title="Energy", is_number=True),
            Column(title="Batch", is_number=True, meaning="samples a step"),
            Column(title="Strategy", is_wide=True),
        ),
        rows=tuple(_rows(findings)),
    )


def _rows(findings: PlanFindings) -> Iterator[tuple[Cell, ...]]:
    for each in findings.sizes:
        option, bill = each.option, each.option.bill
        remark = TAKEN if _is_taken(findings, each) else None if each.is_asked else "not asked"
        share = option.flop_share
        yield (
            Cell(text=count(option.num_accelerators), key=option.num_accelerators, detail=remark),
            option_text.time_cell(option),
            Cell(text=ratio(each.efficiency), key=each.efficiency),
            Cell(text=ABSENT if share is None else format_percent(round(share, 3)), key=share),
            Cell(text=ABSENT if bill.usd is None else format_si(bill.usd), key=bill.usd),
            Cell(text=option_text.energy(bill), key=bill.energy_j),
            Cell(text=count(option.strategy.global_batch_samples), key=option.strategy.global_batch_samples),
            option_text.strategy_cell(option),
        )


SECTION: Final[Section[PlanFindings]] = Section(
    name="sizes", title="Time against accelerators", needs=("sizes",), blocks=_blocks
)
