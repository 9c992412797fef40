"""The page of what budget and deadline allow: how many tokens, or how large a model; what each size does."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.decide.query import TrainingQuery
from equipoise.decide.solve_for import BudgetReach, Reaches, ReachLimit, Within
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Cell,
    Fact,
    Facts,
    Page,
    Panels,
    Section,
    Span,
    Table,
    bullets,
    code,
    more_note,
    numbers,
    prose,
    strong,
    table_of,
    words,
)
from equipoise.report.charts import Axis, Chart, Note, line_with_band, series_mark
from equipoise.report.format import DASH, capital, count, listed, plural, printable, sentence
from equipoise.report.pages.answer.basis import notes_blocks
from equipoise.report.pages.answer.charts import star
from equipoise.report.pages.answer.head import chip_of, title_of
from equipoise.spec.transformer import Transformer
from equipoise.stats import Interval
from equipoise.units import SI_PREFIXES, format_percent, format_si

_ENDS: Final[dict[ReachLimit, str]] = {
    "budget": "the budget",
    "deadline": "the deadline",
    "memory": "the memory: budget and deadline would allow more",
}


def _limits(question: TrainingQuery) -> str:
    """Budget and deadline as stated."""
    stated = [] if question.budget_usd is None else [amounts.money(question.budget_usd)]
    stated += [] if question.deadline_s is None else [amounts.duration(question.within_s)]
    return " and ".join(stated)


def _sized(found: BudgetReach) -> str:
    """The answer, with its unit."""
    return f"{format_si(found.size.value)} {'parameters' if found.ask == 'model' else found.unit}"


def _span(found: Interval) -> str:
    """The ends of an interval of sizes."""
    return f"{format_si(found.low)} {DASH} {format_si(found.high)}"


def _shape(shape: Transformer) -> str:
    experts = f", {shape.experts} experts" if shape.experts else ""
    return (
        f"{shape.layers} layers, hidden {shape.hidden:,}, {shape.heads} heads, feed-forward "
        f"{shape.ffn_hidden or shape.expert_ffn_hidden:,}{experts}"
    )


def _about(found: Reaches) -> str:
    names = listed([chip_of(each.title) for each in (found.best, *found.others)])
    what = "the largest model like" if found.best.ask == "model" else f"the most {found.best.unit} for"
    return f"{capital(what)} {printable(found.best.workload.title)} on {names}"


def _headline(found: Reaches) -> str:
    best = found.best
    of = "a model of " if best.ask == "model" else ""
    return f"{_limits(best.question)} allow{'s' * _is_one(best.question)} {of}{_sized(best)}"


def _is_one(question: TrainingQuery) -> bool:
    return question.budget_usd is None or question.deadline_s is None


def _answer(found: Reaches) -> tuple[Block, ...]:
    best = found.best
    others = [
        f"{chip_of(each.title)}: {_sized(each)} ({_span(each.size)}), limited by {_ENDS[each.limit]}"
        for each in found.others
    ]
    return (
        Facts(items=tuple(_facts(found, best))),
        *((prose("Other systems:"), bullets(others)) if others else ()),
    )


def _brief(found: Reaches, num_rows: int) -> tuple[Block, ...]:
    """What is allowed, the sizes around the recommended one, and what it assumes, on one screen."""
    best = found.best
    at = next((place for place, each in enumerate(best.by_size) if _is_taken(best, each)), 0)
    first = max(0, min(at - num_rows // 2, len(best.by_size) - num_rows))
    rests = capital(sentence(best.assumes[0])) if best.assumes else ""
    return (
        *_answer(found),
        _table(best, best.by_size[first : first + num_rows]),
        *((prose(strong("Assumes: "), f"{rests}."),) if rests else ()),
        more_note(
            plural(len(best.by_size), "size") if best.by_size else "",
            "assumptions",
            plural(len(found.notes), "note") if found.notes else "",
        ),
    )


def _facts(found: Reaches, best: BudgetReach) -> Iterator[Fact]:
    taken = best.recommended
    what = "Model" if best.ask == "model" else capital(best.unit)
    spans = (
        strong(_sized(best) if best.ask == "model" else format_si(best.size.value)),
        f" ({_span(best.size)}, {format_percent(best.size.level)} range)",
    )
    yield Fact(label=what, spans=spans)
    if best.ask == "model" and best.shape is not None:
        yield Fact(label="Shape", spans=(_shape(best.shape),))
        yield Fact(label="Trained on", spans=(f"{format_si(best.training_budget.value)} {best.unit}",))
    elif best.params is not None and best.unit == "tokens":
        per_param = f"{amounts.digits(best.training_budget.value / best.params.value)} tokens per parameter"
        yield Fact(label="That is", spans=(f"{per_param} ({format_si(best.params.value)} parameters)",))
    yield Fact(label="Take", spans=(strong(title_of(taken)),))
    assert taken.time_s is not None
    yield Fact(label="Time", spans=(amounts.time_with_range(taken.time_s),))
    money: tuple[Span, ...] = ("no price is known (--price)",)
    if taken.usd is not None:
        money = (f"{amounts.money(taken.usd.value)} ({amounts.ends(taken.usd, amounts.money)})",)
    yield Fact(label="Money", spans=money)
    if taken.strategy_text is not None:
        yield Fact(label="Strategy", spans=(code(sentence(taken.strategy_text)),))
    if taken.global_batch_samples is not None:
        step = "" if taken.step_s is None else f" per step of {amounts.duration(taken.step_s.value)}"
        yield Fact(label="Batch", spans=(f"{plural(taken.global_batch_samples, 'sample')}{step}",))
    if found.chosen_for_you:
        yield Fact(label="Chosen", spans=(capital(sentence("; ".join(found.chosen_for_you))),))
    yield Fact(label="Limited by", spans=(_ENDS[best.limit],))


def _sizes(found: Reaches) -> tuple[Block, ...]:
    best = found.best
    if not best.by_size:
        return (prose("The model is searched over all numbers of accelerators at once."),)
    charts = (_chart(best),) if len(best.by_size) > 1 else ()
    return (Panels(charts=charts, legend="Accelerators"), _table(best, best.by_size))


def _is_taken(best: BudgetReach, each: Within) -> bool:
    return each.candidate.id == best.recommended.id


def _chart(best: BudgetReach) -> Chart:
    fitting = ((name, size) for name, size in reversed(SI_PREFIXES.items()) if best.size.value >= size)
    prefix, scale = next(fitting, ("", 1.0))
    points = {
        each.candidate.id: (float(each.candidate.num_accelerators), each.amount, tuple(_hover(best, each)))
        for each in best.by_size
    }
    line, band = line_with_band("within the limits", series_mark(0), points.values(), scale=scale)
    x, most, _ = points[best.recommended.id]
    at = (x, most.value / scale)
    sizes = [f"{format_si(each.value)} on {count(size)}" for size, each, _ in points.values()]
    return Chart(
        name="reach-sizes",
        title=f"{capital(best.unit)} within the limits",
        subtitle=f"shaded: the {format_percent(best.size.level)} range",
        alternative=f"{capital(best.unit)} by number of accelerators: {', '.join(sizes)}.",
        x=Axis(title="number of accelerators", is_log=True),
        y=Axis(title=f"{prefix} {best.unit}".strip(), is_log=True),
        series=(line, star(best.recommended, *at)),
        notes=(Note(x=at[0], y=at[1], text=count(best.recommended.num_accelerators), is_above=True),),
        bands=(band,),
    )


def _hover(best: BudgetReach, each: Within) -> Iterator[str]:
    yield f"{format_si(each.amount.value)} {best.unit}"
    yield title_of(each.candidate)
    yield amounts.ranged(each.candidate.time_s, amounts.duration)
    if each.candidate.usd is not None:
        yield amounts.money(each.candidate.usd.value)


def _table(best: BudgetReach, shown: Sequence[Within]) -> Table:
    def ends(each: Within) -> Cell:
        return Cell(text=_span(each.amount), key=each.amount.low)

    columns = (
        numbers("N", "candidate.num_accelerators", is_header=True, meaning="number of accelerators"),
        numbers(capital(best.unit), "amount.value", format_si),
        numbers("90 % range", ends),
        numbers("Time", "candidate.time_s", amounts.duration),
        numbers("USD", "candidate.usd", amounts.digits),
        words("Limited by", "limit"),
        words("", lambda each: Cell(text="recommended" if _is_taken(best, each) else "")),
    )
    caption = f"Each number of accelerators: the most {best.unit} within the limits"
    return table_of("reach-sizes", columns, shown, caption=caption)


def _assumed(found: Reaches) -> tuple[Block, ...]:
    rests = [*found.best.assumes, "the range is that of time and price at the limit"]
    return (bullets(f"{capital(sentence(each))}." for each in rests),)


REACH: Final[Page[Reaches]] = Page(
    title=lambda found: f"{printable(found.best.workload.title)}: {_headline(found)}",
    about=_about,
    headline=_headline,
    sections=(
        Section("answer", "The answer", _answer),
        Section("sizes", "By number of accelerators", _sizes),
        Section("assumed", "What is assumed", _assumed),
        Section("notes", "Notes", notes_blocks, needs=("notes",), is_extra=True),
    ),
    closing=lambda _: (
        "Times that nobody has measured are predictions: try the first steps before you spend the money.",
    ),
    brief=_brief,
)
