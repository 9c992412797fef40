"""Where the equilibrium lies: the curve of each accelerator, each kind of equilibrium, and what it costs."""

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from equipoise.advice.forecast.balance import RULE, Balance, Unanswered
from equipoise.economics import Bill
from equipoise.findings import Findings, WorkloadFindings
from equipoise.report.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Fold,
    Heading,
    Panels,
    Span,
    Table,
    note,
    prose,
    strong,
)
from equipoise.report.charts import Axis, Band, Chart, Mark, Note, Series
from equipoise.report.marks import accelerator_marks
from equipoise.report.section import Section
from equipoise.report.words import (
    ABSENT,
    BOUND_WORDS,
    DASH,
    accelerator_name,
    capital,
    count,
    listed,
    minutes,
    printable,
    ratio,
    sentence,
)
from equipoise.scaling.equilibrium import KINDS, Equilibrium
from equipoise.units import KWH_J, MINUTE_S, format_duration, format_percent

STOPS: Final = "where it stops paying"
STOP_MARK: Final = Mark(colour=5, symbol="star")
NEAR: Final = 1.5  # sizes closer than this factor share a label
ANSWERS: Final = frozenset({"balance", "marginal", "floor"})


def _blocks(findings: Findings) -> tuple[Block, ...]:
    marks = accelerator_marks(findings)
    intro = prose(
        "A curve through the best entries of each accelerator tells where one more stops paying. There is no "
        "one optimum: ",
        strong("balance"),
        " is the knee, ",
        strong("marginal"),
        " the last size from which doubling still gains half of ideal (1.5 times the speed), ",
        strong("floor"),
        " the last size at half of its efficiency. The smallest of the three is the answer given "
        "first. Where the data end before a point it is only known to lie beyond.",
    )
    of_workloads = (block for each in findings.workloads for block in _of_workload(each, marks))
    return (intro, *of_workloads, *_economics(findings), _definitions())


def _of_workload(workload: WorkloadFindings, marks: dict[str | None, Mark]) -> tuple[Block, ...]:
    heading = Heading(name=f"balance-{workload.workload}", text=printable(workload.name))
    told = [each for each in workload.balances.found if each.forecast.answer is not None]
    blocks: list[Block] = [heading]
    if told:
        blocks.append(Bullets(items=tuple(_answer(each) for each in told)))
        blocks.append(Panels(charts=(_chart(workload, told, marks),), legend="Accelerator"))
        blocks.append(_table(workload, told))
        blocks += [_in_words(workload, told)]
    elif not workload.balances.unanswered:
        blocks.append(prose("No accelerator was entered at two sizes or more: no curve can be drawn."))
    blocks += [_unanswered(each) for each in workload.balances.unanswered]
    return tuple(blocks)


def _answer(each: Balance) -> tuple[Span, ...]:
    """The default answer of one accelerator, in words."""
    answer = each.forecast.answer
    assert answer is not None
    words = next(text for point, text in zip(each.points, each.words, strict=True) if point is answer)
    return (
        strong(f"{accelerator_name(each.accelerator)}: {_size(answer)} ({answer.kind})"),
        f". {capital(sentence(words))}.",
    )


def _size(point: Equilibrium) -> str:
    return f"{BOUND_WORDS[point.bound]}{count(point.num_accelerators)}"


def _chart(workload: WorkloadFindings, told: Sequence[Balance], marks: dict[str | None, Mark]) -> Chart:
    name = printable(workload.name)
    series: list[Series] = []
    for each in told:
        series += _series(workload, each, marks[each.accelerator])
    answers = [each.forecast.answer for each in told]
    stops = [point for each in told for point in each.points if point.kind in ANSWERS]
    located = [point for point in stops if point.bound == "at"]
    return Chart(
        name=f"{workload.workload}-balance",
        title="Time to train, its law and its equilibria",
        subtitle=f"shaded: {format_percent(_level(told))} interval of one more entry; dotted: extrapolated",
        alternative=f"Minutes to train {name} against accelerators. "
        + " ".join(f"{accelerator_name(each.accelerator)}: {sentence(each.words[0])}." for each in told),
        x=Axis(title="accelerators", is_log=True),
        y=Axis(title="minutes", is_log=True),
        series=(*((_stops(located),) if located else ()), *series),
        notes=_notes([point for point in answers if point is not None and point.bound == "at"]),
        bands=tuple(_band(each, marks[each.accelerator]) for each in told),
    )


def _notes(answers: Sequence[Equilibrium]) -> tuple[Note, ...]:
    """The answers beside their stars; those too near to be read apart share a note."""
    notes: list[Note] = []
    for point in sorted(answers, key=lambda each: each.num_accelerators):
        x, y, text = float(point.num_accelerators), point.time_s / MINUTE_S, count(point.num_accelerators)
        if notes and x < NEAR * notes[-1].x:
            last = notes.pop()
            notes.append(Note(x=x, y=max(y, last.y), text=f"{last.text}, {text}"))
        else:
            notes.append(Note(x=x, y=y, text=text))
    return tuple(notes)


def _level(told: Sequence[Balance]) -> float:
    return float(told[0].curve["level"][0])


def _stops(located: Sequence[Equilibrium]) -> Series:
    return Series(
        name=STOPS,
        mark=STOP_MARK,
        x=tuple(float(point.num_accelerators) for point in located),
        y=tuple(point.time_s / MINUTE_S for point in located),
        hovers=tuple(
            (
                f"{point.kind}: {count(point.num_accelerators)} accelerators, {_range(point)}",
                f"{format_duration(point.time_s)}, E {ratio(point.efficiency)}",
            )
            for point in located
        ),
    )


def _series(workload: WorkloadFindings, each: Balance, mark: Mark) -> list[Series]:
    """The published points and the law, dotted where it goes beyond them."""
    name = accelerator_name(each.accelerator)
    rows = [row for row in workload.curves.iter_rows(named=True) if row["accelerator"] == each.accelerator]
    inside = each.curve.filter(~pl.col("beyond_data"))
    # The dotted part starts where the other ends.
    beyond = each.curve.slice(max(len(inside) - 1, 0))
    curves = [
        Series(
            name=name,
            mark=mark,
            x=tuple(float(size) for size in part["num_accelerators"]),
            y=tuple(float(time_s) / MINUTE_S for time_s in part["time_s"]),
            hovers=tuple(_curve_hover(name, row) for row in part.iter_rows(named=True)),
            is_curve=True,
            is_extrapolated=part is beyond,
        )
        for part in (inside, beyond)
        if len(part) > 1
    ]
    points = Series(
        name=name,
        mark=mark,
        x=tuple(float(row["num_accelerators"]) for row in rows),
        y=tuple(row["score_s"] / MINUTE_S for row in rows),
        hovers=tuple(
            (
                f"{printable(row['submitter'] or '')} / {printable(row['system'] or '')}",
                f"{count(row['num_accelerators'])} accelerators: {minutes(row['score_s'])} min",
            )
            for row in rows
        ),
    )
    return [points, *curves]


def _curve_hover(name: str, row: dict[str, float]) -> tuple[str, ...]:
    low, high = format_duration(row["low_s"]), format_duration(row["high_s"])
    return (
        f"{name}, the law at {count(row['num_accelerators'])}",
        f"{format_duration(row['time_s'])} ({low} {DASH} {high})",
    )


def _band(each: Balance, mark: Mark) -> Band:
    return Band(
        name=accelerator_name(each.accelerator),
        mark=mark,
        x=tuple(float(size) for size in each.curve["num_accelerators"]),
        low=tuple(float(time_s) / MINUTE_S for time_s in each.curve["low_s"]),
        high=tuple(float(time_s) / MINUTE_S for time_s in each.curve["high_s"]),
    )


def _table(workload: WorkloadFindings, told: Sequence[Balance]) -> Table:
    return Table(
        name=f"{workload.workload}-equilibria",
        caption=f"{printable(workload.name)}: equilibria and what they cost",
        columns=(
            Column(title="Accelerator"),
            Column(title="Kind"),
            Column(title="At", is_number=True, meaning="accelerators; below it the interval"),
            Column(title="E", is_number=True, meaning="efficiency against the smallest size"),
            Column(title="Time", is_number=True),
            Column(title="Hours", is_number=True, meaning="accelerator-hours a training"),
            Column(title="USD", is_number=True),
            Column(title="kWh", is_number=True, is_wide=True),
            Column(title="kg CO2", is_number=True, is_wide=True),
        ),
        rows=tuple(row for each in told for row in _rows(each)),
    )


def _rows(each: Balance) -> Iterator[tuple[Cell, ...]]:
    """A row a point; points that coincide, as least cost and energy do at one power, share one."""
    shown: dict[tuple[object, ...], tuple[list[str], Equilibrium, Bill]] = {}
    for point, bill in zip(each.points, each.bills, strict=True):
        place = (point.num_accelerators, point.bound, point.low, point.high)
        shown.setdefault(place, ([], point, bill))[0].append(point.kind)
    for kinds, point, bill in shown.values():
        yield _row(each, listed(kinds), point, bill)


def _row(each: Balance, kinds: str, point: Equilibrium, bill: Bill) -> tuple[Cell, ...]:
    energy_kwh = None if bill.energy_j is None else bill.energy_j / KWH_J
    answer = each.forecast.answer
    is_answer = answer is not None and answer.kind in kinds
    name = accelerator_name(each.accelerator)
    return (
        Cell(text=name, key=name),
        Cell(text=kinds, key=kinds, detail="the answer" if is_answer else None),
        Cell(text=_size(point), key=point.num_accelerators, detail=_range(point)),
        Cell(text=ratio(point.efficiency), key=point.efficiency),
        Cell(text=format_duration(point.time_s), key=point.time_s),
        Cell(text=ratio(bill.accelerator_hours), key=bill.accelerator_hours),
        Cell(text=_amount(bill.usd), key=bill.usd),
        Cell(text=_amount(energy_kwh), key=energy_kwh, detail=bill.energy_basis),
        Cell(text=_amount(bill.carbon_kg), key=bill.carbon_kg),
    )


def _amount(value: float | None) -> str:
    return ABSENT if value is None else ratio(value)


def _range(point: Equilibrium) -> str | None:
    """The interval; an end that lies outside the data is left open."""
    if point.low is None and point.high is None:
        return None
    if point.high is None:
        return f"{count(point.low)} or more"
    if point.low is None:
        return f"up to {count(point.high)}"
    return f"{count(point.low)}{DASH}{count(point.high)}"


def _in_words(workload: WorkloadFindings, told: Sequence[Balance]) -> Fold:
    """Each point as a sentence, and what the curve rests on."""
    items = tuple(
        (strong(f"{accelerator_name(each.accelerator)}, {point.kind}"), f": {sentence(words)}.")
        for each in told
        for point, words in zip(each.points, each.words, strict=True)
    )
    grounds = tuple(_ground(each) for each in told)
    return Fold(
        name=f"{workload.workload}-equilibria-words",
        title="Each point in words, and what it rests on",
        badges=(),
        blocks=(Bullets(items=items), *grounds),
        is_long=True,
    )


def _ground(each: Balance) -> Block:
    law = each.forecast.ground.law
    evidence = [
        f"{printable(one.ref)} ({count(one.num_accelerators)})" for one in each.forecast.ground.evidence
    ]
    return note(
        f"{accelerator_name(each.accelerator)}: law {law.name} ({sentence(law.source)}); it assumes that "
        f"{sentence(law.assumes)}. Heaviest evidence: {listed(evidence[:4])}."
    )


def _unanswered(each: Unanswered) -> Block:
    missing = listed([sentence(what) for what in each.missing])
    more = f" What would tell it: {missing}." if missing else ""
    return note(f"{accelerator_name(each.subject)}: not enough evidence. {sentence(each.reason)}{more}")


def _economics(findings: Findings) -> tuple[Block, ...]:
    """The rates behind the amounts, each with its source and date."""
    rates = {
        each.accelerator: each.forecast.rates
        for workload in findings.workloads
        for each in workload.balances.found
    }
    if not rates:
        return ()
    items: list[tuple[Span, ...]] = []
    for accelerator, rate in rates.items():
        name = strong(accelerator_name(accelerator))
        if rate.price is None:
            items.append((name, ": no price in prices.toml, so no amount of money."))
        else:
            price = rate.price
            amount = f"{price.usd_per_accelerator_hour:.2f} USD an accelerator-hour"
            spread = f"{price.low:.2f}{DASH}{price.high:.2f}; {sentence(price.basis)}"
            items.append((name, f": {amount} ({spread})."))
    first = next(iter(rates.values()))
    power, grid = first.system_power, first.grid
    return (
        Fold(
            name="rates",
            title="What the amounts rest on",
            badges=(),
            blocks=(
                Bullets(items=tuple(items)),
                note(
                    "Energy is measured where the entry logged its power, otherwise modelled: rated power of "
                    f"the accelerators times {power.factor:.2f} ({power.low:.2f}{DASH}{power.high:.2f}; "
                    f"{sentence(power.basis)}) times time. Carbon: {grid.kg_co2_per_kwh:.3f} kg a kWh, "
                    f"{sentence(grid.region)} ({sentence(grid.basis)})."
                ),
            ),
        ),
    )


def _definitions() -> Block:
    items: tuple[tuple[Span, ...], ...] = tuple(
        (strong(kind.name), f": {kind.definition}.") for kind in KINDS
    )
    return Fold(
        name="equilibrium-kinds",
        title="What each kind means",
        badges=(),
        blocks=(Bullets(items=(*items, (f"{RULE}.",))),),
    )


SECTION: Final[Section[Findings]] = Section(
    name="balance", title="Where the equilibrium lies", needs=("workloads",), blocks=_blocks
)
