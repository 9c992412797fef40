"""All systems and sizes: tables, charts, the closest alternatives, and what would change the answer."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from equipoise.decide.answer import Alternative, Answer, Candidate, EstimatorName, Flip
from equipoise.economics import PriceTerms
from equipoise.economics.costs import WORDS
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Bullets,
    Cell,
    Column,
    Fold,
    Heading,
    Panels,
    Span,
    Table,
    amount,
    named,
    number,
    prose,
    strong,
)
from equipoise.report.charts import Axis, Band, Chart, Mark, Note, Series, line_with_band, series_mark
from equipoise.report.format import ABSENT, capital, count, listed, printable, sentence
from equipoise.report.pages.answer.head import (
    SHORT,
    chip_of,
    offer_title,
    point_words,
    same_group,
    title_of,
)
from equipoise.units import DAY_S, HOUR_S, MINUTE_S, format_percent

ESTIMATORS: Final[dict[EstimatorName, str]] = {
    "published": "Published",
    "measured": "Your runs",
    "model": "Model",
}
_HOVER_CHARACTERS: Final = 52
_UNITS: Final = (("days", DAY_S), ("hours", HOUR_S), ("minutes", MINUTE_S), ("seconds", 1.0))
_TAKEN_MARK: Final = Mark(colour=5, symbol="star")
_RESULT_MARK: Final = Mark(colour=None, symbol="x")


def comparison_blocks(answer: Answer) -> tuple[Block, ...]:
    """The charts and the table of every candidate."""
    known = [each for each in answer.candidates if each.time_s is not None]
    charts = () if len(known) < 2 else (time_chart(answer, known),)  # noqa: PLR2004
    return (
        Panels(charts=charts, legend="System"),
        sizes_table(answer, answer.candidates),
        Fold(
            name="answer-estimates",
            title="Estimates and strategy of each",
            blocks=(_estimates_table(answer),),
            is_long=True,
        ),
        *_equilibria(answer),
    )


def size_title(members: Sequence[Candidate]) -> str:
    """What an axis of sizes counts: the accelerators of one system by name, else those of each."""
    names = {chip_of(each.title) for each in members}
    return f"number of {names.pop()}" if len(names) == 1 else "number of accelerators of each system"


def time_unit(times_s: Sequence[float]) -> tuple[str, float]:
    """The unit for times of an axis, of which the middle one is at least two, and its seconds."""
    middle = sorted(times_s)[len(times_s) // 2]
    return next((each for each in _UNITS if middle >= 2.0 * each[1]), _UNITS[-1])


def groups(candidates: Sequence[Candidate]) -> dict[tuple[str, PriceTerms], list[Candidate]]:
    """Candidates by system and terms, the smallest size first."""
    found: dict[tuple[str, PriceTerms], list[Candidate]] = {}
    for each in sorted(candidates, key=lambda one: one.num_accelerators):
        found.setdefault((each.system, each.terms), []).append(each)
    return found


def _group_name(members: Sequence[Candidate], *, with_terms: bool) -> str:
    terms = f", {WORDS[members[0].terms]}" if with_terms else ""
    return f"{chip_of(members[0].title)}{terms}"


def time_chart(answer: Answer, known: Sequence[Candidate]) -> Chart:
    """Time against size of every system, with its interval."""
    times = [each.time_s.value for each in known if each.time_s is not None]
    unit, scale = time_unit(times)
    by_group = groups(known)
    with_terms = len({each.terms for each in known}) > 1
    series: list[Series] = []
    bands: list[Band] = []
    for place, members in enumerate(by_group.values()):
        name, mark = _group_name(members, with_terms=with_terms), series_mark(place)
        points = (
            (float(each.num_accelerators), each.time_s, _hover(each))
            for each in members
            if each.time_s is not None
        )
        line, band = line_with_band(name, mark, points, scale=scale)
        series.append(line)
        bands.append(band)
    words = [f"{title_of(each)} {_duration(each)}" for each in known]
    best = answer.recommended
    notes: tuple[Note, ...] = ()
    if best is not None and best.time_s is not None:
        at = (float(best.num_accelerators), best.time_s.value / scale)
        series.append(taken(best, *at))
        notes = (Note(x=at[0], y=at[1], text=count(best.num_accelerators), is_above=True),)
    return Chart(
        name="answer-times",
        title="Time against size",
        subtitle="shaded: 90 % range; crosses: published results",
        alternative=f"Time by number of accelerators: {', '.join(words)}.",
        x=Axis(title=size_title(known), is_log=True),
        y=Axis(title=unit, is_log=True),
        series=(*series, *_results(known, scale)),
        notes=notes,
        bands=tuple(bands),
    )


def taken(best: Candidate, x: float, y: float) -> Series:
    """The recommended candidate as a star, larger than other points."""
    return Series(name="recommended", mark=_TAKEN_MARK, x=(x,), y=(y,), hovers=(_hover(best),), is_main=True)


def _results(known: Sequence[Candidate], scale: float) -> Iterator[Series]:
    """Submitted results on these very systems and sizes."""
    found = {result.entry_id: (each, result) for each in known for result in each.published}
    if found:
        yield Series(
            name="published results",
            mark=_RESULT_MARK,
            x=tuple(float(each.num_accelerators) for each, _ in found.values()),
            y=tuple(result.score_s / scale for _, result in found.values()),
            hovers=tuple(
                (printable(result.entry_id), title_of(each), amounts.duration(result.score_s))
                for each, result in found.values()
            ),
        )


def _duration(each: Candidate) -> str:
    return ABSENT if each.time_s is None else amounts.duration(each.time_s.value)


def _usd(each: Candidate) -> str:
    usd = amounts.usable(each.usd)
    return ABSENT if usd is None else amounts.money(usd.value)


def _hover(each: Candidate) -> tuple[str, ...]:
    assert each.time_s is not None
    strategy = each.strategy_text
    return (
        title_of(each),
        f"{_duration(each)} ({amounts.duration_range(each.time_s)})",
        *(() if each.usd is None else (_usd(each),)),
        *(f"{sentence(one.name)}: {amounts.duration(one.time_s.value)}" for one in each.estimates),
        *(() if strategy is None else wrap(sentence(strategy), _HOVER_CHARACTERS)),
    )


def sizes_table(answer: Answer, candidates: Sequence[Candidate], *, is_brief: bool = False) -> Table:
    """Candidates as rows, the recommended one marked, those that break a limit with the reason."""
    columns, leads = _leads(answer, candidates, is_brief=is_brief)
    is_one_kind = len({(each.system, each.terms) for each in answer.candidates}) == 1
    with_speedup = not is_brief or is_one_kind
    known = [each for each in candidates if each.time_s is not None]
    smallest = {group: members[0] for group, members in groups(known).items()}
    return Table(
        name="answer-sizes",
        caption="Around the choice" if is_brief else "Every system and size",
        columns=(
            *columns,
            Column(title="Time", is_number=True),
            Column(title="90 % range", is_number=True, meaning="in the unit of the time"),
            *(
                (Column(title="Speedup", is_number=True, meaning="over the smallest size listed"),)
                if with_speedup
                else ()
            ),
            Column(title="USD", is_number=True),
            Column(title="Status"),
            *(() if is_brief else (Column(title="Energy", is_number=True, is_wide=True),)),
            *(() if is_brief else (Column(title="MFU", is_number=True, is_wide=True),)),
        ),
        rows=tuple(
            (
                *lead,
                *_figures(each),
                *((_speedup(each, smallest.get((each.system, each.terms))),) if with_speedup else ()),
                amount(each.usd, amounts.digits),
                _status(answer, each),
                *(() if is_brief else _power(each)),
            )
            for lead, each in zip(leads, candidates, strict=True)
        ),
        marked=next((at for at, each in enumerate(candidates) if _is_recommended(answer, each)), None),
    )


def _is_recommended(answer: Answer, each: Candidate) -> bool:
    return answer.recommended is not None and each.id == answer.recommended.id


def _several(answer: Answer) -> bool:
    return len({each.system for each in answer.candidates}) > 1


def _leads(
    answer: Answer, candidates: Sequence[Candidate], *, is_brief: bool = False
) -> tuple[list[Column], list[list[Cell]]]:
    """The columns that name a candidate: system and terms only where they differ, in one if brief."""
    several = _several(answer)
    with_terms = len({each.terms for each in answer.candidates}) > 1
    in_one = is_brief and several and with_terms
    with_terms = with_terms and not in_one
    columns = [Column(title="System", is_header=True)] if several else []
    columns.append(Column(title="N", is_number=True, is_header=not several, meaning="number of accelerators"))
    columns += [Column(title="Terms")] if with_terms else []
    leads = []
    for each in candidates:
        terms = f", {WORDS[each.terms]}" if in_one and each.terms != "on_demand" else ""
        lead = [Cell(text=f"{chip_of(each.title)}{terms}", key=each.system)] if several else []
        lead.append(number(each.num_accelerators))
        leads.append(lead + ([Cell(text=WORDS[each.terms], key=each.terms)] if with_terms else []))
    return columns, leads


def _estimates_table(answer: Answer) -> Table:
    """The time by each estimator, results submitted, and the strategy, of every candidate."""
    columns, leads = _leads(answer, answer.candidates)
    return Table(
        name="answer-estimates",
        caption="Working time by each estimator with its weight, and what the strategy needs",
        columns=(
            *columns,
            *(Column(title=name, is_number=True) for name in ESTIMATORS.values()),
            Column(title="Best result", is_number=True, meaning="fastest result submitted on this size"),
            Column(title="Batch", is_number=True),
            Column(title="Memory", is_number=True),
            Column(title="Strategy"),
        ),
        rows=tuple((*lead, *_details(each)) for lead, each in zip(leads, answer.candidates, strict=True)),
    )


def _figures(each: Candidate) -> Iterator[Cell]:
    time = each.time_s
    yield number(None if time is None else time.value, amounts.duration)
    yield Cell(text=ABSENT) if time is None else Cell(text=amounts.duration_ends(time), key=time.high)


def _speedup(each: Candidate, smallest: Candidate | None) -> Cell:
    """Over the smallest size listed of the same system and terms."""
    if each.time_s is None or smallest is None or smallest.time_s is None:
        return Cell(text=ABSENT)
    ratio = smallest.time_s.value / each.time_s.value
    return number(ratio, amounts.factor)


def _status(answer: Answer, each: Candidate) -> Cell:
    if _is_recommended(answer, each):
        return Cell(text="", badge=Badge(text="recommended", tone="good"), key="0")
    if each.time_s is None:
        return Cell(text="no estimate", key="3", detail=sentence(each.why_not or ""))
    return Cell(text=", ".join(SHORT[broken.name] for broken in each.broken), key="2" if each.broken else "1")


def _power(each: Candidate) -> Iterator[Cell]:
    yield amount(each.energy_j, amounts.watt_hours)
    yield number(each.mfu, amounts.share)


def _details(each: Candidate) -> Iterator[Cell]:
    found = {one.estimator: one for one in each.estimates}
    for one in map(found.get, ESTIMATORS):
        weight = "" if one is None else f"weight {format_percent(round(one.weight, 2))}"
        yield number(None if one is None else one.time_s.value, amounts.duration, detail=weight)
    yield number(min((result.score_s for result in each.published), default=None), amounts.duration)
    yield number(each.global_batch_samples)
    yield number(None if each.memory is None else each.memory.needed_bytes, amounts.memory)
    text = each.strategy_text
    yield Cell(text=ABSENT) if text is None else Cell(text=sentence(text), key=text, is_code=True)


def _equilibria(answer: Answer) -> Iterator[Block]:
    """Every meaning of diminishing returns, for the recommended system."""
    kinds: dict[str, list[str]] = {}
    for each in answer.equilibria:
        kinds.setdefault(point_words(each), []).append(each.kind)
    if kinds:
        yield Heading(name="answer-returns", text="Where returns diminish")
        yield Bullets(
            items=tuple(
                (strong(f"{capital(listed(names))}: "), sentence(f"{words}."))
                for words, names in kinds.items()
            )
        )


def around_choice(answer: Answer, num_rows: int) -> tuple[Candidate, ...]:
    """At most so many candidates: the recommended one, the best of other systems, sizes next to it."""
    best = answer.recommended
    if best is None:
        refusal = answer.refusal
        shown = () if refusal is None else (refusal.cheapest, refusal.fastest)
        chosen = {each.id for each in shown if each is not None}
        chosen |= {
            each.candidate for each in (() if refusal is None else refusal.relaxations) if each.candidate
        }
    else:
        others = [
            each.candidate.id
            for each in answer.alternatives
            if (each.candidate.system, each.candidate.terms) != (best.system, best.terms)
        ]
        near = sorted(
            (each for each in answer.candidates if (each.system, each.terms) == (best.system, best.terms)),
            key=lambda each: _distance(each, best),
        )
        chosen = set(list(dict.fromkeys((best.id, *others, *(each.id for each in near))))[:num_rows])
    return tuple(each for each in answer.candidates if each.id in chosen)[:num_rows]


def _distance(each: Candidate, best: Candidate) -> float:
    """How many times as many, or as few."""
    ratio = each.num_accelerators / best.num_accelerators
    return max(ratio, 1.0 / ratio)


def changes_blocks(answer: Answer) -> tuple[Block, ...]:
    """The alternatives, when each wins, and what would flip the answer."""
    blocks: list[Block] = []
    if answer.alternatives:
        items = tuple(alternative_spans(answer, each) for each in answer.alternatives)
        blocks += [prose("The closest alternatives:"), Bullets(items=items)]
    if answer.flips:
        blocks.append(_flips_table(answer))
    elif answer.recommended is not None:
        blocks.append(prose("No price, speed or limit within a factor of ten changes the answer."))
    return tuple(blocks)


def alternative_spans(answer: Answer, each: Alternative) -> tuple[Span, ...]:
    """One alternative and when it wins; its size alone where all else is as recommended."""
    one, best = each.candidate, answer.recommended
    takes = ", ".join(part for part in (_duration(one), _usd(one)) if part != ABSENT)
    named = offer_title(one)
    if best is not None and (one.system, one.terms) == (best.system, best.terms):
        named = count(one.num_accelerators)
    return (strong(named), f" ({takes}): wins {sentence(each.wins_when)}.")


def flip_words(answer: Answer, each: Flip) -> str:
    """One input, its value now, and the value at which another candidate is taken."""
    side = "below" if each.flips_at < each.value else "above"
    to = offer_title(answer.candidate(each.to))
    now, then = (amounts.quantity(value, each.unit) for value in (each.value, each.flips_at))
    moved = flip_input(answer, each)
    if then == now:
        return sentence(f"{moved} slightly {side} {now}: {to}")
    return sentence(f"{moved} {side} {then} (now {now.removesuffix(f' {each.unit}')}): {to}")


def flip_input(answer: Answer, each: Flip) -> str:
    """The input that moves, its system by its title."""
    titles = {system.name: chip_of(system.title) for system in answer.systems}
    return each.quantity if each.system is None else each.quantity.replace(each.system, titles[each.system])


def _flips_table(answer: Answer) -> Table:
    return Table(
        name="answer-flips",
        caption="What would change the answer: the nearest value of each input at which it does",
        columns=(
            Column(title="Input", is_header=True),
            Column(title="Now", is_number=True),
            Column(title="Changes at", is_number=True),
            Column(title="To"),
        ),
        rows=tuple(
            (
                named(capital(flip_input(answer, each))),
                Cell(text=amounts.quantity(each.value, each.unit), key=each.value),
                Cell(text=amounts.quantity(each.flips_at, each.unit), key=each.flips_at),
                Cell(text=offer_title(answer.candidate(each.to)), key=each.to),
            )
            for each in answer.flips
        ),
    )


def members_of_choice(answer: Answer) -> list[Candidate]:
    """Sizes of the recommended system on its terms; of the fastest of all where nothing is recommended."""
    of = answer.recommended or (None if answer.refusal is None else answer.refusal.fastest)
    return [] if of is None else same_group(answer, of)
