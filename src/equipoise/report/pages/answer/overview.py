"""The first page of an answer: the recommendation, its time, cost and risks, and how all systems compare."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from equipoise.decide.answer import CONSTRAINTS, Answer, Candidate, SystemAnswer, SystemOffer, price_that_wins
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    Heading,
    PairMatrix,
    Panels,
    SideBySide,
    Tile,
    bullets,
    named,
    names,
    note,
    number,
    numbers,
    prose,
    table_of,
    tiles,
    words,
)
from equipoise.report.format import DASH, STAR, capital, count, listed, sentence
from equipoise.report.pages.answer.candidates import (
    GRADES,
    RECOMMENDED,
    after_queue,
    chip_of,
    flip_words,
    group_title,
    is_recommended,
    limit_words,
    limits_broken,
    no_flip_words,
    offer_title,
    place_of,
    takes,
)
from equipoise.report.pages.answer.compare import money_chart, shown_groups
from equipoise.report.pages.answer.costs import hour_digits, power_price, shown_values, worth_words
from equipoise.report.pages.answer.head import evidence_words
from equipoise.report.pages.answer.refusal import is_of_memory, refusal_blocks
from equipoise.spec.hardware import TERM_WORDS
from equipoise.units import format_percent, format_stated, plural

if TYPE_CHECKING:
    from equipoise.decide.evidence import Group

# Rows of the matrix for which a printed page has room; in narrow columns, cells wrap over several lines.
_MOST_ROWS, _MOST_NARROW_ROWS = 10, 6
_MOST_WIDE_COLUMNS: Final = 4
_MOST_VALUES, _MOST_VALUES_BESIDE_MANY = 5, 4
_MOST_FLIPS: Final = 5
_UNFIT: Final = CONSTRAINTS["memory_bytes"].broken
_NO_STRATEGY: Final = "no strategy"  # no strategy is legal, whatever the memory
_NO_ESTIMATE: Final = "no estimate"
_TIMELESS: Final = (_UNFIT, _NO_STRATEGY, _NO_ESTIMATE)


def overview_blocks(answer: Answer) -> tuple[Block, ...]:
    """Everything needed to decide, on one page."""
    best = answer.recommended
    top: tuple[Block, ...] = (tiles(_tiles(answer, best)),) if best is not None else refusal_blocks(answer)
    if answer.refusal is not None and not is_of_memory(answer):
        top += tuple(note(sentence(str(each))) for each in answer.notes_of("nothing_fits"))
    if best is not None or answer.refusal is not None:
        top += tuple(note(sentence(str(each))) for each in answer.doubts)
    if not answer.offers:
        return top
    chart = money_chart(answer)
    drawn = () if chart is None else (Panels(charts=(chart,), legend="System", is_drawn=True),)
    return (
        *top,
        SideBySide(groups=((_matrix(answer),), drawn)),
        *(() if best is None else (SideBySide(groups=(_values(answer, best), _changes(answer))),)),
        *_systems(answer),
    )


def _tiles(answer: Answer, best: Candidate) -> Iterator[Tile]:
    """Time, cost, the probability of keeping the limits, and the evidence."""
    time, usd = best.known_time_s, amounts.usable(best.usd)
    level = format_percent(time.level)
    yield Tile(
        label="Time",
        value=amounts.duration(time.value),
        detail=f"{amounts.duration_range(time)}, {level} range{after_queue(answer)}",
    )
    price = "No price is known (--price)."
    if best.is_owned:
        price = f"Your own machine: {power_price(answer, best)}"
    elif best.price is not None:
        usd_per_hour = best.price.usd_per_accelerator_hour
        price = f"{amounts.rate(usd_per_hour)} per accelerator-hour, {TERM_WORDS[best.terms]}"
    yield Tile(
        label="Money",
        value="not known" if usd is None else amounts.money(usd.value),
        detail="" if usd is None or usd.low == usd.high else f"{amounts.sum_ends(usd)}, {level} range",
        words=price,
    )
    kept = []
    for each in best.constraints:
        if each.name in {"deadline_s", "budget_usd"} and each.probability is not None:
            known = CONSTRAINTS[each.name]
            stated = amounts.limit(each.limit) if known.unit == "USD" else format_stated(each.limit)
            kept.append(f"{known.noun} of {stated}: {amounts.probability(each.probability)}")
    if best.probability is not None and kept:
        yield Tile(
            label="Chance to keep " + ("both limits" if len(kept) > 1 else "the limit"),
            value=amounts.probability(best.probability),
            detail=capital("; ".join(kept)),
        )
    else:
        yield Tile(
            label="Chance to keep limits",
            value="no limit given",
            words="Give a deadline or a budget to see it.",
        )
    yield Tile(
        label="Evidence",
        value=capital(GRADES[best.grade][0]),
        words=f"{_better_known(answer, best) or capital(evidence_words(answer, best))}.",
    )


def _better_known(answer: Answer, best: Candidate) -> str | None:
    if best.grade != "priors":
        return None
    found = next((each for each in answer.offers if each.is_feasible and each.grade != "priors"), None)
    if found is None:
        return None
    other = answer.candidate(found.candidate)
    return f"With evidence ({GRADES[found.grade][0]}): {offer_title(other)}, {takes(other)}"


def _time_and_money(each: Candidate) -> Cell:
    usd = amounts.usable(each.usd)
    return number(
        None if each.time_s is None else each.time_s.value,
        amounts.duration,
        detail=None if usd is None else amounts.short_money(usd.value),
    )


def _matrix(answer: Answer) -> PairMatrix:
    """Time and cost of each size of each system, or the limit that it breaks."""
    groups = shown_groups(answer)
    cells: dict[int, dict[Group, Badge]] = {}
    listed_sizes = {each.num_accelerators for each in answer.listed}
    for each in answer.candidates:
        if each.num_accelerators in listed_sizes:
            cells.setdefault(each.num_accelerators, {})[each.group] = _badge(answer, each)
    for system in answer.systems:
        for unfit in system.unfit:
            for group in (each for each in groups if each[0] == system.name):
                badge = Badge(text=_NO_STRATEGY, tone="quiet", detail="")
                if unfit.needed_bytes is not None:
                    needs = f"needs {amounts.memory(unfit.needed_bytes)}"
                    badge = Badge(text=_UNFIT, tone="quiet", detail=needs)
                cells.setdefault(unfit.num_accelerators, {})[group] = badge
    rows = [(count(size), [cells[size].get(group) for group in groups]) for size in sorted(cells)]
    most = _MOST_ROWS if len(groups) <= _MOST_WIDE_COLUMNS else _MOST_NARROW_ROWS
    # For a refusal, sizes with a known time are not merged: times, costs and limits are what matters there.
    rows, num_left_out = _rows_around_choice(_merged(rows, with_limits=answer.refusal is None), most)
    more = f"; {plural(num_left_out, 'more size')} below" if num_left_out else ""
    has_blanks = any(badge is None for _, badges in rows for badge in badges)
    return PairMatrix(
        name="answer-matrix",
        caption=f"Time and money by number of accelerators{more}",
        heads=tuple(group_title(answer, each) for each in groups),
        rows=tuple((name, None, tuple(badges)) for name, badges in rows),
        legend=(
            *(() if answer.recommended is None else ((Badge(text=STAR, tone="good"), "recommended"),)),
            (Badge(text="grey", tone="quiet"), "not possible, for the reason given"),
            *(((Badge(text="blank", tone="plain"), "not tried"),) if has_blanks else ()),
        ),
    )


_Row: TypeAlias = tuple[str, list[Badge | None]]


def _badge(answer: Answer, each: Candidate) -> Badge:
    is_chosen = is_recommended(answer, each)
    if each.time_s is None:
        return Badge(text=_NO_ESTIMATE, tone="quiet")
    time = amounts.duration(each.time_s.value)
    usd = amounts.usable(each.usd)
    if each.broken:
        paid = "" if answer.refusal is None or usd is None else f"{amounts.short_money(usd.value)}, "
        return Badge(text=time, tone="quiet", detail=f"{paid}{limits_broken(answer, each)}")
    return Badge(
        text=f"{STAR} {time}" if is_chosen else time,
        tone="good" if is_chosen else "plain",
        detail="" if usd is None else amounts.short_money(usd.value),
    )


def _merged(rows: Sequence[_Row], *, with_limits: bool) -> list[_Row]:
    """The rows, with adjacent sizes merged that are impossible on every system for the same reasons.

    with_limits: also merge sizes whose time is known but which break a limit.
    """
    found: list[_Row] = []
    last: list[str | None] | None = None
    for name, badges in rows:
        reasons = [_reason(each) for each in badges]
        is_impossible = all(
            each is None or (each.tone == "quiet" and (with_limits or each.text in _TIMELESS))
            for each in badges
        )
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
    if each is None or each.tone != "quiet":
        return None
    return each.text if each.text in _TIMELESS else each.detail


def _rows_around_choice(rows: list[_Row], most: int) -> tuple[list[_Row], int]:
    """At most `most` rows around the chosen one, and the number of omitted rows."""
    if len(rows) <= most:
        return rows, 0
    at = next(
        (
            place
            for place, (_, badges) in enumerate(rows)
            if any(each and each.tone == "good" for each in badges)
        ),
        len(rows) - 1,
    )
    begin = min(max(0, at - most // 2), len(rows) - most)
    return rows[begin : begin + most], len(rows) - most


def _values(answer: Answer, best: Candidate) -> tuple[Block, ...]:
    """The candidates that cost least by value of an hour, around the chosen one."""
    values = shown_values(answer, best)
    if not values:
        return (note("No price is known, so money cannot be weighed against time (--price)."),)
    found = [answer.candidate(each.candidate) for each in values]
    at = place_of(best, found) or 0
    # A wide table of sizes and a long table of systems leave less room on the page.
    is_wide = len({each.group for each in answer.candidates}) > _MOST_WIDE_COLUMNS
    most = _MOST_VALUES_BESIDE_MANY if is_wide else _MOST_VALUES
    begin = max(0, min(at - most // 2, len(found) - most))
    shown = range(begin, min(begin + most, len(found)))

    def taken(place: int) -> Cell:
        each = found[place]
        badge = RECOMMENDED if each.id == best.id else None
        return Cell(text=offer_title(each), key=each.num_accelerators, badge=badge)

    def worth(place: int) -> Cell:
        return Cell(text=worth_words(values, place), key=values[place].from_usd_per_hour)

    columns = (
        names("An hour is worth", worth),
        words("Take", taken),
        numbers("Time, money", lambda place: _time_and_money(found[place])),
    )
    marked = place_of(best, found[begin : shown.stop])
    caption = "Which size for which value of an hour"
    left_out = [
        f"{plural(many, 'candidate')} for a {what} value of an hour"
        for many, what in ((begin, "lower"), (len(found) - shown.stop, "higher"))
        if many
    ]
    more = (note(f"Not shown: {listed(left_out)}."),) if left_out else ()
    return (table_of("answer-values", columns, shown, caption=caption, marked=marked), *more)


def _changes(answer: Answer) -> tuple[Block, ...]:
    title = Heading(name="answer-changes", text="What would change it", is_minor=True)
    if not answer.flips:
        return (title, prose(no_flip_words(answer)))
    return (
        title,
        bullets(f"{capital(flip_words(answer, each))}." for each in answer.flips[:_MOST_FLIPS]),
    )


def _systems(answer: Answer) -> tuple[Block, ...]:
    """The best offer of each system, the best system first, with its evidence and when it would be better."""
    offered = {each.system for each in answer.offers}
    missing = [each for each in answer.systems if each.name not in offered]
    if len(answer.offers) + len(missing) == 1:
        return ()
    best = answer.recommended
    rows = [
        {
            "system": _offered(answer, place, offer),
            "of": answer.candidate(offer.candidate),
            "words": _against(answer, offer) if place or best is None else None,
        }
        for place, offer in enumerate(answer.offers)
    ]
    rows += [{"system": chip_of(each.title), "of": None, "words": _unfit(each)} for each in missing]
    columns = (
        names("System", "system"),
        numbers("N", "of.num_accelerators", meaning="number of accelerators"),
        numbers("Time, money", lambda row: row["of"] and _time_and_money(row["of"])),
        words("Why not" if best is None else "Against the choice", "words"),
    )
    caption = "The systems, best first: what each would be taken at, and when it would be better"
    return (table_of("answer-systems", columns, rows, caption=caption, marked=None if best is None else 0),)


def _offered(answer: Answer, place: int, offer: SystemOffer) -> Cell:
    badge = None
    if offer.is_feasible and place < 2:  # noqa: PLR2004 - the choice, and the next best
        badge = Badge(text="next best", tone="plain") if place else RECOMMENDED
    title = group_title(answer, offer.group)
    return named(title, badge=badge, detail=f"evidence: {GRADES[offer.grade][0]}")


def _against(answer: Answer, offer: SystemOffer) -> str | None:
    """When another system would be better than the recommended one."""
    each, best = answer.candidate(offer.candidate), answer.recommended
    if each.broken:
        return capital(limit_words(answer, each.broken[0]))
    if best is None or each.time_s is None or best.time_s is None:
        return None
    parts = []
    value = offer.break_even_usd_per_hour
    if value is not None:
        more = "more" if each.time_s.value < best.time_s.value else "less"
        parts.append(f"an hour is worth {more} than {hour_digits(value)} {amounts.currency()}")
    price = price_that_wins(each.id, answer.flips)
    if price is not None:
        parts.append(f"its price is below {amounts.money(price)} per accelerator-hour")
    if not parts:
        return _comparison_words(each, best)
    return f"Better if {' or '.join(parts)}"


def _comparison_words(each: Candidate, best: Candidate) -> str:
    """How another system compares with the choice; if one has no price, the price at which costs are equal.

    Source: accelerator-hours x price, equal for both.
    """
    fast = _comparative(each.known_time_s.value, best.known_time_s.value, ("Faster", "Slower", "As fast"))
    if each.usd is not None and best.usd is not None:
        cost = _comparative(each.usd.value, best.usd.value, _COSTS)
        return f"{fast} and {cost}" + (_energy_words(each, best) if fast != "Slower" else "")
    hours, own_hours = each.accelerator_hours, best.accelerator_hours
    if not hours or not own_hours:
        return fast
    if best.usd is not None:
        return f"{fast}; no price known: costs less below {_hourly(best.usd.value / hours)}"
    if each.usd is not None:
        limit = _hourly(each.usd.value / own_hours)
        return f"{fast}; costs less if the choice, whose price is not known, takes more than {limit}"
    return f"{fast} for {_comparative(hours, own_hours, _TAKES)} accelerator-hours; no price known"


_COSTS: Final = ("cheaper", "more expensive", "as expensive")
_TAKES: Final = ("fewer", "more", "as many")


def _hourly(usd: float) -> str:
    return f"{amounts.rate(usd)} per accelerator-hour"


def _comparative(ours: float, theirs: float, words: tuple[str, str, str]) -> str:
    """Select from `words` (less, more, equal) by how `ours` compares with `theirs`."""
    less, more, equal = words
    return less if ours < theirs else more if ours > theirs else equal


def _energy_words(each: Candidate, best: Candidate) -> str:
    if each.energy_j is None or best.energy_j is None or each.energy_j.value <= best.energy_j.value:
        return ""
    return " and takes more energy"


def _unfit(system: SystemAnswer) -> str:
    least = min((each.needed_bytes for each in system.unfit if each.needed_bytes is not None), default=None)
    return (
        "No strategy at any size"
        if least is None
        else f"No size fits: at least {amounts.memory(least)} per accelerator"
    )
