"""The drawn matrix: the class of link of every pair, by tone, and what the text did not tell."""

from typing import Final

from equipoise.advice.link_words import gaps, sentences
from equipoise.advice.links import Meaning
from equipoise.bench.topology.topology import Link
from equipoise.report.blocks import Badge, Block, Bullets, Cell, Column, Heading, Table, Tone, note
from equipoise.report.section import Section
from equipoise.report.words import listed, plural, printable, sentence
from equipoise.spec.link_class import FABRICS, kind, rank
from equipoise.spec.link_class import meaning as what_lies_between

_TONES: Final[dict[str, Tone]] = {"PIX": "plain", "PXB": "plain", "SYS": "bad"}


def about(found: Meaning) -> str:
    """What the page is of."""
    topology = found.topology
    titles = list(dict.fromkeys(printable(device.title) for device in topology.devices if device.title))
    who = listed(titles) if titles else plural(len(topology.devices), "device")
    return f"{who}, from {printable(topology.origin)}"


def headline(found: Meaning) -> str:
    """What joins the devices, in one sentence."""
    return sentence(sentences(found)[0])


def summary(found: Meaning) -> tuple[str, ...]:
    """What else it means, most important first."""
    return tuple(map(sentence, sentences(found)[1:]))


def _tone(name: str) -> Tone:
    return "good" if kind(name) in FABRICS else _TONES.get(name, "quiet")


def _cell(link: Link | None) -> Cell:
    """One pair; what sorts it is the rank of its class."""
    if link is None:
        return Cell(text="", key=None)
    if link.link_class is None:
        text = " / ".join(link.said) if link.said else link.peers or "?"
        return Cell(text=printable(text), key=None)
    place, count = rank(link.link_class)
    return Cell(
        text="", key=100.0 * place + count, badge=Badge(text=link.link_class, tone=_tone(link.link_class))
    )


def _blocks(found: Meaning) -> tuple[Block, ...]:
    topology = found.topology
    words = {frozenset((link.a, link.b)): link for link in topology.links}
    names = [*(device.name for device in topology.devices), *(nic.name for nic in topology.nics)]
    classes = sorted({link.link_class for link in topology.links if link.link_class}, key=rank)
    told = gaps(topology)
    blocks: list[Block] = [
        Table(
            name="topology-matrix",
            caption="The class of link of every pair",
            columns=(
                Column(title="", is_header=True),
                *(Column(title=printable(name), meaning=_title(found, name)) for name in names),
            ),
            rows=tuple(
                (
                    Cell(text=printable(row), key=place, detail=_title(found, row)),
                    *(_cell(words.get(frozenset((row, column)))) for column in names),
                )
                for place, row in enumerate(names)
            ),
        )
    ]
    if classes:
        blocks.append(note(f"{'; '.join(f'{name}: {what_lies_between(name)}' for name in classes)}."))
    if told:
        blocks += [
            Heading(name="topology-gaps", text="What is not known"),
            Bullets(items=tuple((sentence(each),) for each in told)),
        ]
    return tuple(blocks)


def _title(found: Meaning, name: str) -> str | None:
    """What else a device or card is called."""
    cards = {nic.name: nic.title for nic in found.topology.nics}
    devices = {device.name: device.title for device in found.topology.devices}
    title = cards.get(name) or devices.get(name)
    return printable(title) if title else None


SECTION: Final[Section[Meaning]] = Section(
    name="topology-links", title="How they are joined", needs=("topology",), blocks=_blocks
)
