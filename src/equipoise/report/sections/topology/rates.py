"""What each class of link reaches, and where the figures are from."""

from typing import Final

from equipoise.advice.links.links import Meaning
from equipoise.report.blocks import Block, Cell, Column, Table, note
from equipoise.report.section import Section
from equipoise.report.words import sentence
from equipoise.spec.link_class import meaning as what_lies_between
from equipoise.units import format_si

_PATHS: Final = {
    "fabric": "links of their own",
    "near": "PCIe, peer to peer",
    "far": "PCIe and the link between sockets",
    "staged": "through the host's memory",
    "near or staged": "PCIe, peer to peer or through the host's memory",
    "far or staged": "PCIe and the link between sockets, or through the host's memory",
}


def _rate(byte_per_s: float) -> str:
    return format_si(float(f"{byte_per_s:.2g}"), "B/s")


def _blocks(found: Meaning) -> tuple[Block, ...]:
    table = Table(
        name="topology-rates",
        caption="What long transfers between two accelerators reach, each way while both are busy",
        columns=(
            Column(title="Class", is_header=True),
            Column(title="Between them"),
            Column(title="Path"),
            Column(title="Pairs", is_number=True),
            Column(title="Reached", is_number=True, meaning="below it how machines differ"),
            Column(title="Stated", is_number=True, meaning="by the makers, one direction"),
            Column(title="Latency", is_number=True, meaning="of an empty message over one hop"),
        ),
        rows=tuple(
            (
                Cell(text=each.link_class, key=place),
                Cell(text=what_lies_between(each.link_class)),
                Cell(text=_PATHS[each.reach.path]),
                Cell(text=str(each.num_pairs), key=each.num_pairs),
                Cell(
                    text=_rate(each.reach.byte_per_s),
                    key=each.reach.byte_per_s,
                    detail=f"{_rate(each.reach.low)} to {_rate(each.reach.high)}",
                ),
                Cell(
                    text=" to ".join(dict.fromkeys(map(_rate, each.reach.stated_byte_per_s))),
                    key=each.reach.stated_byte_per_s[1],
                ),
                Cell(text=format_si(each.reach.latency_s * 1e6, "µs"), key=each.reach.latency_s),
            )
            for place, each in enumerate(found.reached)
        ),
    )
    sources = dict.fromkeys(each.reach.source for each in found.reached)
    return (table, note(f"Sources: {sentence('; '.join(sources))}."))


SECTION: Final[Section[Meaning]] = Section(
    name="topology-reach", title="What the links carry", needs=("reached",), blocks=_blocks
)
