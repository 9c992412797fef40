"""Which devices to take for so many ranks, and which network card is near whom."""

from typing import Final

from equipoise.advice.links.link_words import named
from equipoise.advice.links.links import Meaning
from equipoise.report.blocks import Block, Cell, Column, Table, prose
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, printable


def _blocks(found: Meaning) -> tuple[Block, ...]:
    parts = [named([printable(name) for name in group]) for group in found.islands.members]
    blocks: list[Block] = []
    if parts:
        blocks.append(prose(f"Islands, joined without what is slowest here: {'; '.join(parts)}."))
    blocks.append(
        Table(
            name="topology-groups",
            caption="For so many ranks, the group whose weakest link is the best",
            columns=(
                Column(title="Ranks", is_number=True),
                Column(title="Take", is_header=True),
                Column(title="Weakest link"),
                Column(title="A careless choice may meet"),
            ),
            rows=tuple(
                (
                    Cell(text=str(group.num_devices), key=group.num_devices),
                    Cell(text=named([printable(name) for name in group.devices])),
                    Cell(text=group.link_class),
                    Cell(text=group.worst_class or ABSENT),
                )
                for group in found.groups
            ),
        )
    )
    return tuple(blocks)


SECTION: Final[Section[Meaning]] = Section(
    name="topology-groups", title="Which to take", needs=("groups",), blocks=_blocks
)
