"""Where returns diminish: the curve of each accelerator, each kind of equilibrium, and what it costs."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from equipoise.calibration.curves import PredictedTime
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Cell,
    Fold,
    Heading,
    Panels,
    Span,
    Strong,
    Table,
    amount,
    bullets,
    named,
    note,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.charts import Annotation, Axis, Chart, Mark, Point, Series, band_of, series_of
from equipoise.report.format import (
    DASH,
    accelerator_name,
    capital,
    count,
    entry_name,
    listed,
    minutes,
    printable,
    ratio,
    sentence,
    watt_hours,
)
from equipoise.report.pages.study.entries import accelerator_marks
from equipoise.scaling.equilibrium import KINDS, Equilibrium, range_words, size_words
from equipoise.study.diminishing_returns import RULE, Balance, Unanswered
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.units import MINUTE_S, format_duration, format_percent

STOPS: Final = "diminishing returns"
STOP_MARK: Final = Mark(colour=5, symbol="star")
NEAR: Final = 1.5  # sizes closer than this factor share a label
ANSWERS: Final = frozenset({"balance", "marginal", "floor"})


def balance_blocks(findings: Findings) -> tuple[Block, ...]:
    """The curves and equilibria of each workload, what they cost, and what each kind means."""
    marks = accelerator_marks(findings)
    intro = prose(
        "A curve through the best entries of each accelerator shows where returns diminish. There is no "
        "one optimum: ",
        Strong("balance"),
        " is the knee, ",
        Strong("marginal"),
        " the largest size reached by steps that gain at least half of ideal (1.5 times the speed for a "
        "doubling), ",
        Strong("floor"),
        " the last size at half of its efficiency. The smallest of the three is the default answer. "
        "A point beyond the largest size with data is given as at least that size.",
    )
    of_workloads = (block for each in findings.workloads for block in _of_workload(each, marks))
    return (intro, *of_workloads, *_economics(findings), _definitions())


def _of_workload(workload: WorkloadFindings, marks: dict[str | None, Mark]) -> tuple[Block, ...]:
    found, unanswered = workload.balances.found, workload.balances.unanswered
    blocks: tuple[Block, ...] = ()
    if found:
        blocks = (
            bullets(_answer(each) for each in found),
            Panels(charts=(_chart(workload, found, marks),), legend="Accelerator"),
            _table(workload, found),
            _in_words(workload, found),
        )
    elif not unanswered:
        blocks = (prose("No accelerator was entered at two sizes or more: no curve can be drawn."),)
    heading = Heading(name=f"balance-{workload.workload}", text=printable(workload.name))
    return (heading, *blocks, *(not_enough(accelerator_name(each.subject), each) for each in unanswered))


def _answer(each: Balance) -> tuple[Span, ...]:
    answer = each.answer
    words = next(text for point, text in zip(each.equilibria, each.words, strict=True) if point is answer)
    return (
        Strong(f"{accelerator_name(each.accelerator)}: {size_words(answer)} ({answer.kind})"),
        f". {capital(sentence(words))}.",
    )


def _chart(workload: WorkloadFindings, found: Sequence[Balance], marks: dict[str | None, Mark]) -> Chart:
    name, level = printable(workload.name), format_percent(found[0].curve.predictions[0].time.level)
    series: list[Series] = []
    for each in found:
        series += _series(workload, each, marks[each.accelerator])
    stops = [point for each in found for point in each.equilibria if point.kind in ANSWERS]
    located = [point for point in stops if point.is_found]
    return Chart(
        name=f"{workload.workload}-balance",
        title="Time to train, its law and its equilibria",
        subtitle=f"shaded: {level} interval of one more entry; dotted: extrapolated",
        alternative=f"Minutes to train {name} against accelerators. "
        + " ".join(f"{accelerator_name(each.accelerator)}: {sentence(each.words[0])}." for each in found),
        x=Axis(title="accelerators", is_log=True),
        y=Axis(title="minutes", is_log=True),
        series=(*((_stops(located),) if located else ()), *series),
        notes=_notes([each.answer for each in found if each.answer.is_found]),
        bands=tuple(
            band_of(
                accelerator_name(each.accelerator),
                marks[each.accelerator],
                (
                    (float(one.num_accelerators), one.time.low, one.time.high)
                    for one in each.curve.predictions
                ),
                scale=MINUTE_S,
            )
            for each in found
        ),
    )


def _notes(answers: Sequence[Equilibrium]) -> tuple[Annotation, ...]:
    """Labels of the answers next to their stars; answers close to each other share a label."""
    notes: list[Annotation] = []
    for point in sorted(answers, key=lambda each: each.num_accelerators):
        x, y, text = float(point.num_accelerators), point.time_s / MINUTE_S, count(point.num_accelerators)
        if notes and x < NEAR * notes[-1].x:
            last = notes.pop()
            notes.append(Annotation(x=x, y=max(y, last.y), text=f"{last.text}, {text}"))
        else:
            notes.append(Annotation(x=x, y=y, text=text))
    return tuple(notes)


def _stops(located: Sequence[Equilibrium]) -> Series:
    points = (
        (
            float(point.num_accelerators),
            point.time_s / MINUTE_S,
            (
                ", ".join(
                    filter(None, (f"{point.kind}: {size_words(point)} accelerators", range_words(point)))
                ),
                f"{format_duration(point.time_s)}, E {ratio(point.efficiency)}",
            ),
        )
        for point in located
    )
    return series_of(STOPS, STOP_MARK, points)


def _series(workload: WorkloadFindings, each: Balance, mark: Mark) -> list[Series]:
    """The published points and the law, dotted beyond the points."""
    name = accelerator_name(each.accelerator)
    predictions = each.curve.predictions
    inside = [one for one in predictions if one.num_accelerators <= each.sizes[-1]]
    # The dotted part starts where the solid part ends.
    beyond = predictions[max(len(inside) - 1, 0) :]
    points: list[Point] = [
        (
            float(row["num_accelerators"]),
            row["score_s"] / MINUTE_S,
            (
                entry_name(row["submitter"], row["system"]),
                f"{count(row['num_accelerators'])} accelerators: {minutes(row['score_s'])} min",
            ),
        )
        for row in workload.curves.iter_rows(named=True)
        if row["accelerator"] == each.accelerator
    ]
    curves = [
        series_of(
            name,
            mark,
            (_curve_point(name, one) for one in part),
            is_curve=True,
            is_extrapolated=part is beyond,
        )
        for part in (inside, beyond)
        if len(part) > 1
    ]
    return [series_of(name, mark, points), *curves]


def _curve_point(name: str, each: PredictedTime) -> Point:
    value, low, high = map(format_duration, (each.time.value, each.time.low, each.time.high))
    hover = (f"{name}, the law at {count(each.num_accelerators)}", f"{value} ({low} {DASH} {high})")
    return float(each.num_accelerators), each.time.value / MINUTE_S, hover


def _kinds(row: dict[str, Any]) -> Cell:
    is_answer = row["of"].answer.kind in row["kinds"]
    return named(listed(row["kinds"]), detail="the answer" if is_answer else None)


def _at(point: Equilibrium) -> Cell:
    """The size of a point, with its interval below."""
    return Cell(text=size_words(point), key=point.num_accelerators, detail=range_words(point) or None)


_COLUMNS: Final = (
    words("Accelerator", lambda row: accelerator_name(row["of"].accelerator)),
    words("Kind", _kinds),
    numbers("At", lambda row: _at(row["point"]), meaning="accelerators; below it the interval"),
    numbers("E", "point.efficiency", ratio, meaning="efficiency against the smallest size"),
    numbers("Time", "point.time_s", format_duration),
    numbers("Hours", "bill.accelerator_hours", ratio, meaning="accelerator-hours per training"),
)
_ENERGY: Final = (
    numbers(
        "Energy",
        lambda row: amount(row["bill"].energy_j, watt_hours, ends=lambda _: row["bill"].energy_basis),
        is_wide=True,
    ),
    numbers("kg CO2", "bill.carbon_kg", ratio, is_wide=True),
)


def _table(workload: WorkloadFindings, found: Sequence[Balance]) -> Table:
    rows = [row for each in found for row in _rows(each)]
    caption = f"{printable(workload.name)}: equilibria and what they cost"
    money = numbers(amounts.currency(), "bill.usd", lambda usd: ratio(amounts.converted(usd)))
    columns = (*_COLUMNS, money, *_ENERGY)
    return table_of(f"{workload.workload}-equilibria", columns, rows, caption=caption)


def _rows(each: Balance) -> Iterable[dict[str, Any]]:
    """One row per point; coinciding points share one, e.g. least cost and least energy at constant power."""
    shown: dict[tuple[object, ...], dict[str, Any]] = {}
    for point, bill in zip(each.equilibria, each.bills, strict=True):
        place = (point.num_accelerators, point.limited_by, point.is_smallest, point.low, point.high)
        row = shown.setdefault(place, {"of": each, "point": point, "bill": bill, "kinds": []})
        row["kinds"].append(point.kind)
    return shown.values()


def _in_words(workload: WorkloadFindings, found: Sequence[Balance]) -> Fold:
    points = bullets(
        (Strong(f"{accelerator_name(each.accelerator)}, {point.kind}"), f": {sentence(words)}.")
        for each in found
        for point, words in zip(each.equilibria, each.words, strict=True)
    )
    return Fold(
        name=f"{workload.workload}-equilibria-words",
        title="Each point in words, and what it rests on",
        blocks=(points, *map(_evidence, found)),
        is_long=True,
    )


def _evidence(each: Balance) -> Block:
    law = each.curve.law
    evidence = [f"{printable(one.ref)} ({count(one.num_accelerators)})" for one in each.curve.evidence]
    return note(
        f"{accelerator_name(each.accelerator)}: law {law.name} ({sentence(law.source)}); it assumes that "
        f"{sentence(law.assumes)}. Main evidence: {listed(evidence[:4])}."
    )


def not_enough(subject: str, each: Unanswered) -> Block:
    """Why there is no answer for a subject, and what is missing."""
    missing = listed([sentence(what) for what in each.missing])
    more = f" Missing: {missing}." if missing else ""
    return note(f"{subject}: not enough evidence. {sentence(each.reason)}{more}")


def _economics(findings: Findings) -> tuple[Block, ...]:
    """The rates behind the amounts, each with its source and date."""
    rates = {
        each.accelerator: each.rates for workload in findings.workloads for each in workload.balances.found
    }
    if not rates:
        return ()
    items: list[tuple[Span, ...]] = []
    for accelerator, rate in rates.items():
        name = Strong(accelerator_name(accelerator))
        if rate.price is None:
            items.append((name, ": no price in prices.toml, so no amount of money."))
        else:
            price = rate.price
            amount = f"{amounts.rate(price.usd_per_accelerator_hour)} per accelerator-hour"
            spread = f"{amounts.prices(price.low)}{DASH}{amounts.prices(price.high)}; {sentence(price.basis)}"
            items.append((name, f": {amount} ({spread})."))
    first = next(iter(rates.values()))
    power, grid = first.system_power, first.grid
    return (
        Fold(
            name="rates",
            title="What the amounts rest on",
            blocks=(
                bullets(items),
                note(
                    "Energy is measured where the entry logged its power, otherwise modelled: rated power of "
                    f"the accelerators times {power.factor:.2f} ({power.low:.2f}{DASH}{power.high:.2f}; "
                    f"{sentence(power.basis)}) times time. Carbon: {grid.kg_co2_per_kwh:.3f} kg per kWh, "
                    f"{sentence(grid.region)} ({sentence(grid.basis)})."
                ),
            ),
        ),
    )


def _definitions() -> Block:
    kinds = ((Strong(kind.name), f": {kind.definition}.") for kind in KINDS)
    return Fold(
        name="equilibrium-kinds", title="What each kind means", blocks=(bullets((*kinds, f"{RULE}.")),)
    )
