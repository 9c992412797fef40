"""Which models gain on two accelerators, by the class of link between them."""

from typing import Final

from equipoise.advice.links.gain_words import basis
from equipoise.advice.links.links import FAMILY, Crossover, Gain, Meaning
from equipoise.advice.links.pair import LEAST_GAIN, LEVEL
from equipoise.report.blocks import Badge, Block, Cell, Column, Table, Tone, note, prose
from equipoise.report.section import Section
from equipoise.report.words import DASH
from equipoise.units import format_percent, format_rough

_TONES: Final[dict[str, Tone]] = {"gains": "good", "slower": "bad", "no gain": "bad", "either way": "quiet"}


def _blocks(found: Meaning) -> tuple[Block, ...]:
    classes = list(dict.fromkeys(gain.link_class for gain in found.gains))
    models = dict.fromkeys((gain.workload, gain.title, gain.params) for gain in found.gains)
    of = {(gain.workload, gain.link_class): gain for gain in found.gains}
    table = Table(
        name="topology-gains",
        caption=(
            f"Steps of one accelerator over steps of two that share a batch of {found.batch}, below it the "
            f"{format_percent(LEVEL)} range"
        ),
        columns=(
            Column(title="Model", is_header=True),
            Column(title="Parameters", is_number=True),
            *(Column(title=name, is_number=True) for name in classes),
        ),
        rows=tuple(
            (
                Cell(text=title, key=title),
                Cell(text=format_rough(params), key=params),
                *(_gain(of[slug, name]) for name in classes),
            )
            for slug, title, params in models
        ),
    )
    return (
        prose(
            "What counts is work for each byte that is exchanged, not size alone: a network that uses each "
            "weight many times a sample gains earlier."
        ),
        table,
        *(prose(_crossover(each, found.batch)) for each in found.crossovers),
        note(_basis(found)),
    )


def _gain(gain: Gain) -> Cell:
    return Cell(
        text=f"{gain.speedup:.2f} ",
        key=gain.speedup,
        detail=f"{gain.low:.2f} {DASH} {gain.high:.2f}",
        badge=Badge(text=gain.verdict, tone=_TONES[gain.verdict]),
    )


def _crossover(each: Crossover, batch: int) -> str:
    least = format_percent(round(LEAST_GAIN - 1, 3))
    start = f"Over {each.link_class}, {FAMILY} with a batch of {batch}"
    if each.params is None:
        return f"{start} gain less than {least} at every size up to {format_rough(each.most)} parameters."
    low = "no size" if each.low is None else _size(each.low, each)
    high = f"more than {format_rough(each.most)}" if each.high is None else _size(each.high, each)
    return (
        f"{start} gain {least} or more from {_size(each.params, each)} parameters up "
        f"({format_percent(LEVEL)} range: {low} to {high})."
    )


def _size(params: float, each: Crossover) -> str:
    return f"{format_rough(params)} or fewer" if params == each.least else format_rough(params)


def _basis(found: Meaning) -> str:
    titles = [chip.title for chip in found.candidates]
    return basis(found) if len(titles) == 1 else f"{basis(found)} They are {', '.join(titles)}."


SECTION: Final[Section[Meaning]] = Section(
    name="topology-gains", title="Which models gain on two", needs=("gains",), blocks=_blocks
)
