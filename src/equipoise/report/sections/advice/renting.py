"""Renting on each terms: time and money with failures, checkpoints, restarts and the queue."""

import math
from collections.abc import Iterator
from typing import Final

from equipoise.advice.risk import Risk
from equipoise.economics.prices import WORDS
from equipoise.findings import AdviceFindings
from equipoise.report.blocks import (
    Badge,
    Block,
    Bullets,
    Cell,
    Column,
    Fold,
    Panels,
    Span,
    Table,
    prose,
    strong,
)
from equipoise.report.money_text import NEVER_S, checkpoints, elapsed, paid, share, stops
from equipoise.report.section import Section
from equipoise.report.tornado import moving, tornado_figure
from equipoise.report.words import ABSENT, DASH, capital, sentence
from equipoise.stats import Interval
from equipoise.units import format_duration, format_percent, format_si

CAUSES: Final = ("checkpoints", "repeated", "restarts")


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    risks = findings.risks
    figures = tuple(
        tornado_figure(
            each.tornado,
            name=f"renting-{each.terms}",
            title=f"What moves the {each.tornado.name}, {WORDS[each.terms]}",
        )
        for each in risks
        if moving(each.tornado)
    )
    assumed = dict.fromkeys(words for each in risks for words in each.assumes)
    moved = Fold(
        name="renting-moved",
        title="What moves it, on each terms",
        badges=(),
        blocks=(Panels(charts=figures, legend="Moved"),),
        is_long=True,
    )
    return (
        prose(*_said(risks)),
        _table(risks),
        *((moved,) if figures else ()),
        Fold(
            name="renting-assumed",
            title="What this assumes",
            badges=(),
            blocks=(Bullets(items=tuple((f"{capital(sentence(words))}.",) for words in assumed)),),
            is_long=True,
        ),
    )


def _said(risks: tuple[Risk, ...]) -> Iterator[Span]:
    """The cheapest of the terms, and how likely each keeps the deadline."""
    ending = [each for each in risks if each.elapsed.value < NEVER_S]
    known = [each for each in ending if each.money is not None]
    yield (
        "The time above is that of training; this is with all that comes between: failures, the checkpoints "
        "that bound what they cost, restarts, and the queue. "
    )
    if len(known) > 1:
        cheapest = min(known, key=_usd)
        yield strong(f"Cheapest {WORDS[cheapest.terms]}: {format_si(_usd(cheapest))} USD")
        yield f" in {elapsed(cheapest.elapsed.value)}; "
        rest = [each for each in known if each is not cheapest]
        yield ", ".join(
            f"{WORDS[each.terms]} {format_si(_usd(each))} USD in {elapsed(each.elapsed.value)}"
            for each in rest
        )
        yield "."
    lost = [WORDS[each.terms] for each in risks if each not in ending]
    if lost:
        yield f" By expected rates it never ends on these terms: {', '.join(lost)}."


def _usd(each: Risk) -> float:
    return math.inf if each.money is None else each.money.value


def _table(risks: tuple[Risk, ...]) -> Table:
    level = format_percent(risks[0].elapsed.level)
    timed = risks[0].chance_in_time is not None
    size = risks[0].checkpoint_bytes
    written = "" if size is None else f"; a checkpoint holds {format_si(size, 'B')}"
    return Table(
        name="advice-terms",
        caption=(
            f"Each terms of renting; below, {level} ranges{written}. "
            "Lost: to checkpoints / work done twice / restarts"
        ),
        columns=(
            Column(title="Terms", is_header=True),
            Column(title="Time", is_number=True, meaning="from asking for accelerators to the last step"),
            Column(title="USD", is_number=True, meaning="all paid hours, with what is lost"),
            *(
                (Column(title="In\u00a0time", is_number=True, meaning="chance to keep the deadline"),)
                if timed
                else ()
            ),
            Column(title="Failures", is_number=True, meaning="expected stops while it runs"),
            Column(title="Checkpoint", is_number=True, meaning="work between two that loses least"),
            Column(title="Lost", is_number=True, meaning="share of the paid time that trains nothing"),
        ),
        rows=tuple(tuple(_cells(each, risks, timed=timed)) for each in risks),
    )


def _cells(each: Risk, risks: tuple[Risk, ...], *, timed: bool) -> Iterator[Cell]:
    time, money = each.elapsed, each.money
    hourly = None if each.price is None else f"{each.price.usd_per_accelerator_hour:.2f} USD/h"
    cheapest = min(risks, key=_usd)
    badge = Badge(text="cheapest", tone="good") if each is cheapest and len(risks) > 1 and money else None
    yield Cell(text=capital(WORDS[each.terms]), key=each.terms, detail=hourly, badge=badge)
    yield Cell(
        text=elapsed(time.value), key=time.value, detail=f"{elapsed(time.low)} {DASH} {elapsed(time.high)}"
    )
    yield _paid(each, money)
    if timed:
        chance = each.chance_in_time
        yield Cell(text=ABSENT if chance is None else share(chance), key=chance)
    number = each.num_interruptions
    any_ = f"any: {share(each.chance_of_any)}"
    yield Cell(text=stops(number.value), key=number.value, detail=any_)
    pause = format_duration(each.checkpoint_s.value)
    yield Cell(text=checkpoints(each), key=each.checkpoint_interval_s, detail=f"{pause} each")
    whole = sum(each.lost.values())
    apart = " / ".join(f"{100.0 * each.lost[cause]:.0f}" for cause in CAUSES)
    yield Cell(text=share(whole), key=whole, detail=f"{apart} %")


def _paid(each: Risk, money: Interval | None) -> Cell:
    if money is None:
        return Cell(text=ABSENT)
    low, high = (
        paid(each, usd, at) for usd, at in ((money.low, each.elapsed.low), (money.high, each.elapsed.high))
    )
    return Cell(
        text=paid(each, money.value, each.elapsed.value), key=money.value, detail=f"{low} {DASH} {high}"
    )


SECTION: Final[Section[AdviceFindings]] = Section(
    name="renting", title="Rented, with what fails on the way", needs=("risks",), blocks=_blocks
)
