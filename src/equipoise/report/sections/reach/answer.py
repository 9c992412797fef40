"""How many tokens, or how large a model, first."""

from collections.abc import Iterator
from typing import Final

from equipoise.advice.reach import Reach
from equipoise.findings import ReachFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Bullets, Tile, Tiles, code, prose
from equipoise.report.reach_text import ENDS, carried_through, ranged, ratio, shape, sized, there_is, unit
from equipoise.report.section import Section
from equipoise.report.words import DASH, accelerator_name, capital, listed, printable, sentence
from equipoise.stats import Interval
from equipoise.units import format_count, format_duration, format_percent, format_si, format_step


def about(findings: ReachFindings) -> str:
    """What is asked about."""
    found = findings.reaches
    names = listed([accelerator_name(each.cluster.accelerator.slug) for each in (found.best, *found.others)])
    return f"what is enough for {printable(found.best.workload.title)} on {names}"


def headline(findings: ReachFindings) -> str:
    """How far money and time reach, in one sentence."""
    best = findings.reaches.best
    there = capital(there_is(best))
    amount = format_si(best.size.value)
    if best.asked == "model":
        return f"{there}: enough for a model of {amount} parameters"
    return f"{there}: {amount} {unit(best)} of {printable(best.workload.title)}"


def summary(findings: ReachFindings) -> tuple[str, ...]:
    """The range, the training, and what ends it."""
    best = findings.reaches.best
    option = best.option
    model = shape(best)
    told = [f"90 % range: {format_si(best.size.low)} {DASH} {format_si(best.size.high)} {sized(best)}."]
    if model is not None:
        told.append(sentence(f"{capital(model)}; trained on {format_si(best.tokens.value)} {unit(best)}."))
    told.append(f"It takes {option_text.hardware(option)} for {ranged(option.time, format_duration)}.")
    told.append(f"It ends at {ENDS[best.limit]}.")
    return tuple(told)


def _blocks(findings: ReachFindings) -> tuple[Block, ...]:
    found = findings.reaches
    best = found.best
    return (
        Tiles(items=tuple(_tiles(best))),
        prose("Train with ", code(option_text.strategy(best.option))),
        *(
            (
                prose("The other machines reach less:"),
                Bullets(items=tuple((_other(each),) for each in found.others)),
            )
            if found.others
            else ()
        ),
        *((Bullets(items=tuple((sentence(each),) for each in found.notes)),) if found.notes else ()),
    )


def _other(each: Reach) -> str:
    name = accelerator_name(each.cluster.accelerator.slug)
    return f"{name}: {ranged(each.size, format_si)} {sized(each)}"


def _tiles(best: Reach) -> Iterator[Tile]:
    option, money = best.option, best.option.bill.money
    per_param = ratio(best)
    if best.asked == "model":
        yield _tile("Largest model", best.size, "parameters", shape(best) or "")
        yield Tile(
            label="Trained on",
            value=f"{format_si(best.tokens.value)} {unit(best)}",
            detail="",
            words=f"{per_param}." if per_param else "",
        )
    else:
        of = "" if best.params is None else f"Of a model of {format_si(best.params.value)} parameters"
        yield _tile("Enough for", best.tokens, unit(best), f"{of}: {per_param}." if of and per_param else of)
    yield Tile(
        label="Accelerators",
        value=option_text.hardware(option),
        detail=f"{option_text.hours(option.bill)}",
        words="The fastest of those that reach within 2 % as far.",
    )
    yield Tile(
        label="Time",
        value=format_duration(option.time.value),
        detail=option_text.time_range(option.time),
        words="Of this very training, modelled.",
    )
    if money is not None:
        through = carried_through(money)
        yield Tile(
            label="Money",
            value=f"{format_si(money.value)} USD",
            detail="" if through is None else through,
            words=f"It ends at {ENDS[best.limit]}.",
        )
    yield Tile(
        label="Batch",
        value=f"{format_count(option.strategy.global_batch_samples)} samples",
        detail=f"a step takes {format_step(option.step_s)}",
        words="Of all accelerators together; the step by the model.",
    )


def _tile(label: str, amount: Interval, of: str, words: str) -> Tile:
    low, high = format_si(amount.low), format_si(amount.high)
    return Tile(
        label=label,
        value=f"{format_si(amount.value)} {of}",
        detail=f"{low} {DASH} {high}, {format_percent(amount.level)}",
        words=sentence(words),
    )


SECTION: Final[Section[ReachFindings]] = Section(
    name="answer", title="The answer", needs=("reaches",), blocks=_blocks
)
