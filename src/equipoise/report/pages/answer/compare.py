"""All systems and sizes: tables, charts, the closest alternatives, and what would change the answer."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from equipoise.decide.answer import Alternative, Answer, Candidate, Flip
from equipoise.decide.evidence import EstimatorName
from equipoise.economics.costs import WORDS
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Bullets,
    Cell,
    ColumnOf,
    Fold,
    Heading,
    Panels,
    Span,
    Table,
    names,
    number,
    numbers,
    prose,
    strong,
    table_of,
    words,
)
from equipoise.report.format import capital, count, listed, sentence
from equipoise.report.pages.answer.charts import time_chart
from equipoise.report.pages.answer.head import (
    RECOMMENDED,
    chip_of,
    groups,
    is_recommended,
    limits_broken,
    offer_title,
    point_words,
    same_group,
    takes,
)
from equipoise.units import format_percent

ESTIMATORS: Final[dict[EstimatorName, str]] = {
    "published": "Published",
    "measured": "Your runs",
    "model": "Model",
}
_MOST_SIZES: Final = 5  # of the short form
_MOST_SYSTEMS: Final = 8  # of the short form, where systems for rent are compared


def comparison_blocks(answer: Answer) -> tuple[Block, ...]:
    """The charts and the table of every candidate."""
    known = [each for each in answer.candidates if each.time_s is not None]
    best = answer.recommended
    charts = () if len(known) < 2 else (time_chart("answer-times", known, best),)  # noqa: PLR2004
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


TIME: Final = numbers("Time", "time_s.value", amounts.duration)
ENDS: Final = numbers(
    "90 % range",
    lambda each: each.time_s and Cell(text=amounts.duration_ends(each.time_s), key=each.time_s.high),
    meaning="in the unit of the time",
)
ENERGY: Final = numbers("Energy", "energy_j", amounts.watt_hours, is_wide=True)


def sizes_table(answer: Answer, candidates: Sequence[Candidate], *, is_brief: bool = False) -> Table:
    """Candidates as rows, the recommended one marked, those that break a limit with the reason."""
    with_speedup = not is_brief or len({(each.system, each.terms) for each in answer.candidates}) == 1
    known = [each for each in candidates if each.time_s is not None]
    smallest = {group: members[0] for group, members in groups(known).items()}
    speedup = numbers(
        "Speedup",
        lambda each: _speedup(each, smallest.get((each.system, each.terms))),
        amounts.factor,
        meaning="over the smallest size listed",
    )
    columns = (
        *_lead_columns(answer, is_brief=is_brief),
        TIME,
        ENDS,
        *((speedup,) if with_speedup else ()),
        numbers(amounts.currency(), "usd", amounts.sums),
        words("Status", lambda each: _status(answer, each)),
        *(() if is_brief else (ENERGY, numbers("MFU", "mfu", amounts.share, is_wide=True))),
    )
    return table_of(
        "answer-sizes",
        columns,
        candidates,
        caption="Around the choice" if is_brief else "Every system and size",
        marked=next((at for at, each in enumerate(candidates) if is_recommended(answer, each)), None),
    )


def _lead_columns(answer: Answer, *, is_brief: bool = False) -> Iterator[ColumnOf]:
    """The columns that name a candidate: system and terms only where they differ, in one if brief."""
    several = len({each.system for each in answer.candidates}) > 1
    with_terms = len({each.terms for each in answer.candidates}) > 1
    in_one = is_brief and several and with_terms

    def system(each: Candidate) -> str:
        terms = f", {WORDS[each.terms]}" if in_one and each.terms != "on_demand" else ""
        return f"{chip_of(each.title)}{terms}"

    if several:
        yield names("System", system)
    yield numbers("N", "num_accelerators", is_header=not several, meaning="number of accelerators")
    if with_terms and not in_one:
        yield words("Terms", lambda each: WORDS[each.terms])


def _estimates_table(answer: Answer) -> Table:
    """The time by each estimator, results submitted, and the strategy, of every candidate."""
    columns = (
        *_lead_columns(answer),
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
    return table_of("answer-estimates", columns, answer.candidates, caption=caption)


def _estimate(name: EstimatorName) -> Callable[[Candidate], Cell | None]:
    """The time of a candidate by one estimator, its weight below."""

    def cell(each: Candidate) -> Cell | None:
        one = next((one for one in each.estimates if one.estimator == name), None)
        weight = "" if one is None else f"weight {format_percent(round(one.weight, 2))}"
        return None if one is None else number(one.time_s.value, amounts.duration, detail=weight)

    return cell


def strategy_cell(text: str | None) -> Cell | None:
    """A strategy in its text form."""
    return None if text is None else Cell(text=sentence(text), key=text, is_code=True)


def _speedup(each: Candidate, smallest: Candidate | None) -> float | None:
    """Over the smallest size listed of the same system and terms."""
    if each.time_s is None or smallest is None or smallest.time_s is None:
        return None
    return smallest.time_s.value / each.time_s.value


def _status(answer: Answer, each: Candidate) -> Cell:
    if is_recommended(answer, each):
        return Cell(text="", badge=RECOMMENDED, key="0")
    if each.time_s is None:
        return Cell(text="no estimate", key="3", detail=sentence(each.why_not or ""))
    return Cell(text=limits_broken(each), key="2" if each.broken else "1")


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
    """At most so many candidates: the recommended one, the best of other systems, sizes next to it.

    Where the question leaves the system open: the fewest accelerators of each other that keep the limits, of
    the `_MOST_SYSTEMS` where that costs least; else at most `_MOST_SIZES` rows.
    """
    best = answer.recommended
    if best is not None and answer.question.compares_rentable:
        kept = [each for each in answer.candidates if each.time_s is not None and not each.broken]
        fewest = [members[0] for members in groups(kept).values()]
        fewest.sort(key=lambda each: math.inf if each.usd is None else each.usd.value)
        others = [each.id for each in fewest if (each.system, each.terms) != (best.system, best.terms)]
        chosen = {best.id, *others[: min(num_rows - 1, _MOST_SYSTEMS)]}
        return tuple(each for each in answer.candidates if each.id in chosen)
    num_rows = min(num_rows, _MOST_SIZES)
    if best is None:
        refusal = answer.refusal
        shown = () if refusal is None else (refusal.cheapest, refusal.fastest)
        chosen = {each.id for each in shown if each is not None}
        chosen |= {
            each.candidate for each in (() if refusal is None else refusal.relaxations) if each.candidate
        }
    else:
        others = [
            each.candidate for each in answer.offers if (each.system, each.terms) != (best.system, best.terms)
        ]
        near = sorted(
            (each for each in answer.candidates if (each.system, each.terms) == (best.system, best.terms)),
            key=lambda each: _distance(each, best),
        )
        smaller = [each for each in near if each.num_accelerators < best.num_accelerators]
        near = [*smaller[:1], *near]  # what the recommended size is compared with, however few rows there are
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
    title = offer_title(one)
    if best is not None and (one.system, one.terms) == (best.system, best.terms):
        title = count(one.num_accelerators)
    return (strong(title), f" ({takes(one)}): wins {sentence(each.wins_when)}.")


def flip_words(answer: Answer, each: Flip) -> str:
    """One input, its value now, and the value at which another candidate is taken."""
    side = "below" if each.flips_at < each.value else "above"
    to = offer_title(answer.candidate(each.to))
    now, then = (amounts.quantity(value, each.unit) for value in (each.value, each.flips_at))
    unit = f" {each.unit.replace('USD', amounts.currency())}"
    moved = flip_input(answer, each)
    if then == now:
        return sentence(f"{moved} slightly {side} {now}: {to}")
    return sentence(f"{moved} {side} {then} (now {now.removesuffix(unit)}): {to}")


def flip_input(answer: Answer, each: Flip) -> str:
    """The input that moves, its system by its title."""
    titles = {system.name: chip_of(system.title) for system in answer.systems}
    return each.quantity if each.system is None else each.quantity.replace(each.system, titles[each.system])


def _flips_table(answer: Answer) -> Table:
    return table_of(
        "answer-flips",
        (
            names("Input", lambda each: capital(flip_input(answer, each))),
            numbers("Now", lambda each: _quantity(each.value, each.unit)),
            numbers("Changes at", lambda each: _quantity(each.flips_at, each.unit)),
            words("To", lambda each: offer_title(answer.candidate(each.to))),
        ),
        answer.flips,
        caption="What would change the answer: the nearest value of each input at which it does",
    )


def _quantity(value: float, unit: str) -> Cell:
    return Cell(text=amounts.quantity(value, unit), key=value)


def members_of_choice(answer: Answer) -> list[Candidate]:
    """Sizes of the recommended system on its terms; of the fastest of all where nothing is recommended."""
    of = answer.recommended or (None if answer.refusal is None else answer.refusal.fastest)
    return [] if of is None else same_group(answer, of)
