"""All systems and sizes: charts, the estimates of each, and what would change the answer."""

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import Final

from msgspec.structs import replace

from equipoise.calibration import EstimatorName
from equipoise.decide.answer import Answer, Candidate, Flip
from equipoise.decide.evidence import Group
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Cell,
    Fold,
    Heading,
    Panels,
    Strong,
    Table,
    bullets,
    named,
    names,
    number,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.charts import (
    Annotation,
    Axis,
    Chart,
    Mark,
    Series,
    line_with_band,
    series_mark,
    series_of,
)
from equipoise.report.format import STAR, capital, count, listed, printable, sentence
from equipoise.report.pages.answer.candidates import (
    after_queue,
    alternative_spans,
    chip_of,
    flip_input,
    group_title,
    groups,
    lead_columns,
    no_flip_words,
    offer_title,
    sizes_table,
    takes,
    title_of,
)
from equipoise.report.pages.answer.costs import hour_digits
from equipoise.scaling.equilibrium import point_words
from equipoise.spec.hardware import TERM_WORDS
from equipoise.stats import by_key
from equipoise.units import DAY_S, HOUR_S, MINUTE_S, format_percent, plural, whole_percent

_MOST_GROUPS: Final = 6
_HOVER_CHARACTERS: Final = 52
# The chart omits sizes slower than this many times the slowest offer; the table has them.
_SLOWEST_SHOWN: Final = 4.0
# A limit this many times below every point is only mentioned in words: drawn, it would squeeze the points.
_FARTHEST_LIMIT: Final = 100.0
_CURVE_POINTS: Final = 24
_UNITS: Final = (("days", DAY_S), ("hours", HOUR_S), ("minutes", MINUTE_S), ("seconds", 1.0))
_TAKEN_MARK: Final = Mark(colour=5, symbol="star")
_RESULT_MARK: Final = Mark(colour=None, symbol="x")


def size_title(members: Sequence[Candidate]) -> str:
    """The title of an axis of sizes, with the name of the system if there is only one."""
    names = {chip_of(each.title) for each in members}
    return f"number of {names.pop()}" if len(names) == 1 else "number of accelerators of each system"


def time_unit(times_s: Sequence[float]) -> tuple[str, float]:
    """The unit for the times of an axis and its seconds: the largest in which the median is at least two."""
    middle = sorted(times_s)[len(times_s) // 2]
    return next((each for each in _UNITS if middle >= 2.0 * each[1]), _UNITS[-1])


def shown_groups(answer: Answer) -> list[Group]:
    """The best systems with their terms, followed by systems on which nothing runs."""
    offered: list[Group] = [each.group for each in answer.offers]
    missing: list[Group] = [
        (each.name, next(iter(each.rates), "on_demand"))
        for each in answer.systems
        if each.name not in {system for system, _ in offered}
    ]
    return [*offered, *missing][:_MOST_GROUPS]


def time_chart(name: str, known: Sequence[Candidate], best: Candidate | None = None) -> Chart:
    """Time against size for every system, with intervals, and a star at the recommended candidate."""
    times = [each.time_s for each in known if each.time_s is not None]
    unit, scale = time_unit([each.value for each in times])
    with_terms = len({each.terms for each in known}) > 1
    lines = [
        line_with_band(
            chip_of(members[0].title) + (f", {TERM_WORDS[members[0].terms]}" if with_terms else ""),
            series_mark(place),
            [
                (float(each.num_accelerators), each.time_s, _hover(each))
                for each in members
                if each.time_s is not None
            ],
            scale=scale,
        )
        for place, members in enumerate(groups(known).values())
    ]
    results = tuple(_results(known, scale))
    crosses = "; crosses: published results" if results else ""
    stars, notes = [], []
    if best is not None and best.time_s is not None:
        at = (float(best.num_accelerators), best.time_s.value / scale)
        stars = [star(best, *at)]
        notes = [Annotation(x=at[0], y=at[1], text=count(best.num_accelerators), is_above=True)]
    words = [f"{title_of(each)} {amounts.duration(each.time_s.value)}" for each in known if each.time_s]
    return Chart(
        name=name,
        title="Time against size",
        subtitle=f"shaded: {format_percent(times[0].level)} range{crosses}",
        alternative=f"Time by number of accelerators: {', '.join(words)}.",
        x=Axis(title=size_title(known), is_log=True),
        y=Axis(title=unit, is_log=True),
        series=(*(line for line, _ in lines), *stars, *results),
        notes=tuple(notes),
        bands=tuple(band for _, band in lines),
    )


def star(best: Candidate, x: float, y: float) -> Series:
    """The recommended candidate as a series of one large point."""
    return series_of("recommended", _TAKEN_MARK, [(x, y, _hover(best))], is_main=True)


def _results(known: Sequence[Candidate], scale: float) -> Iterator[Series]:
    """Published results on the same systems and sizes."""
    found = {
        result.entry_id: (
            float(each.num_accelerators),
            result.score_s / scale,
            (printable(result.entry_id), title_of(each), amounts.duration(result.score_s)),
        )
        for each in known
        for result in each.published
    }
    if found:
        yield series_of("published results", _RESULT_MARK, found.values())


def _hover(each: Candidate) -> tuple[str, ...]:
    strategy, usd = each.strategy_text, amounts.usable(each.usd)
    return (
        title_of(each),
        amounts.time_with_range(each.known_time_s),
        *(() if usd is None else (amounts.money(usd.value),)),
        *(f"{sentence(one.name)}: {amounts.duration(one.time_s.value)}" for one in each.estimates),
        *(() if strategy is None else wrap(sentence(strategy), _HOVER_CHARACTERS)),
    )


def _place(each: Candidate, scale: float) -> tuple[float, float] | None:
    """Time and money of a candidate in the units of the chart; None if either is unknown."""
    usd = amounts.usable(each.usd)
    if each.time_s is None or usd is None or usd.value <= 0.0:
        return None
    return each.time_s.value / scale, amounts.converted(usd.value)


def money_chart(answer: Answer) -> Chart | None:
    """Money against time for every system, with lines of equal cost through the recommended candidate."""
    best, order = answer.recommended, shown_groups(answer)
    priced = [each for each in answer.listed if each.group in order and _place(each, 1.0)]
    offered = {each.candidate for each in answer.offers}
    taken_s = [each.time_s.value for each in priced if each.id in offered and each.time_s is not None]
    if len(priced) < 2 or not taken_s:  # noqa: PLR2004 - a line has two points
        return None
    limit_s = _SLOWEST_SHOWN * max(*taken_s, answer.question.deadline_s or 0.0)
    near = [each for each in priced if each.time_s is not None and each.time_s.value <= limit_s]
    unit, scale = time_unit([each.time_s.value for each in near if each.time_s is not None])
    places = {each.id: place for each in near if (place := _place(each, scale))}
    by_group = groups(near)
    series = [
        series_of(
            group_title(answer, group),
            series_mark(order.index(group)),
            [(*places[each.id], (title_of(each), takes(each))) for each in by_group[group]],
            is_line=True,
            labels=tuple("" if each == best else count(each.num_accelerators) for each in by_group[group]),
        )
        for group in order
        if group in by_group
    ]
    title = f"Money against time{' of all systems' if len(series) > 1 else ''}"
    lines = [] if best is None else [*_break_evens(answer, best, scale)]
    dashed = "; dashed: equal cost at that value of an hour" if lines else ""
    lines += _limit_lines(answer, [*places.values()], scale)
    notes = [words for _, words in lines]
    if best is not None and best.id in places:
        x, y = places[best.id]
        series.append(star(best, x, y))
        notes.insert(0, Annotation(x=x, y=y, text=f"{STAR} {count(best.num_accelerators)}"))
    left_out = len(priced) - len(near)
    more = f"; {plural(left_out, 'slower size')} not shown" if left_out else ""
    known = "; ".join(f"{title_of(each)} {takes(each)}" for each in near)
    return Chart(
        name="answer-money",
        title=title,
        subtitle=f"numbers: accelerators{dashed}; lower left is better{more}",
        alternative=f"Money by time: {known}.",
        x=Axis(title=f"time in {unit}", is_log=True),
        y=Axis(title="US dollars" if amounts.currency() == "USD" else amounts.currency(), is_log=True),
        series=(*series, *(line for line, _ in lines)),
        notes=tuple(notes),
    )


def _break_evens(answer: Answer, best: Candidate, scale: float) -> Iterator[tuple[Series, Annotation]]:
    """Lines of equal cost, money and time together, from the choice to the offer of each other system.

    The lines join the points as drawn. Their slope is not the break-even value of an hour, which includes
    the time before the first step; with that slope a line could end below zero.
    """
    for offer in answer.offers:
        value, other = offer.break_even_usd_per_hour, answer.candidate(offer.candidate)
        if value is None or other.time_s is None or best.usd is None or other.usd is None:
            continue
        first_s, last_s = best.known_time_s.value, other.time_s.value
        first_usd, last_usd = best.usd.value, other.usd.value
        steps = [place / _CURVE_POINTS for place in range(_CURVE_POINTS + 1)]
        times = [first_s * (last_s / first_s) ** step for step in steps]
        costs = [first_usd + (last_usd - first_usd) * (first_s - each) / (first_s - last_s) for each in times]
        x, y = tuple(each / scale for each in times), tuple(map(amounts.converted, costs))
        middle = len(x) // 2
        words = f"{hour_digits(value)} {amounts.currency()}/h"
        note = Annotation(x=x[middle], y=y[middle], text=words, is_minor=True)
        yield replace(_curve("break-even", x, y), is_extrapolated=True), note


def _limit_lines(
    answer: Answer, shown: Sequence[tuple[float, float]], scale: float
) -> Iterator[tuple[Series, Annotation]]:
    """Labelled lines at the deadline and the budget, spanning the points. shown: time and money of points."""
    times, money = zip(*shown, strict=True)
    deadline_s, budget_usd = answer.question.deadline_s, answer.question.budget_usd
    if deadline_s is not None and deadline_s > (answer.question.queue_s or 0.0):
        at = (deadline_s - (answer.question.queue_s or 0.0)) / scale
        if at * _FARTHEST_LIMIT > min(times):
            line = _curve("deadline", (at, at), (min(money), max(money)))
            yield line, Annotation(x=at, y=max(money), text=f"deadline{after_queue(answer)}")
    if budget_usd is not None and min(money) < amounts.converted(budget_usd) * _FARTHEST_LIMIT:
        budget = amounts.converted(budget_usd)
        line = _curve("budget", (min(times), max(times)), (budget, budget))
        yield line, Annotation(x=min(times), y=budget, text="budget")


def _curve(name: str, x: tuple[float, ...], y: tuple[float, ...]) -> Series:
    mark = Mark(colour=None, symbol="x")
    return Series(name=name, mark=mark, x=x, y=y, hovers=((),) * len(x), is_curve=True)


ESTIMATORS: Final[dict[EstimatorName, str]] = {
    "published": "Published",
    "measured": "Your runs",
    "model": "Model",
}


def comparison_blocks(answer: Answer) -> tuple[Block, ...]:
    """The charts and the table of every candidate."""
    known = [each for each in answer.listed if each.time_s is not None]
    best = answer.recommended
    charts = () if len(known) < 2 else (time_chart("answer-times", known, best),)  # noqa: PLR2004
    return (
        Panels(charts=charts, legend="System"),
        sizes_table(answer, answer.listed),
        Fold(
            name="answer-estimates",
            title="Estimates and strategy of each",
            blocks=(_estimates_table(answer),),
            is_long=True,
        ),
        *_equilibria(answer),
    )


def _estimates_table(answer: Answer) -> Table:
    columns = (
        *lead_columns(answer),
        *(numbers(title, _estimate(name)) for name, title in ESTIMATORS.items()),
        numbers(
            "Best result",
            lambda each: min((result.score_s for result in each.published), default=None),
            amounts.duration,
            meaning="fastest result submitted on this size",
        ),
        numbers("Batch", "global_batch_samples"),
        numbers("Memory", "memory.needed_bytes", amounts.memory),
        words("Strategy", lambda each: strategy_cell(each.strategy_text)),
    )
    caption = "Working time by each estimator with its weight, and what the strategy needs"
    return table_of("answer-estimates", columns, answer.listed, caption=caption)


def _estimate(name: EstimatorName) -> Callable[[Candidate], Cell | None]:
    """A function for the time of a candidate by one estimator, with its weight below."""

    def cell(each: Candidate) -> Cell | None:
        one = next((one for one in each.estimates if one.estimator == name), None)
        weight = "" if one is None else f"weight {whole_percent(one.weight)}"
        return None if one is None else number(one.time_s.value, amounts.duration, detail=weight)

    return cell


def strategy_cell(text: str | None) -> Cell | None:
    """A strategy in its text form."""
    return None if text is None else Cell(text=sentence(text), key=text, is_code=True)


def _equilibria(answer: Answer) -> Iterator[Block]:
    """Every definition of diminishing returns, applied to the recommended system."""
    kinds = by_key((point_words(each), each.kind) for each in answer.equilibria)
    if kinds:
        yield Heading(name="answer-returns", text="Where returns diminish")
        yield bullets(
            (Strong(f"{capital(listed(names))}: "), sentence(f"{words}.")) for words, names in kinds.items()
        )


def changes_blocks(answer: Answer) -> tuple[Block, ...]:
    """The alternatives, when each wins, and what would flip the answer."""
    blocks: list[Block] = []
    if answer.alternatives:
        alternatives = bullets(alternative_spans(answer, each) for each in answer.alternatives)
        blocks += [prose("The closest alternatives:"), alternatives]
    if answer.flips:
        blocks.append(_flips_table(answer))
    else:
        blocks.append(prose(no_flip_words(answer)))
    return tuple(blocks)


def _flips_table(answer: Answer) -> Table:
    return table_of(
        "answer-flips",
        (
            names("Input", lambda each: named(capital(flip_input(answer, each)), detail=_per_unit(each))),
            numbers("Now", lambda each: _quantity(each, each.value)),
            numbers("Changes at", lambda each: _quantity(each, each.flips_at), is_kept=True),
            words("To", lambda each: offer_title(answer.candidate(each.to)), is_kept=True),
        ),
        answer.flips,
        caption="What would change the answer: the nearest value of each input at which it does",
    )


def _per_unit(each: Flip) -> str | None:
    """The denominator of the unit of a price, e.g. `per hour`; None if there is none."""
    _, per, unit = each.unit.partition(" per ")
    return f"per {unit}" if per else None


def _quantity(each: Flip, value: float) -> Cell:
    return Cell(text=amounts.quantity(value, each.unit).partition(" per ")[0], key=value)


def members_of_choice(answer: Answer) -> list[Candidate]:
    """The sizes of the recommended system and terms; of the fastest candidate's if none is recommended."""
    return [] if answer.shown is None else answer.sizes_of(answer.shown)
