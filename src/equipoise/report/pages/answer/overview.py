"""The first page of an answer: what to take, its time, money and chances, against all systems asked about."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from equipoise.decide.answer import (
    Answer,
    Candidate,
    ConstraintName,
    Grade,
    SystemAnswer,
    SystemOffer,
)
from equipoise.economics import PriceTerms
from equipoise.economics.costs import WORDS
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Bullets,
    Cell,
    Column,
    Heading,
    PairMatrix,
    Panels,
    SideBySide,
    Table,
    Tile,
    Tiles,
    named,
    note,
    number,
    prose,
)
from equipoise.report.charts import Axis, Chart, Mark, Note, Series, series_mark
from equipoise.report.format import ABSENT, DASH, capital, count, plural, sentence
from equipoise.report.pages.answer import compare
from equipoise.report.pages.answer.head import (
    GRADES,
    chip_of,
    hour_usd,
    limit_words,
    offer_title,
    refusal_blocks,
    title_of,
)
from equipoise.units import HOUR_S, format_percent

EVIDENCE: Final[dict[Grade, str]] = {
    "measured": "measured by you",
    "published": "published results",
    "carried": "published, carried over",
    "calibrated": "calibrated model",
    "priors": "priors only",
}
STAR: Final = "★"
_MOST_SYSTEMS: Final = 6
_MOST_ROWS: Final = 10
_MOST_VALUES: Final = 5
_MOST_FLIPS: Final = 5
# Of the chart: sizes slower than so many times the slowest one taken are left to the table.
_SLOWEST_SHOWN: Final = 4.0
# A limit so many times below every point is named in words only: the points would be one.
_FARTHEST_LIMIT: Final = 100.0
_CURVE_POINTS: Final = 24
_Group: TypeAlias = tuple[str, PriceTerms]


def overview_blocks(answer: Answer) -> tuple[Block, ...]:
    """All that decides, on one page."""
    best = answer.recommended
    top = refusal_blocks(answer) if best is None else (Tiles(items=tuple(_tiles(answer, best))),)
    if not answer.offers:
        return top
    chart = _money_chart(answer)
    return (
        *top,
        SideBySide(
            groups=(
                (_matrix(answer),),
                () if chart is None else (Panels(charts=(chart,), legend="System", is_drawn=True),),
            )
        ),
        *(() if best is None else (SideBySide(groups=(_values(answer, best), _changes(answer))),)),
        *_systems(answer),
    )


def _tiles(answer: Answer, best: Candidate) -> Iterator[Tile]:
    """Time, money, the chance to keep the limits, and what all that rests on."""
    assert best.time_s is not None
    time, usd = best.time_s, amounts.usable(best.usd)
    level = format_percent(time.level)
    queue = " after the queue" if answer.question.queue_s else ""
    yield Tile(
        label="Time",
        value=amounts.duration(time.value),
        detail=f"{amounts.duration_range(time)} ({level} range){queue}",
        words="",
    )
    price = "No price is known (--price)."
    if best.price is not None:
        usd_per_hour = best.price.usd_per_accelerator_hour
        price = f"{usd_per_hour:,.2f} USD per accelerator-hour, {WORDS[best.terms]}"
    yield Tile(
        label="Money",
        value="not known" if usd is None else amounts.money(usd.value),
        detail="" if usd is None or usd.low == usd.high else f"{amounts.ends(usd)} ({level} range)",
        words=price,
    )
    kept = [
        f"{_LIMITS[each.name][0]} of {amounts.quantity(each.limit, _LIMITS[each.name][1])}"
        f": {amounts.probability(each.probability)}"
        for each in best.constraints
        if each.name in _LIMITS and each.probability is not None
    ]
    if best.probability is not None and kept:
        yield Tile(
            label="Chance to keep " + ("both limits" if len(kept) > 1 else "the limit"),
            value=amounts.probability(best.probability),
            detail=f"{capital('; '.join(kept))}.",
            words="",
        )
    else:
        yield Tile(
            label="Chance to keep limits",
            value="no limit given",
            detail="Give a deadline or a budget to see it.",
            words="",
        )
    yield Tile(
        label="Evidence",
        value=capital(EVIDENCE[best.grade]),
        detail="",
        words=f"{_better_known(answer, best) or capital(GRADES[best.grade])}.",
    )


_LIMITS: Final[dict[ConstraintName, tuple[str, str]]] = {
    "deadline_s": ("deadline", "s"),
    "budget_usd": ("budget", "USD"),
}


def _better_known(answer: Answer, best: Candidate) -> str | None:
    """Of a choice by priors alone: the best system with evidence, and what it would take."""
    if best.grade != "priors":
        return None
    found = next((each for each in answer.offers if each.is_feasible and each.grade != "priors"), None)
    if found is None:
        return None
    other = answer.candidate(found.candidate)
    return f"With evidence ({EVIDENCE[found.grade]}): {offer_title(other)}, {_takes(other)}"


def _takes(each: Candidate) -> str:
    """Time and money, as far as they are known."""
    usd = amounts.usable(each.usd)
    known = [] if each.time_s is None else [amounts.duration(each.time_s.value)]
    return ", ".join(known + ([] if usd is None else [amounts.money(usd.value)]))


def _time_and_money(each: Candidate) -> Cell:
    """The time of a candidate, and its money below."""
    usd = amounts.usable(each.usd)
    return number(
        None if each.time_s is None else each.time_s.value,
        amounts.duration,
        detail=None if usd is None else amounts.money(usd.value),
    )


def _group_title(answer: Answer, group: _Group) -> str:
    """A system, with its terms where several are compared."""
    system, terms = group
    title = chip_of(next(each.title for each in answer.systems if each.name == system))
    several = len({each.terms for each in answer.candidates}) > 1
    return f"{title}, {WORDS[terms]}" if several else title


def _shown_groups(answer: Answer) -> list[_Group]:
    """The best systems with their terms, and then those on which nothing runs."""
    offered: list[_Group] = [(each.system, each.terms) for each in answer.offers]
    missing: list[_Group] = [
        (each.name, next(iter(each.rates), "on_demand"))
        for each in answer.systems
        if each.name not in {system for system, _ in offered}
    ]
    return [*offered, *missing][:_MOST_SYSTEMS]


def _matrix(answer: Answer) -> PairMatrix:
    """Time and money of each size of each system, or the limit that it breaks."""
    groups = _shown_groups(answer)
    cells: dict[int, dict[_Group, Badge]] = {}
    for each in answer.candidates:
        cells.setdefault(each.num_accelerators, {})[each.system, each.terms] = _badge(answer, each)
    for system in answer.systems:
        for unfit in system.unfit:
            for group in (each for each in groups if each[0] == system.name):
                needs = "" if unfit.needed_bytes is None else f"needs {amounts.memory(unfit.needed_bytes)}"
                cells.setdefault(unfit.num_accelerators, {})[group] = Badge(
                    text="does not fit", tone="quiet", detail=needs
                )
    rows = [(count(size), [cells[size].get(group) for group in groups]) for size in sorted(cells)]
    rows, num_left_out = _within(_merged(rows))
    more = f"; {num_left_out} more sizes below" if num_left_out else ""
    return PairMatrix(
        name="answer-matrix",
        caption=f"Time and money by number of accelerators{more}",
        heads=tuple(_group_title(answer, each) for each in groups),
        rows=tuple((name, None, tuple(badges)) for name, badges in rows),
        legend=(
            *(() if answer.recommended is None else ((Badge(text=STAR, tone="good"), "recommended"),)),
            (Badge(text="grey", tone="quiet"), "not possible, for the reason given"),
        ),
    )


_BROKEN: Final[dict[ConstraintName, str]] = {
    "deadline_s": "too slow",
    "budget_usd": "over budget",
    "memory_bytes": "does not fit",
    "max_accelerators": "beyond limit",
}
_Row: TypeAlias = tuple[str, list[Badge | None]]


def _badge(answer: Answer, each: Candidate) -> Badge:
    is_chosen = answer.recommended is not None and each.id == answer.recommended.id
    if each.time_s is None:
        return Badge(text="no estimate", tone="quiet")
    time = amounts.duration(each.time_s.value)
    if each.broken:
        return Badge(text=time, tone="quiet", detail=", ".join(_BROKEN[one.name] for one in each.broken))
    usd = amounts.usable(each.usd)
    return Badge(
        text=f"{STAR} {time}" if is_chosen else time,
        tone="good" if is_chosen else "plain",
        detail="" if usd is None else amounts.money(usd.value),
    )


def _merged(rows: Sequence[_Row]) -> list[_Row]:
    """The rows; sizes next to each other that are possible on no system, for the same reasons, in one."""
    found: list[_Row] = []
    last: list[str | None] | None = None
    for name, badges in rows:
        reasons = [_reason(each) for each in badges]
        is_impossible = all(each is None or each.tone == "quiet" for each in badges)
        if is_impossible and found and last == reasons:
            first = found[-1][0].partition(DASH)[0]
            found[-1] = (
                f"{first}{DASH}{name}",
                [None if each is None else Badge(text=str(_reason(each)), tone="quiet") for each in badges],
            )
        else:
            found.append((name, list(badges)))
        last = reasons if is_impossible else None
    return found


def _reason(each: Badge | None) -> str | None:
    """Why a size of a system is not possible."""
    if each is None or each.tone != "quiet":
        return None
    return each.text if each.text in {"does not fit", "no estimate"} else each.detail


def _within(rows: list[_Row]) -> tuple[list[_Row], int]:
    """As many rows as a page has room for, around the chosen one, and how many are left out."""
    if len(rows) <= _MOST_ROWS:
        return rows, 0
    at = next(
        (
            place
            for place, (_, badges) in enumerate(rows)
            if any(each and each.tone == "good" for each in badges)
        ),
        len(rows) - 1,
    )
    begin = min(max(0, at - _MOST_ROWS // 2), len(rows) - _MOST_ROWS)
    return rows[begin : begin + _MOST_ROWS], len(rows) - _MOST_ROWS


def _money_chart(answer: Answer) -> Chart | None:
    """Money against time of every system, with the lines on which a system costs as much as the choice."""
    best = answer.recommended
    shown = set(_shown_groups(answer))
    priced = [
        each
        for each in answer.candidates
        if each.time_s is not None
        and amounts.usable(each.usd) is not None
        and each.usd is not None
        and each.usd.value > 0.0
        and (each.system, each.terms) in shown
    ]
    offered = {each.candidate for each in answer.offers}
    taken_s = [each.time_s.value for each in priced if each.id in offered and each.time_s is not None]
    if len(priced) < 2 or not taken_s:  # noqa: PLR2004 - a line has two points
        return None
    deadline_s = answer.question.deadline_s
    limit_s = _SLOWEST_SHOWN * max(*taken_s, deadline_s or 0.0)
    near = [each for each in priced if each.time_s is not None and each.time_s.value <= limit_s]
    left_out = len(priced) - len(near)
    unit, scale = compare.time_unit([each.time_s.value for each in near if each.time_s is not None])
    places = {group: place for place, group in enumerate(_shown_groups(answer))}
    series = [
        Series(
            name=_group_title(answer, group),
            mark=series_mark(places[group]),
            x=tuple(each.time_s.value / scale for each in members if each.time_s is not None),
            y=tuple(each.usd.value for each in members if each.usd is not None),
            hovers=tuple((title_of(each), _takes(each)) for each in members),
            labels=tuple("" if each == best else count(each.num_accelerators) for each in members),
            is_line=True,
        )
        for group, members in sorted(compare.groups(near).items(), key=lambda pair: places[pair[0]])
    ]
    title = f"Money against time{' of all systems' if len(series) > 1 else ''}"
    lines, notes = _break_evens(answer, best, scale) if best is not None else ([], [])
    if best is not None and best in near and best.time_s is not None and best.usd is not None:
        at = (best.time_s.value / scale, best.usd.value)
        series.append(compare.taken(best, *at))
        notes = [Note(x=at[0], y=at[1], text=f"{STAR} {count(best.num_accelerators)}"), *notes]
    limits = tuple(_limit_lines(answer, near, scale))
    words = [f"{title_of(each)} {_takes(each)}" for each in near]
    dashed = "; dashed: equal cost at that value of an hour" if lines else ""
    more = f"; {plural(left_out, 'slower size')} not shown" if left_out else ""
    return Chart(
        name="answer-money",
        title=title,
        subtitle=f"numbers: accelerators{dashed}; lower left is better{more}",
        alternative=f"Money by time: {'; '.join(words)}.",
        x=Axis(title=f"time in {unit}", is_log=True),
        y=Axis(title="US dollars", is_log=True),
        series=(*series, *lines, *(line for line, _ in limits)),
        notes=(*notes, *(words for _, words in limits)),
    )


def _break_evens(answer: Answer, best: Candidate, scale: float) -> tuple[list[Series], list[Note]]:
    """The lines of equal cost, money and time together, from the choice to the offer of each other system."""
    lines, notes = [], []
    assert best.time_s is not None
    for offer in answer.offers:
        value, other = offer.break_even_usd_per_hour, answer.candidate(offer.candidate)
        if value is None or other.time_s is None or best.usd is None:
            continue
        steps = [place / _CURVE_POINTS for place in range(_CURVE_POINTS + 1)]
        times = [best.time_s.value * (other.time_s.value / best.time_s.value) ** step for step in steps]
        money = [best.usd.value + value * (best.time_s.value - each) / HOUR_S for each in times]
        x = tuple(each / scale for each in times)
        lines.append(
            Series(
                name="break-even",
                mark=Mark(colour=None, symbol="cross"),
                x=x,
                y=tuple(money),
                hovers=((),) * len(x),
                is_curve=True,
                is_extrapolated=True,
            )
        )
        middle = len(x) // 2
        notes.append(Note(x=x[middle], y=money[middle], text=f"{amounts.digits(value)} USD/h"))
    return lines, notes


def _limit_lines(answer: Answer, shown: Sequence[Candidate], scale: float) -> Iterator[tuple[Series, Note]]:
    """The deadline and the budget, as wide as the points, each with its name."""
    times = [each.time_s.value / scale for each in shown if each.time_s is not None]
    money = [each.usd.value for each in shown if each.usd is not None]
    deadline_s, budget_usd = answer.question.deadline_s, answer.question.budget_usd
    if deadline_s is not None and deadline_s > (answer.question.queue_s or 0.0):
        at = (deadline_s - (answer.question.queue_s or 0.0)) / scale
        if at * _FARTHEST_LIMIT > min(times):
            yield _limit_line("deadline", (at, at), (min(money), max(money)))
    if budget_usd is not None and min(money) < budget_usd * _FARTHEST_LIMIT:
        yield _limit_line("budget", (min(times), max(times)), (budget_usd, budget_usd))


def _limit_line(name: str, x: tuple[float, float], y: tuple[float, float]) -> tuple[Series, Note]:
    line = Series(name=name, mark=Mark(colour=None, symbol="x"), x=x, y=y, hovers=((), ()), is_curve=True)
    return line, Note(x=x[0], y=y[1], text=name)


def _values(answer: Answer, best: Candidate) -> tuple[Block, ...]:
    """Which candidate costs least at which value of an hour, around the chosen one."""
    values = answer.time_values
    if not values:
        return (note("No price is known, so money cannot be weighed against time (--price)."),)
    found = [answer.candidate(each.candidate) for each in values]
    ends = [hour_usd(each) for each in values]
    at = next((place for place, each in enumerate(found) if each.id == best.id), 0)
    begin = max(0, min(at - _MOST_VALUES // 2, len(found) - _MOST_VALUES))
    shown = range(begin, min(begin + _MOST_VALUES, len(found)))
    rows = []
    for place in shown:
        each = found[place]
        if len(found) == 1:
            worth = "anything"
        elif place == 0:
            worth = f"less than {ends[1]} USD"
        elif place + 1 == len(found):
            worth = f"more than {ends[place]} USD"
        else:
            worth = f"{ends[place]} to {ends[place + 1]} USD"
        badge = Badge(text="recommended", tone="good") if each.id == best.id else None
        rows.append(
            (
                Cell(text=worth, key=values[place].from_usd_per_hour),
                Cell(text=offer_title(each), key=each.num_accelerators, badge=badge),
                _time_and_money(each),
            )
        )
    table = Table(
        name="answer-values",
        caption="Which size for which value of an hour",
        columns=(
            Column(title="An hour is worth", is_header=True),
            Column(title="Take"),
            Column(title="Time, money", is_number=True),
        ),
        rows=tuple(rows),
        marked=next((place for place, at in enumerate(shown) if found[at].id == best.id), None),
    )
    return (table,)


def _changes(answer: Answer) -> tuple[Block, ...]:
    """What would flip the answer, the nearest first."""
    title = Heading(name="answer-changes", text="What would change it", is_minor=True)
    if not answer.flips:
        return (title, prose("No price, speed or limit within a factor of ten does."))
    items = tuple((f"{capital(compare.flip_words(answer, each))}.",) for each in answer.flips[:_MOST_FLIPS])
    return (title, Bullets(items=items))


def _systems(answer: Answer) -> tuple[Block, ...]:
    """What each system would be taken at, the best first, with its evidence and when it would be better."""
    rows = [_offer_row(answer, place, each) for place, each in enumerate(answer.offers)]
    offered = {each.system for each in answer.offers}
    rows += [_unfit_row(each) for each in answer.systems if each.name not in offered]
    if len(rows) == 1:
        return ()
    return (
        Table(
            name="answer-systems",
            caption="The systems, best first: what each would be taken at, and when it would be better",
            columns=(
                Column(title="System", is_header=True),
                Column(title="N", is_number=True, meaning="number of accelerators"),
                Column(title="Time, money", is_number=True),
                Column(title="Why not" if answer.recommended is None else "Against the choice"),
            ),
            rows=tuple(rows),
            marked=None if answer.recommended is None else 0,
        ),
    )


def _offer_row(answer: Answer, place: int, offer: SystemOffer) -> tuple[Cell, ...]:
    each, best = answer.candidate(offer.candidate), answer.recommended
    name = _group_title(answer, (offer.system, offer.terms))
    badge = None
    if offer.is_feasible and place < 2:  # noqa: PLR2004 - the choice, and the next best
        badge = Badge(text="next best", tone="plain") if place else Badge(text="recommended", tone="good")
    return (
        named(name, badge=badge, detail=f"evidence: {EVIDENCE[offer.grade]}"),
        number(each.num_accelerators),
        _time_and_money(each),
        Cell(text=_against(answer, offer, each, best) if place or best is None else ABSENT, key=place),
    )


def _against(answer: Answer, offer: SystemOffer, each: Candidate, best: Candidate | None) -> str:
    """When another system would be the better one."""
    if each.broken:
        return capital(limit_words(answer, each.broken[0]))
    if best is None or each.time_s is None or best.time_s is None:
        return ABSENT
    is_faster = each.time_s.value < best.time_s.value
    parts = []
    value = offer.break_even_usd_per_hour
    if value is not None:
        parts.append(f"an hour is worth {'more' if is_faster else 'less'} than {amounts.digits(value)} USD")
    price = next(
        (
            one
            for one in answer.flips
            if one.system == offer.system and one.to == offer.candidate and one.flips_at < one.value
        ),
        None,
    )
    if price is not None and price.unit.startswith("USD"):
        parts.append(f"its price is below {amounts.digits(price.flips_at)} USD per accelerator-hour")
    if not parts:
        return "Slower" if each.usd is None or best.usd is None else "Slower and more expensive"
    return f"Better if {' or '.join(parts)}"


def _unfit_row(system: SystemAnswer) -> tuple[Cell, ...]:
    least = min((each.needed_bytes for each in system.unfit if each.needed_bytes is not None), default=None)
    needs = "" if least is None else f": at least {amounts.memory(least)} per accelerator"
    return (
        named(chip_of(system.title)),
        Cell(text=ABSENT),
        Cell(text=ABSENT),
        Cell(text=sentence(f"No size fits{needs}")),
    )
