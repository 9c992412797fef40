"""The page of a topology: links of every pair, their rates, speedup on two accelerators, which to use."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.bench.topology.topology import DeviceLink, Topology
from equipoise.diagnose.link_findings import basis, gaps, sentences
from equipoise.diagnose.link_findings import named as name_range
from equipoise.diagnose.links import FAMILY, Crossover, Gain, Meaning
from equipoise.diagnose.pairs import LEAST_GAIN, LEVEL
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Heading,
    Page,
    PairMatrix,
    Section,
    Table,
    Tone,
    bullets,
    more_note,
    named,
    note,
    number,
    prose,
)
from equipoise.report.format import ABSENT, DASH, listed, plural, printable, sentence
from equipoise.spec.links import FABRICS, kind, rank
from equipoise.spec.links import meaning as what_lies_between
from equipoise.units import format_percent, format_rough, format_si

_LINK_TONES: Final[dict[str, Tone]] = {"PIX": "plain", "PXB": "plain", "SYS": "bad"}
_GAIN_TONES: Final[dict[str, Tone]] = {
    "gains": "good",
    "slower": "bad",
    "no gain": "bad",
    "either way": "quiet",
}
_PATHS: Final = {
    "fabric": "direct links",
    "near": "PCIe, peer to peer",
    "far": "PCIe and the link between sockets",
    "staged": "through the host's memory",
    "near or staged": "PCIe, peer to peer or through the host's memory",
    "far or staged": "PCIe and the link between sockets, or through the host's memory",
}
# Of one screen: a matrix of more devices takes several.
_MOST_DRAWN: Final = 10
_MOST_SENTENCES: Final = 3
_MOST_GAPS: Final = 2


# --- head


def _about(found: Meaning) -> str:
    """Which devices, and who reported them."""
    topology = found.topology
    titles = list(dict.fromkeys(printable(device.title) for device in topology.devices if device.title))
    who = listed(titles) if titles else plural(len(topology.devices), "device")
    return f"{who}, from {printable(topology.origin)}"


def _headline(found: Meaning) -> str:
    """What connects the devices, in one sentence."""
    return sentence(sentences(found)[0])


# --- links


def _links_blocks(found: Meaning) -> tuple[Block, ...]:
    unknown, further = gaps(found.topology), sentences(found)[1 + _MOST_SENTENCES :]
    return (
        *_processors(found.topology),
        *((_matrix(found),) if found.topology.links else ()),
        *_bullets("topology-gaps", "What is not known", unknown),
        *_bullets("topology-meaning", "Further findings", further),
    )


def _bullets(name: str, title: str, items: Sequence[str]) -> tuple[Block, ...]:
    if not items:
        return ()
    return (Heading(name=name, text=title), bullets(map(sentence, items)))


def _processors(topology: Topology) -> Iterator[Block]:
    """Sockets and network cards of a machine without accelerators."""
    if any(device.kind == "gpu" for device in topology.devices):
        return
    yield Table(
        name="topology-sockets",
        caption="Processor sockets",
        columns=(
            Column(title="Socket", is_header=True),
            Column(title="Cores", is_number=True),
            Column(title="Threads"),
            Column(title="NUMA"),
        ),
        rows=tuple(
            (
                named(each.name),
                number(each.num_cores),
                Cell(text=printable(each.cpu_affinity or ABSENT)),
                Cell(text=printable(each.numa_affinity or ABSENT)),
            )
            for each in topology.devices
        ),
    )
    yield Table(
        name="topology-cards",
        caption="Network cards",
        columns=(Column(title="Card", is_header=True), Column(title="Per direction", is_number=True)),
        rows=tuple(
            (named(each.name), number(each.byte_per_s, lambda rate: format_si(rate, "B/s")))
            for each in topology.nics
        ),
    )


def _matrix(found: Meaning) -> PairMatrix:
    """The class of link of every pair."""
    topology = found.topology
    links = {frozenset((link.a, link.b)): link for link in topology.links}
    titles = {each.name: each.title for each in topology.devices}
    titles |= {each.name: each.title for each in topology.nics}
    classes = sorted({link.link_class for link in topology.links if link.link_class}, key=rank)
    legend = [(Badge(text=name, tone=_tone(name)), what_lies_between(name)) for name in classes]
    if any(link.link_class is None and not link.conflict and not link.peers for link in topology.links):
        legend.append((Badge(text="?", tone="quiet"), "unknown"))
    return PairMatrix(
        name="topology-matrix",
        caption="The link of every pair",
        heads=tuple(map(printable, titles)),
        rows=tuple(
            (
                printable(row),
                printable(title) if title else None,
                tuple(_badge(links.get(frozenset((row, column)))) for column in titles),
            )
            for row, title in titles.items()
        ),
        legend=tuple(legend),
    )


def _badge(link: DeviceLink | None) -> Badge | None:
    """The word of one pair."""
    if link is None:
        return None
    if link.link_class is None:
        return Badge(text=printable("!" if link.conflict else link.peers or "?"), tone="quiet")
    return Badge(text=link.link_class, tone=_tone(link.link_class))


def _tone(name: str) -> Tone:
    return "good" if kind(name) in FABRICS else _LINK_TONES.get(name, "quiet")


# --- what the links carry


def _rates_blocks(found: Meaning) -> tuple[Block, ...]:
    table = Table(
        name="topology-rates",
        caption="Rate of long transfers between two accelerators, per direction while both "
        "directions are busy",
        columns=(
            Column(title="Class", is_header=True),
            Column(title="Between them"),
            Column(title="Path"),
            Column(title="Pairs", is_number=True),
            Column(title="Reached", is_number=True, meaning="below it the range across machines"),
            Column(title="Stated", is_number=True, meaning="stated by the vendors, one direction"),
            Column(title="Latency", is_number=True, meaning="of an empty message over one hop"),
        ),
        rows=tuple(
            (
                Cell(text=each.link_class, key=place),
                Cell(text=what_lies_between(each.link_class)),
                Cell(text=_PATHS[each.reach.path]),
                number(each.num_pairs),
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


def _rate(byte_per_s: float) -> str:
    return format_si(float(f"{byte_per_s:.2g}"), "B/s")


# --- which models gain


def _gains_blocks(found: Meaning) -> tuple[Block, ...]:
    titles = [chip.title for chip in found.candidates]
    rests = basis(found) if len(titles) == 1 else f"{basis(found)} They are {', '.join(titles)}."
    return (
        prose(
            "The speedup depends on work per byte exchanged, not on size alone: a network that uses each "
            "weight many times per sample gains earlier."
        ),
        _gains_table(found),
        *(prose(_crossover(each, found.batch)) for each in found.crossovers),
        note(rests),
    )


def _gains_table(found: Meaning) -> Table:
    classes = list(dict.fromkeys(gain.link_class for gain in found.gains))
    models = dict.fromkeys((gain.workload, gain.title, gain.params) for gain in found.gains)
    of = {(gain.workload, gain.link_class): gain for gain in found.gains}
    return Table(
        name="topology-gains",
        caption=(
            f"Speedup of two accelerators over one that share a batch of {found.batch}, below it the "
            f"{format_percent(LEVEL)} range"
        ),
        columns=(
            Column(title="Model", is_header=True),
            Column(title="Parameters", is_number=True),
            *(Column(title=name, is_number=True) for name in classes),
        ),
        rows=tuple(
            (
                named(title),
                number(params, format_rough),
                *(_gain(of[slug, name]) for name in classes),
            )
            for slug, title, params in models
        ),
    )


def _gain(gain: Gain) -> Cell:
    return Cell(
        text=f"{gain.speedup:.2f} ",
        key=gain.speedup,
        detail=f"{gain.low:.2f} {DASH} {gain.high:.2f}",
        badge=Badge(text=gain.verdict, tone=_GAIN_TONES[gain.verdict]),
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


# --- which to take


def _groups_blocks(found: Meaning) -> tuple[Block, ...]:
    islands = [name_range([printable(name) for name in group]) for group in found.islands.members]
    table = Table(
        name="topology-groups",
        caption="For each number of ranks, the group whose weakest link is the best",
        columns=(
            Column(title="Ranks", is_number=True),
            Column(title="Use", is_header=True),
            Column(title="Weakest link"),
            Column(title="Worst choice"),
        ),
        rows=tuple(
            (
                number(group.num_devices),
                Cell(text=name_range([printable(name) for name in group.devices])),
                Cell(text=group.link_class),
                Cell(text=group.worst_class or ABSENT),
            )
            for group in found.groups
        ),
    )
    without = f"Islands, connected without the slowest links: {'; '.join(islands)}." if islands else ""
    return (note(without), table)


# --- one screen


def _brief(found: Meaning, _: int) -> tuple[Block, ...]:
    """The matrix, the gains over the weakest link, and what is not known, on one screen."""
    topology = found.topology
    is_drawn = topology.links and len(topology.devices) + len(topology.nics) <= _MOST_DRAWN
    unknown = gaps(topology)[:_MOST_GAPS]
    return (
        *_processors(topology),
        *((_matrix(found),) if is_drawn else ()),
        *(_brief_gains(found) if found.gains else ()),
        bullets(map(sentence, unknown)),
        more_note("link rates", "crossovers", "which accelerators to use"),
    )


def _brief_gains(found: Meaning) -> Iterator[Block]:
    weakest = found.gains[-1].link_class
    gains = [gain for gain in found.gains if gain.link_class == weakest]
    columns = (
        Column(title=f"Two over one, {weakest}", is_header=True),
        Column(title="Parameters", is_number=True),
        Column(title="Speedup", is_number=True),
        Column(title=f"{format_percent(LEVEL)} range", is_number=True),
        Column(title="Verdict"),
    )
    rows = []
    for gain in gains:
        cell = _gain(gain)
        rows.append(
            (
                Cell(text=gain.title, key=gain.title),
                number(gain.params, format_rough),
                Cell(text=cell.text.strip(), key=cell.key),
                Cell(text=cell.detail or ABSENT, key=gain.low),
                Cell(text="", badge=cell.badge),
            )
        )
    yield Table(name="topology-gains", caption="", columns=columns, rows=tuple(rows))
    yield note(sentence(basis(found)))


TOPOLOGY: Final[Page[Meaning]] = Page(
    title=lambda found: f"Topology: {_headline(found)}",
    about=_about,
    headline=_headline,
    summary=lambda found: tuple(map(sentence, sentences(found)[1 : 1 + _MOST_SENTENCES])),
    sections=(
        Section(name="topology-links", title="Links", needs=("topology",), blocks=_links_blocks),
        Section(name="topology-reach", title="Link rates", needs=("reached",), blocks=_rates_blocks),
        Section(
            name="topology-gains", title="Speedup on two accelerators", needs=("gains",), blocks=_gains_blocks
        ),
        Section(
            name="topology-groups",
            title="Which accelerators to use",
            needs=("groups",),
            blocks=_groups_blocks,
        ),
    ),
    closing=lambda found: (
        "Read from the output of tools; rates are those of similar machines, not measured here.",
        f"Origin: {printable(found.topology.origin)}.",
    ),
    brief=_brief,
)
