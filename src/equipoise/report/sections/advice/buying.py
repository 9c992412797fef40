"""Buying instead of renting: when it pays, what it returns by a horizon, and what that hangs on."""

from collections.abc import Callable, Iterator
from typing import Final

from equipoise.economics.owning import Ownership
from equipoise.findings import AdviceFindings
from equipoise.report.blocks import Block, Bullets, Fold, Panels, Tile, Tiles, prose, strong
from equipoise.report.money_text import NEVER, months, share
from equipoise.report.section import Section
from equipoise.report.tornado import moving, tornado_figure, tornado_table
from equipoise.report.words import DASH, accelerator_name, capital, sentence
from equipoise.stats import Interval
from equipoise.units import format_percent, format_si


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    found = findings.ownership
    assert found is not None
    figure = tornado_figure(found.tornado, name="buying-tornado", title="What the return hangs on")
    moved: tuple[Block, ...] = (
        Panels(charts=(figure,), legend="Moved"),
        tornado_table(found.tornado, name="buying-moved"),
    )
    return (
        prose(strong(_verdict(found)), f" {_odds(found)}"),
        Tiles(items=tuple(_tiles(found))),
        *(moved if moving(found.tornado) else ()),
        Fold(
            name="buying-assumed",
            title="What this assumes",
            badges=(),
            blocks=(Bullets(items=tuple((f"{capital(sentence(each))}.",) for each in found.assumes)),),
            is_long=True,
        ),
    )


def _verdict(found: Ownership) -> str:
    """Whether buying is ahead by the horizon."""
    after, value = f"{found.horizon_months:g} months", found.return_usd.value
    name = accelerator_name(found.purchase.accelerator)
    ahead = f"{format_si(abs(value))} USD {'ahead' if value >= 0.0 else 'behind'}"
    return f"After {after} an own {name} is {ahead} of a rented one."


def _odds(found: Ownership) -> str:
    use = found.even_at_utilisation
    even = (
        "at no use of it does it get there"
        if use is None
        else f"that takes a use of {share(use)} of all hours"
    )
    return (
        f"It pays before it is worn out in {share(found.chance_in_lifetime)} of cases; to be even after "
        f"{found.horizon_months:g} months: {even}."
    )


def _tiles(found: Ownership) -> Iterator[Tile]:
    room = found.purchase.hosting_usd_per_month
    placed = (
        "in a room of one's own" if room.high == 0.0 else f"{format_si(room.value)} USD of it for the room"
    )
    value = months(found.months_to_break_even.value)
    yield Tile(
        label="Pays after",
        value=value if value == NEVER else f"{value} months",
        detail=_ends(found.months_to_break_even, months),
        words="Its price over what a month of owning saves; what it can then be sold for is left out.",
    )
    yield Tile(
        label=f"Return after {found.horizon_months:g} months",
        value=f"{format_si(found.return_usd.value)} USD",
        detail=_ends(found.return_usd, format_si),
        words="Saved, and what it can then be sold for, less its price.",
    )
    yield Tile(
        label="To buy",
        value=f"{format_si(found.purchase.usd.value)} USD",
        detail=_ends(found.purchase.usd, format_si),
        words="One accelerator with its share of host and network.",
    )
    yield Tile(
        label="To run, a month",
        value=f"{format_si(found.running_usd_per_month.value)} USD",
        detail=_ends(found.running_usd_per_month, format_si),
        words=f"Electricity, upkeep and room: {placed}.",
    )
    yield Tile(
        label="To rent, a month",
        value=f"{format_si(found.rent_usd_per_month.value)} USD",
        detail=_ends(found.rent_usd_per_month, format_si),
        words="The hours of use alone.",
    )
    yield Tile(
        label="Use",
        value=f"{share(found.utilisation.value)} of all hours",
        detail=_ends(found.utilisation, share),
        words="An own machine is paid for when it rests, too.",
    )


def _ends(amount: Interval, form: Callable[[float], str]) -> str:
    """The ends of a range, or that there is none."""
    if amount.low == amount.high:
        return "as given"
    return f"{form(amount.low)} {DASH} {form(amount.high)}, {format_percent(amount.level)}"


SECTION: Final[Section[AdviceFindings]] = Section(
    name="buying", title="Bought or rented", needs=("ownership",), blocks=_blocks, is_extra=True
)
