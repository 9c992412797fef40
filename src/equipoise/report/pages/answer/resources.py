"""Where time, memory and money go: charts by cause and kind, rental terms, and buying."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from equipoise.decide.answer import CONSTRAINTS, Answer, Candidate, Infeasibility, Renting
from equipoise.economics.ownership import Ownership
from equipoise.intervals import Interval
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Cell,
    Fold,
    Panels,
    Strong,
    Table,
    Tile,
    amount,
    bullets,
    names,
    numbers,
    prose,
    table_of,
    tiles,
    words,
)
from equipoise.report.charts import BarChart
from equipoise.report.format import DASH, TIMES, accelerator_name, capital, count, listed, ratio, sentence
from equipoise.report.pages.answer.candidates import RECOMMENDED, chip_of, is_recommended
from equipoise.report.pages.answer.compare import members_of_choice, size_title, strategy_cell
from equipoise.report.pages.answer.costs import WAYS, charged_for
from equipoise.report.pages.breakdowns import Stack, moving, tornado_figure, tornado_table
from equipoise.spec.hardware import TERM_WORDS
from equipoise.units import MICROSECOND_S, MILLISECOND_S, SI_PREFIXES, format_count, format_percent

CAUSES: Final = {
    "compute": "compute",
    "host": "kernel launches",
    "activation_offload": "activations to the host and back",
    "tp": "tensor-parallel communication",
    "cp": "context-parallel communication",
    "ep": "expert-parallel communication",
    "pp": "pipeline communication",
    "dp": "data-parallel communication",
    "idle": "pipeline bubble",
    "tables": "embedding tables",
    "optimizer": "optimizer",
    "waiting": "waiting for the slowest rank",
    "other": "rest of a step",
    "generation": "generation of completions",
}
KINDS: Final = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "buffers": "buffers",
    "fixed": "context and libraries",
    "allocator": "reserved by the allocator",
}
_UNITS: Final = (("s", 1.0), ("ms", MILLISECOND_S), ("µs", MICROSECOND_S))
_GIGA: Final = SI_PREFIXES["G"]


def step_blocks(answer: Answer) -> tuple[Block, ...]:
    """Step time by cause, and memory of the fullest accelerator by kind, for each size."""
    members = members_of_choice(answer)
    blocks: list[Block] = []
    timed = [each for each in members if each.model is not None]
    if timed:
        seconds = Stack(bars=tuple(_sample_s(each) for each in timed), titles=CAUSES)
        blocks += [
            prose(
                "By the performance model: accelerator time of one sample, by cause. ",
                Strong("With perfect scaling all bars would be equally high."),
            ),
            Panels(charts=(_seconds_chart(timed, seconds),), legend="Cause"),
            _shares(answer, timed, seconds),
        ]
    held = [each for each in members if each.memory is not None and each.memory.by_kind_bytes]
    if held:
        kinds = Stack(
            bars=tuple(
                (count(each.num_accelerators), each.memory.by_kind_bytes)
                for each in held
                if each.memory is not None
            ),
            titles=KINDS,
        )
        blocks += [Panels(charts=(_memory_chart(held, kinds),), legend="Kind"), _shares(answer, held, kinds)]
    return tuple(blocks) or (prose("No performance model of this training: only whole times are known."),)


def _sample_s(each: Candidate) -> tuple[str, dict[str, float]]:
    """Accelerator-seconds per sample by cause, preceded by the size as a label."""
    assert each.model is not None
    per_sample = each.num_accelerators / (each.global_batch_samples or 1)
    return count(each.num_accelerators), {
        cause: seconds * per_sample for cause, seconds in each.model.by_cause_s.items()
    }


def _shares(answer: Answer, members: Sequence[Candidate], stack: Stack) -> Block:
    """The parts of the recommended size, or of the largest if none is recommended."""
    best = answer.recommended
    ids = [each.id for each in members]
    place = ids.index(best.id) if best is not None and best.id in ids else len(ids) - 1
    return prose(Strong(f"At {stack.bars[place][0]}: "), f"{listed(stack.shares(place))}.")


def _seconds_chart(members: Sequence[Candidate], stack: Stack) -> BarChart:
    """Modelled accelerator time per sample by cause: step time x accelerators / global batch."""
    most = max(sum(parts.values()) for _, parts in stack.bars)
    unit, scale = next((each for each in _UNITS if most >= each[1]), _UNITS[-1])
    chart = stack.chart(
        "answer-seconds",
        "Accelerator time of one sample, by cause",
        x_title=size_title(members),
        y_title=f"accelerator time, {unit}",
        scale=scale,
        labels=[amounts.duration(sum(parts.values())) for _, parts in stack.bars],
    )
    return replace(chart, subtitle=f"above each bar, its sum: a step {TIMES} accelerators / global batch")


def _memory_chart(members: Sequence[Candidate], stack: Stack) -> BarChart:
    held = [each.memory for each in members if each.memory is not None]
    chart = stack.chart(
        "answer-memory",
        "Memory of the fullest accelerator, by kind",
        x_title=size_title(members),
        y_title="GB per accelerator",
        scale=_GIGA,
        labels=[ratio(each.needed_bytes / _GIGA) for each in held],
    )
    whole = next((each.available_bytes for each in held if each.available_bytes is not None), None)
    if whole is None:
        return replace(chart, subtitle="above each bar, its sum")
    return replace(
        chart,
        subtitle=f"above each bar, its sum; dashed: the {amounts.memory(whole)} of an accelerator",
        limits=(0.0, max(chart.limits[1], whole / _GIGA)),
        level=whole / _GIGA,
    )


def strategies_blocks(answer: Answer) -> tuple[Block, ...]:
    """The best strategies of the recommended size, and the number of others examined."""
    system = answer.system
    searched = (
        f"{format_count(answer.num_considered)} strategies were considered in {answer.search_s:.2g} s; "
        f"{format_count(system.num_fitting)} of {format_count(system.num_considered)} on "
        f"{chip_of(system.title)}, over all sizes tried, fit into memory."
    )
    blocks: list[Block] = [prose(searched)] if answer.num_considered else []
    if system.best_strategies:
        blocks.append(_strategies_table(system.best_strategies))
    if answer.rejected:
        blocks.append(_rejected_table(answer))
    return tuple(blocks) or (prose("No strategy was searched."),)


def _strategies_table(found: Sequence[Candidate]) -> Table:
    columns = (
        names("Strategy", lambda each: strategy_cell(each.strategy_text)),
        numbers("Time", "time_s", amounts.duration),
        numbers("Step", "step_s", amounts.duration),
        numbers("Memory", "memory.needed_bytes", amounts.memory),
        numbers(amounts.currency(), "usd", amounts.sums),
    )
    caption = "Strategies of the recommended size, the fastest first"
    return table_of("answer-strategies", columns, found, caption=caption)


def _rejected_table(answer: Answer) -> Table:
    """Rejected strategies, only of the recommended system if it has any; the JSON document has all."""
    columns = (
        names("Reason", _reason),
        numbers("Needed", lambda each: _apart(each)[0], meaning="the least that any of them needs"),
        numbers("Available", lambda each: _apart(each)[1]),
        numbers("Strategies", "count", format_count),
    )
    return table_of(
        "answer-rejected",
        columns,
        answer.system.rejected or answer.rejected,
        caption=f"Strategies rejected on {chip_of(answer.system.title)}, by the first reason",
    )


def _reason(each: Infeasibility) -> str:
    return f"exceeds the {CONSTRAINTS['memory_bytes'].noun}" if each.fault is None else each.fault.words


def _apart(each: Infeasibility) -> tuple[Cell | None, Cell | None]:
    """Needed and available memory, with enough digits to differ; None if either is unknown."""
    if each.needed is None or each.available is None:
        return None, None
    needed, available = amounts.apart(each.needed, each.available, CONSTRAINTS["memory_bytes"].unit)
    return Cell(text=needed, key=each.needed), Cell(text=available, key=each.available)


def money_blocks(answer: Answer) -> tuple[Block, ...]:
    """The cost on each kind of rental terms, and what it is most sensitive to."""
    blocks: list[Block] = []
    if len(answer.renting) > 1 or any(_has_interruptions(each) for each in answer.renting):
        blocks.append(_renting_table(answer))
    if any(each.candidate.charges is not None for each in answer.renting):
        blocks.append(_charges_table(answer))
    blocks += [
        prose(f"{capital(sentence(each.candidate.why_not or TERM_WORDS[each.candidate.terms]))}.")
        for each in answer.renting
        if each.candidate.time_s is None
    ]
    if answer.sensitivity is not None and moving(answer.sensitivity):
        blocks += [
            Panels(charts=(tornado_figure(answer.sensitivity, name="answer-tornado"),), legend="Moved"),
            tornado_table(answer.sensitivity, name="answer-moved"),
        ]
    assumed = dict.fromkeys(
        words
        for each in answer.renting
        if each.candidate.interrupted is not None
        for words in each.candidate.interrupted.assumes
    )
    if assumed:
        blocks.append(_assumed("renting-assumed", assumed))
    return tuple(blocks) or (prose("No price is known: give --price."),)


def _has_interruptions(each: Renting) -> bool:
    found = each.candidate.interrupted
    return found is not None and found.num_interruptions is not None


def _renting_table(answer: Answer) -> Table:
    def terms(each: Candidate) -> Cell:
        badge = RECOMMENDED if is_recommended(answer, each) else None
        words = "your own machine" if each.is_owned else TERM_WORDS[each.terms]
        return Cell(text=capital(words), key=each.terms, badge=badge)

    found = [each.candidate for each in answer.renting]
    limits = numbers("Limits met", "probability", amounts.probability)
    columns = (
        names("Terms", terms),
        numbers(
            f"{amounts.currency()}/h",
            "price.usd_per_accelerator_hour",
            amounts.prices,
            meaning="per accelerator-hour",
        ),
        numbers("Time", lambda each: amount(each.time_s, amounts.duration, ends=amounts.duration_range)),
        numbers(amounts.currency(), lambda each: amount(each.usd, amounts.sums, ends=amounts.sum_ends)),
        *((limits,) if any(each.probability is not None for each in found) else ()),
        numbers("Goodput", "goodput", amounts.share),
        numbers(
            "Interruptions",
            "interrupted.num_interruptions",
            lambda value: amounts.digits(float(f"{value:.2g}")),
            meaning="expected",
        ),
        numbers("Checkpoint", _checkpoint, meaning="interval with the least lost time"),
    )
    caption = "The recommended candidate on each kind of terms, with interruptions"
    return table_of("answer-terms", columns, found, caption=caption)


def _checkpoint(each: Candidate) -> Cell:
    found = None if each.interrupted is None else each.interrupted.checkpoint_interval_s
    return Cell(text="not needed" if found is None else f"every {amounts.duration(found)}", key=found)


def _charges_table(answer: Answer) -> Table:
    """The charges on each kind of rental terms, because the prices in the table cover only the hours used."""
    rows = [
        {"terms": capital(TERM_WORDS[each.terms]), "what": what, "usd": usd, "basis": each.price.basis}
        for each in (one.candidate for one in answer.renting)
        if each.usd is not None and each.price is not None
        for what, usd in (
            (("hours used", each.usd.value),) if each.charges is None else charged_for(each.charges)
        )
        if usd
    ]
    columns = (
        names("Terms", "terms"),
        words("For", "what"),
        numbers(amounts.currency(), "usd", amounts.sums),
        words("Price", "basis", is_wide=True),
    )
    return table_of("answer-charges", columns, rows, caption="What the money is for")


def buying_blocks(answer: Answer) -> tuple[Block, ...]:
    """Whether buying pays, its return, and what the return is most sensitive to."""
    found = answer.ownership
    assert found is not None
    value, after = found.return_usd.value, amounts.months(found.horizon_months)
    name = accelerator_name(found.purchase.accelerator)
    ahead = f"{amounts.money(abs(value))} {'cheaper' if value >= 0.0 else 'more expensive'}"
    even = "at no utilisation"
    if found.break_even_utilisation is not None:
        even = f"at a utilisation of {amounts.share(found.break_even_utilisation)} or more"
    title = "What the return is most sensitive to"
    charts = (
        (tornado_figure(found.tornado, name="buying-tornado", title=title),) if moving(found.tornado) else ()
    )
    return (
        prose(
            Strong(f"After {after} buying one {name} is {ahead} than renting it. "),
            f"It breaks even within its lifetime with a probability of "
            f"{amounts.probability(found.break_even_probability)}; "
            f"over that lifetime it breaks even {even}.",
        ),
        _ways_table(answer, found),
        tiles(_buying_tiles(found)),
        Panels(charts=charts, legend="Moved"),
        tornado_table(found.tornado, name="buying-moved"),
        _assumed("buying-assumed", found.assumes),
    )


def _ways_table(answer: Answer, found: Ownership) -> Table:
    hours = 0.0 if answer.recommended is None else answer.recommended.accelerator_hours or 0.0
    columns = (
        names("Machine", lambda each: capital(WAYS[each.way])),
        numbers(
            f"{amounts.currency()}/h",
            lambda each: amount(each.usd, amounts.sums, ends=amounts.sum_ends),
            meaning="per accelerator-hour of use",
        ),
        numbers(f"This training, {amounts.currency()}", lambda each: each.usd.value * hours, amounts.sums),
    )
    caption = "What an accelerator-hour costs, and this training"
    return table_of("buying-ways", columns, found.hourly, caption=caption)


def _assumed(name: str, assumptions: Iterable[str]) -> Fold:
    items = bullets(f"{capital(sentence(each))}." for each in assumptions)
    return Fold(name=name, title="What this assumes", blocks=(items,), is_aside=True)


def _buying_tiles(found: Ownership) -> Iterator[Tile]:
    even, money = found.months_to_break_even, amounts.money
    yield _tile(
        "Breaks even after", even, amounts.months, "Purchase price over the monthly saving, no resale."
    )
    yield _tile(
        f"Return after {amounts.months(found.horizon_months)}",
        found.return_usd,
        money,
        "Saving and resale less price.",
    )
    yield _tile("Purchase", found.purchase.usd, money, "One accelerator with its share of host and network.")
    yield _tile("Running, per month", found.running_usd_per_month, money, "Electricity, upkeep and hosting.")
    yield _tile("Rent, per month", found.rent_usd_per_month, money, "For the hours of use only.")
    yield _tile(
        "Utilisation", found.utilisation, amounts.share, "Fraction of all hours in which it is in use."
    )


def _tile(label: str, found: Interval, form: Callable[[float], str], words: str) -> Tile:
    detail = "as given"
    if found.low < found.high:
        detail = f"{form(found.low)} {DASH} {form(found.high)}, {format_percent(found.level)} range"
    return Tile(label=label, value=form(found.value), detail=detail, words=words)
