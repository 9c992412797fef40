"""The pages of `predict`, times by size, and of `advise --ask`, the largest size within the limits."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from equipoise.calibration import EvidenceSource
from equipoise.decide.answer import Candidate, TimeValue
from equipoise.decide.prediction import Prediction
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.solve_for import Reaches
from equipoise.decide.solve_for.budget_reach import BudgetReach, ReachLimit, Within
from equipoise.intervals import LEVEL, Interval
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    Code,
    Labelled,
    Page,
    Panels,
    Section,
    Span,
    Strong,
    Table,
    bullets,
    facts,
    more_note,
    names,
    note,
    numbers,
    page_within,
    prose,
    table_of,
    words,
)
from equipoise.report.charts import Annotation, Axis, Chart, line_with_band, series_mark
from equipoise.report.format import (
    DASH,
    accelerator_name,
    capital,
    count,
    listed,
    printable,
    sentence,
    workload_name,
)
from equipoise.report.pages.answer.basis import notes_blocks
from equipoise.report.pages.answer.candidates import (
    ENDS,
    TIME,
    chip_of,
    offer_title,
    queue_within,
    takes,
    title_of,
)
from equipoise.report.pages.answer.compare import star, time_chart
from equipoise.report.pages.answer.costs import hour_usd
from equipoise.report.pages.published_steps import near_blocks
from equipoise.scaling.equilibrium import default_answer, point_words, returns_words
from equipoise.spec.hardware import TERM_WORDS
from equipoise.spec.transformer import Transformer
from equipoise.stats import by_key
from equipoise.units import (
    SI_PREFIXES,
    format_percent,
    format_si,
    format_si_down,
    format_stated,
    plural,
    whole_percent,
)

_MOST_LAWS: Final = 3
_MOST_EVIDENCE: Final = 12


def _about(found: Prediction) -> str:
    what = "Your times" if found.workload is None else workload_name(found.workload)
    chip = None if found.accelerator is None else accelerator_name(found.accelerator)
    if found.answer is not None:  # its titles also cover workloads and systems from the user's files
        what = printable(found.answer.workload.title)
        chip = next(
            (each.title for each in found.answer.candidates if each.system == found.accelerator), chip
        )
    on = "" if chip is None else f" on {chip_of(chip)}"
    results = f", from its results in {found.round}" if found.round else ""
    work = f"time for {found.work}" if found.answer is None else f"time to {found.work}"
    return sentence(f"{what}{on}{results}: {work}")


def _headline(found: Prediction) -> str:
    known = [each for each in found.candidates if each.time_s is not None]
    if not known:
        return "No time can be estimated"
    first, last = known[0], known[-1]
    if first is last:
        return f"{title_of(first)}: {takes(first)}"
    times = f"{amounts.duration(first.known_time_s.value)} to {amounts.duration(last.known_time_s.value)}"
    money = ""
    if first.usd is not None and last.usd is not None:
        money = f", {amounts.sums(first.usd.value)} to {amounts.money(last.usd.value)}"
    return f"{count(first.num_accelerators)} to {title_of(last)}: {times}{money}"


def _evenly_spaced(
    candidates: Sequence[Candidate], num_rows: int, *, kept: int | None
) -> Sequence[Candidate]:
    """At most `num_rows` (at least two) candidates, evenly spaced, with first, last and size `kept`."""
    num_rows = max(num_rows, 2)
    last = len(candidates) - 1
    if last < num_rows:
        return candidates
    rows = [round(row * last / (num_rows - 1)) for row in range(num_rows)]
    at = next((place for place, each in enumerate(candidates) if each.num_accelerators == kept), None)
    between = range(1, num_rows - 1)
    if at is not None and at not in rows and between:  # in place of the next row
        rows[min(between, key=lambda row: abs(rows[row] - at))] = at
    return [candidates[row] for row in rows]


def _times_blocks(found: Prediction) -> tuple[Block, ...]:
    known = [each for each in found.candidates if each.time_s is not None]
    charts = (time_chart("prediction-times", known),) if len(known) > 1 else ()
    shown = {each.num_accelerators for each in known}
    outside = [(why, size) for size, why in sorted(found.outside.items()) if size in shown]
    return (
        Panels(charts=charts, legend="System"),
        _table(found, found.candidates),
        *(note(sentence(f"Extrapolated at {each}.")) for each in _by_reason(outside)),
        *(note(sentence(f"No time at {each}.")) for each in _by_reason(_untimed(found))),
        _price(found),
    )


def _untimed(found: Prediction) -> Iterator[tuple[str, int]]:
    """The reason and the size, for each size without a time."""
    untimed = (each for each in found.candidates if each.time_s is None)
    return ((each.why_not or "no estimate", each.num_accelerators) for each in untimed)


def _by_reason(sizes: Iterable[tuple[str, int]]) -> Iterator[str]:
    """For each reason, the sizes that it applies to, and the reason."""
    return (f"{listed(map(count, held))}: {why}" for why, held in by_key(sizes).items())


def _table(found: Prediction, candidates: Sequence[Candidate]) -> Table:
    def remark(each: Candidate) -> Cell:
        if each.time_s is None:
            return Cell(text="", badge=Badge(text="no time", tone="quiet"), key="2")
        if each.num_accelerators in found.outside:
            return Cell(text="", badge=Badge(text="extrapolated", tone="quiet"), key="1")
        return Cell(text="", key="0")

    def chance(each: Candidate) -> float | None:
        return next((one.probability for one in each.constraints if one.name == "deadline_s"), None)

    deadline_s = found.question.deadline_s
    within = "" if deadline_s is None else format_stated(deadline_s)
    kept = numbers(f"In {within}", chance, amounts.probability, meaning="chance to keep the deadline")
    columns = (
        numbers("N", "num_accelerators", is_header=True, meaning="number of accelerators"),
        TIME,
        (replace(ENDS[0], meaning=None), ENDS[1]),
        *((kept,) if within else ()),
        numbers("Hours", "accelerator_hours", amounts.digits, meaning="accelerator-hours"),
        numbers(amounts.currency(), "usd", amounts.sums),
        numbers("Energy", "energy_j", amounts.watt_hours),
        numbers("CO2", "carbon_kg", amounts.mass),
        words("", remark),
    )
    return table_of("prediction-times", columns, candidates, caption="Times by number of accelerators")


def _price(found: Prediction) -> Block:
    price = next((each.price for each in found.candidates if each.price is not None), None)
    if price is None:
        return note("No price is known: give --price.")
    return note(
        sentence(f"{amounts.rate(price.usd_per_accelerator_hour)} per accelerator-hour: {price.basis}.")
    )


def _returns_blocks(found: Prediction) -> tuple[Block, ...]:
    if not found.equilibria:
        return (prose(sentence(f"Not known: {found.no_equilibria}.")),)
    first = default_answer(found.equilibria)
    ordered = sorted(found.equilibria, key=lambda each: each is not first)
    return (
        prose("The smallest size at which returns diminish comes first."),
        bullets((Strong(f"{capital(each.kind)}: "), sentence(f"{point_words(each)}.")) for each in ordered),
        *_values(found),
        facts(_hour_asked(found)),
    )


def _values(found: Prediction) -> Iterator[Block]:
    """The cheapest size, money and time together, by the value of an hour."""
    if len(found.time_values) > 1:
        unit = f"{amounts.currency()} per hour"
        sizes = [f"{_size(found, each)} from {hour_usd(each)} {unit}" for each in found.time_values]
        yield note(f"Size with the least money and time together, by the value of an hour: {listed(sizes)}.")


def _size(found: Prediction, least: TimeValue) -> str:
    """The number of accelerators of a candidate, which may be one that only the answer has."""
    known = found.candidates if found.answer is None else found.answer.candidates
    return next(count(each.num_accelerators) for each in known if each.id == least.candidate)


def _hour_asked(found: Prediction) -> Iterator[Labelled]:
    """The size that costs least at the value of an hour that the question states."""
    asked = found.question.value_of_time_usd_per_hour
    best = [each for each in found.time_values if asked is not None and each.from_usd_per_hour <= asked]
    if asked is None or not best:
        return
    size = _size(found, best[-1])
    yield "If time", f"is worth {amounts.money(asked)} per hour: {size} cost least, money and time together."


def _evidence_blocks(found: Prediction) -> tuple[Block, ...]:
    known = [each for each in found.evidence if each.time_s is not None]
    return (facts(_rests_on(found)), _evidence_table(known), *near_blocks(found.answer))


def _rests_on(found: Prediction) -> Iterator[Labelled]:
    """The law, the submitter whose times it describes, and the accuracy of such predictions."""
    if found.law is not None:
        shares = sorted(found.law.shares.items(), key=lambda item: -item[1])[:_MOST_LAWS]
        parts = ", ".join(f"{name} {whole_percent(share)}" for name, share in shares)
        combined = f" ({parts})" if len(found.law.shares) > 1 else ""
        yield "Law", sentence(f"{found.law.name}{combined}; {found.law.assumes}")
    yield from _submitter(found)
    for accuracy in dict.fromkeys(_accuracy(found)):
        yield "Accuracy", sentence(accuracy)


def _submitter(found: Prediction) -> Iterator[Labelled]:
    if found.law is None or found.question.times_from is not None:
        return
    words = "the best at each size" if found.question.submitter == "best" else "one who is new to the size"
    yield "Submitter", sentence(f"{words}.")


def _accuracy(found: Prediction) -> Iterator[str]:
    if found.answer is not None:
        yield from (each.words for each in found.answer.records)
    else:
        yield from (one.why for each in found.candidates for one in each.estimates if one.why)


_EVIDENCE_COLUMNS: Final = (
    names("Source", "ref"),
    numbers("N", "num_accelerators"),
    numbers("Time", "time_s", amounts.duration),
)


def _evidence_table(known: Sequence[EvidenceSource]) -> Table:
    shown = sorted(known, key=lambda each: (-(each.share or 0.0), each.num_accelerators or 0))
    more = "" if len(known) <= _MOST_EVIDENCE else f", {_MOST_EVIDENCE} of {len(known):,}"
    caption = f"Published and measured times it is based on{more}"
    return table_of("prediction-evidence", _EVIDENCE_COLUMNS, shown[:_MOST_EVIDENCE], caption=caption)


def _brief(found: Prediction, num_rows: int) -> tuple[Block, ...]:
    first = default_answer(found.equilibria).num_accelerators if found.equilibria else None
    is_asked = found.question.sizes is not None
    worth = [each for each in found.candidates if is_asked or each.time_s is not None] or found.candidates
    shown = _evenly_spaced(worth, num_rows, kept=first)
    return (
        _table(found, shown),
        facts(_brief_facts(found)),
        more_note(
            (len(found.candidates) - len(shown), "size"),
            plural(len(found.evidence), "source"),
            (len(found.notes), "note"),
        ),
    )


def _among_words(found: Prediction) -> str:
    """The sizes that the diminishing-returns analysis considered, if others are shown."""
    is_found = bool(found.equilibria) and default_answer(found.equilibria).is_found
    if found.answer is None or found.question.sizes is None or not is_found:
        return ""
    tried = [each.num_accelerators for each in found.answer.candidates if each.time_s is not None]
    return f", among {count(min(tried))} to {count(max(tried))}" if tried else ""


def _brief_facts(found: Prediction) -> Iterator[Labelled]:
    left_out = ((why, size) for size, why in found.left_out.items())
    untimed = _untimed(found) if found.question.sizes is not None else ()
    for each in _by_reason([*left_out, *untimed]):
        yield "No time", sentence(each)
    if found.equilibria:
        yield "Returns", f"{capital(returns_words(found.equilibria, subject='they'))}{_among_words(found)}"
    else:
        yield "Returns", sentence(f"Not known: {found.no_equilibria}")
    yield from _hour_asked(found)
    yield from _submitter(found)
    for kind in ("not_used", "check"):
        for remark in found.notes:
            if remark.kind == kind:
                yield remark.label.rstrip(": "), sentence(remark.words)
    accuracy = next(_accuracy(found), None)
    if accuracy is not None:
        yield "Accuracy", sentence(accuracy)


PREDICTION: Final[Page[Prediction]] = page_within(
    Page(
        title=_about,
        about=_about,
        headline=_headline,
        sections=(
            Section("times", "Times by size", _times_blocks, needs=("candidates",)),
            Section("returns", "Where returns diminish", _returns_blocks),
            Section("evidence", "Evidence", _evidence_blocks, needs=("evidence",)),
            Section("notes", "Notes", notes_blocks, needs=("notes",), is_extra=True),
        ),
        closing=lambda _: ("Times that nobody has measured are predictions.",),
        brief=_brief,
    ),
    lambda found: amounts.written_in(found.question.own_currency),
)


# --- what the limits allow


_ENDS: Final[dict[ReachLimit, str]] = {
    "budget": "the budget",
    "deadline": "the deadline",
    "memory": "the memory: budget and deadline would allow more",
}


def _limits(question: TrainingQuery) -> str:
    stated = [] if question.budget_usd is None else [amounts.money(question.budget_usd)]
    if question.deadline_s is not None:
        stated.append(format_stated(question.deadline_s) + queue_within(question))
    return " and ".join(stated)


def _size_with_unit(found: BudgetReach) -> str:
    """The size found, with its unit."""
    return f"{format_si_down(found.size.value)} {'parameters' if found.ask == 'model' else _unit(found)}"


def _span(found: Interval) -> str:
    """The bounds of an interval of sizes."""
    return f"{format_si(found.low)} {DASH} {format_si(found.high)}"


def _shape(shape: Transformer) -> str:
    keys = f" ({shape.kv_heads} KV)" if shape.kv_heads != shape.heads else ""
    dense = f", feed-forward {shape.ffn_hidden:,}" if shape.num_dense_blocks else ""
    dense += f" in {plural(shape.num_dense_blocks, 'layer')}" if dense and shape.experts else ""
    experts = f", {shape.experts} experts of {shape.expert_ffn_hidden:,}" if shape.experts else ""
    return f"{shape.layers} layers, hidden {shape.hidden:,}, {shape.heads} heads{keys}{dense}{experts}"


def _reach_about(found: Reaches) -> str:
    names = listed([chip_of(each) for each in found.titles])
    what = "the largest model like" if found.best.ask == "model" else f"the most {_unit(found.best)} for"
    return f"{capital(what)} {printable(found.best.workload.title)} on {names}"


def _reach_headline(found: Reaches) -> str:
    best = found.best
    of = "a model of " if best.ask == "model" else ""
    is_one = best.question.budget_usd is None or best.question.deadline_s is None
    return f"{_limits(best.question)} {'allows' if is_one else 'allow'} {of}{_size_with_unit(best)}"


def _unit(best: BudgetReach) -> str:
    """The unit of an amount of training: tokens, or the samples of the workload."""
    return "tokens" if best.unit == "tokens" else best.workload.samples


def _answer(found: Reaches) -> tuple[Block, ...]:
    best = found.best
    others = [
        f"{offer_title(each.recommended)}: {_size_with_unit(each)} ({_span(each.size)}), "
        f"limited by {_ENDS[each.limit]}"
        for each in found.others
    ]
    return (
        facts(_facts(found, best)),
        *((prose("Other systems:"), bullets(others)) if others else ()),
    )


def _reach_brief(found: Reaches, num_rows: int) -> tuple[Block, ...]:
    best = found.best
    shown = [each for each in best.by_size if not each.candidate.is_between or _is_taken(best, each)]
    at = next((place for place, each in enumerate(shown) if _is_taken(best, each)), 0)
    first = max(0, min(at - num_rows // 2, len(shown) - num_rows))
    rests = capital(sentence(best.assumes[0])) if best.assumes else ""
    return (
        *_answer(found),
        _reach_table(best, shown[first : first + num_rows]),
        *((prose(Strong("Assumes: "), f"{rests}."),) if rests else ()),
        more_note((len(best.by_size), "size"), "assumptions", (len(found.notes), "note")),
    )


def _facts(found: Reaches, best: BudgetReach) -> Iterator[Labelled]:
    taken = best.recommended
    what = "Model" if best.ask == "model" else capital(_unit(best))
    spans = (
        Strong(_size_with_unit(best) if best.ask == "model" else format_si_down(best.size.value)),
        f" ({_span(best.size)}, {format_percent(best.size.level)} range)",
    )
    yield (what, spans)
    if best.ask == "model" and best.shape is not None:
        yield "Shape", _shape(best.shape)
        yield "Trained on", f"{format_si_down(best.training_budget.value)} {_unit(best)}"
    elif best.params is not None and best.unit == "tokens":
        is_mixture = best.shape is not None and best.shape.idle_params > 0
        params = best.shape.active_params if best.shape is not None and is_mixture else best.params.value
        which = "active parameter" if is_mixture else "parameter"
        per_param = f"{amounts.digits(best.training_budget.value / params)} tokens per {which}"
        yield "That is", f"{per_param} ({format_si(params)} {which}s)"
    most = max(best.by_size, key=lambda each: each.amount.value, default=None)
    slower = (
        _faster_model_words(best) if most is None or _is_taken(best, most) else _slower_size_words(best, most)
    )
    yield ("Take", (Strong(offer_title(taken)), slower))
    yield "Time", amounts.time_with_range(taken.known_time_s)
    money: tuple[Span, ...] = ("no price is known (--price)",)
    if taken.usd is not None:
        money = (f"{amounts.money(taken.usd.value)} ({amounts.sum_ends(taken.usd)} {amounts.currency()})",)
    yield "Money", money
    if taken.price is not None:
        rate = amounts.rate(taken.price.usd_per_accelerator_hour)
        basis = TERM_WORDS[taken.terms] if taken.price.offers else sentence(taken.price.basis)
        yield "Price", f"{rate} per accelerator-hour ({basis})"
    if taken.strategy_text is not None:
        yield "Strategy", Code(sentence(taken.strategy_text))
    if taken.global_batch_samples is not None:
        step = "" if taken.step_s is None else f" per step of {amounts.duration(taken.step_s.value)}"
        yield "Batch", f"{plural(taken.global_batch_samples, 'sample')}{step}"
    if found.chosen_for_you:
        yield ("Chosen", capital(sentence("; ".join(found.chosen_for_you))))
    yield "Limited by", _ENDS[best.limit] + (_larger_model_words(best) or _size_limit_words(best))


def _size_limit_words(best: BudgetReach) -> str:
    """Mentions the limit on accelerators if the deadline binds at that many; empty otherwise."""
    stated = best.question.max_accelerators
    if best.limit != "deadline" or best.recommended.num_accelerators != stated:
        return ""
    return f", on your limit of {count(stated)} accelerators"


def _larger_model_words(best: BudgetReach) -> str:
    """What the next larger model would take, if known; empty otherwise."""
    larger = best.larger
    if larger is None:
        return ""
    takes = amounts.duration(larger.time_s)
    if best.limit == "budget" and larger.usd is not None:
        takes = amounts.money(larger.usd)
    return f": {format_si(larger.params)} parameters would take {takes}"


def _slower_size_words(best: BudgetReach, most: Within) -> str:
    """The number of accelerators that allows slightly more but is much slower than the recommended one."""
    slower = most.candidate.known_time_s.value / best.recommended.known_time_s.value
    size, more = most.candidate.num_accelerators, format_si_down(most.amount.value)
    verb = "allows" if size == 1 else "allow"
    return f"; {count(size)} {verb} {more} in {amounts.factor(slower)} the time"


def _faster_model_words(best: BudgetReach) -> str:
    """The next smaller model, if its training is much faster; empty otherwise."""
    smaller = best.faster
    if smaller is None:
        return ""
    takes = amounts.duration(smaller.time_s)
    return f"; {count(smaller.num_accelerators)} train {format_si_down(smaller.params)} parameters in {takes}"


def _reach_sizes(found: Reaches) -> tuple[Block, ...]:
    best = found.best
    if not best.by_size:
        return (prose("The model is searched over all numbers of accelerators at once."),)
    charts = (_chart(best),) if len(best.by_size) > 1 else ()
    return (Panels(charts=charts, legend="Accelerators"), _reach_table(best, best.by_size))


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
    sizes = [f"{format_si_down(each.value)} on {count(size)}" for size, each, _ in points.values()]
    return Chart(
        name="reach-sizes",
        title=f"{capital(_unit(best))} within the limits",
        subtitle=f"shaded: the {format_percent(best.size.level)} range",
        alternative=f"{capital(_unit(best))} by number of accelerators: {', '.join(sizes)}.",
        x=Axis(title="number of accelerators", is_log=True),
        y=Axis(title=f"{prefix.replace('G', 'B')} {_unit(best)}".strip(), is_log=True),
        series=(line, star(best.recommended, *at)),
        notes=(Annotation(x=at[0], y=at[1], text=count(best.recommended.num_accelerators), is_above=True),),
        bands=(band,),
    )


def _hover(best: BudgetReach, each: Within) -> Iterator[str]:
    yield f"{format_si_down(each.amount.value)} {_unit(best)}"
    yield offer_title(each.candidate)
    yield amounts.ranged(each.candidate.time_s, amounts.duration)
    if each.candidate.usd is not None:
        yield amounts.money(each.candidate.usd.value)


def _reach_table(best: BudgetReach, shown: Sequence[Within]) -> Table:
    def ends(each: Within) -> Cell:
        return Cell(text=_span(each.amount), key=each.amount.low)

    columns = (
        numbers("N", "candidate.num_accelerators", is_header=True, meaning="number of accelerators"),
        numbers(capital(_unit(best)), "amount.value", format_si_down),
        numbers(f"{format_percent(LEVEL)} range", ends),
        numbers("Time", "candidate.time_s", amounts.duration),
        numbers(amounts.currency(), "candidate.usd", amounts.sums),
        words("Limited by", "limit"),
        words("", lambda each: Cell(text="recommended" if _is_taken(best, each) else "")),
    )
    caption = f"Each number of accelerators: the most {_unit(best)} within the limits"
    return table_of("reach-sizes", columns, shown, caption=caption)


def _assumed(found: Reaches) -> tuple[Block, ...]:
    rests = [*found.best.assumes, "the range is that of time and price at the limit"]
    return (bullets(f"{capital(sentence(each))}." for each in rests),)


REACH: Final[Page[Reaches]] = page_within(
    Page(
        title=lambda found: f"{printable(found.best.workload.title)}: {_reach_headline(found)}",
        about=_reach_about,
        headline=_reach_headline,
        sections=(
            Section("answer", "The answer", _answer),
            Section("sizes", "By number of accelerators", _reach_sizes),
            Section("assumed", "What is assumed", _assumed),
            Section("notes", "Notes", notes_blocks, needs=("notes",), is_extra=True),
        ),
        closing=lambda _: (
            "Times that nobody has measured are predictions: try the first steps before you spend the money.",
        ),
        brief=_reach_brief,
    ),
    lambda found: amounts.written_in(found.best.question.own_currency),
)
