"""The drawn matrix: the class of link of every pair, by tone, and what the text did not tell."""

from typing import Final

from equipoise.advice.links.link_words import gaps, sentences
from equipoise.advice.links.links import Meaning
from equipoise.bench.topology.topology import Link
from equipoise.report.blocks import Badge, Block, Bullets, Heading, Matrix, Tone
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


def _badge(link: Link | None) -> Badge | None:
    """The word of one pair."""
    if link is None:
        return None
    if link.link_class is None:
        return Badge(text=printable("!" if link.said else link.peers or "?"), tone="quiet")
    return Badge(text=link.link_class, tone=_tone(link.link_class))


def _blocks(found: Meaning) -> tuple[Block, ...]:
    topology = found.topology
    words = {frozenset((link.a, link.b)): link for link in topology.links}
    names = [*(device.name for device in topology.devices), *(nic.name for nic in topology.nics)]
    classes = sorted({link.link_class for link in topology.links if link.link_class}, key=rank)
    legend = [(Badge(text=name, tone=_tone(name)), what_lies_between(name)) for name in classes]
    if any(link.link_class is None and not link.said and not link.peers for link in topology.links):
        legend.append((Badge(text="?", tone="quiet"), "not told"))
    told = gaps(topology)
    blocks: list[Block] = []
    if topology.links:
        drawn = Matrix(
            name="topology-matrix",
            caption="The link of every pair",
            heads=tuple(map(printable, names)),
            rows=tuple(
                (
                    printable(row),
                    _title(found, row),
                    tuple(_badge(words.get(frozenset((row, column)))) for column in names),
                )
                for row in names
            ),
            legend=tuple(legend),
        )
        blocks.append(drawn)
    if told:
        blocks.append(Heading(name="topology-gaps", text="What is not known"))
        blocks.append(Bullets(items=tuple((sentence(each),) for each in told)))
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
