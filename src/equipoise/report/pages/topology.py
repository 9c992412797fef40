"""The page of a topology, with its JSON document: links, rates, speedup on two accelerators, which to use."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from equipoise.bench.topology.topology import DeviceLink, Nic, Topology
from equipoise.diagnose.link_findings import basis, gaps, sentences
from equipoise.diagnose.link_findings import named as name_range
from equipoise.diagnose.links import FAMILY, LEAST_GAIN, ClassReach, Crossover, Gain, Meaning
from equipoise.intervals import LEVEL
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    ColumnOf,
    Heading,
    Page,
    PairMatrix,
    Section,
    Table,
    Tone,
    bullets,
    more_note,
    names,
    note,
    number,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.format import DASH, listed, printable, sentence
from equipoise.spec.links import FABRICS, kind, rank
from equipoise.spec.links import meaning as what_lies_between
from equipoise.stats import by_key
from equipoise.units import format_percent, format_rough, format_si, plural, significant, tenths

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
# For one screen: a matrix of more devices does not fit.
_MOST_DRAWN: Final = 10
_MOST_SENTENCES: Final = 3
_MOST_GAPS: Final = 2


# --- head


def _about(found: Meaning) -> str:
    topology = found.topology
    titles = list(dict.fromkeys(printable(device.title) for device in topology.devices if device.title))
    who = listed(titles) if titles else plural(len(topology.devices), "device")
    return f"{who}, from {printable(topology.origin)}"


def _headline(found: Meaning) -> str:
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


_SOCKET_COLUMNS: Final = (
    names("Socket", "name"),
    numbers("Cores", "num_cores"),
    words("Threads", "cpu_affinity"),
    words("NUMA", "numa_affinity"),
)
_CARD_COLUMNS: Final = (
    names("Card", "name"),
    numbers("Per direction", "byte_per_s", lambda rate: format_si(rate, "B/s")),
)


def _processors(topology: Topology) -> tuple[Block, ...]:
    """Sockets and network cards, for a machine without accelerators."""
    if any(device.kind == "gpu" for device in topology.devices):
        return ()
    return (
        table_of("topology-sockets", _SOCKET_COLUMNS, topology.devices, caption="Processor sockets"),
        table_of("topology-cards", _CARD_COLUMNS, topology.nics, caption="Network cards"),
    )


def _matrix(found: Meaning) -> PairMatrix:
    """The link class of every pair."""
    topology = found.topology
    links = {frozenset((link.a, link.b)): link for link in topology.links}
    titles = {each.name: each.title for each in topology.devices}
    titles |= {each.name: each.title for each in topology.nics}
    classes = sorted({link.link_class for link in topology.links if link.link_class}, key=rank)
    alike = by_key((what_lies_between(name), name) for name in classes)
    legend = [(Badge(text=", ".join(same), tone=_tone(same[0])), between) for between, same in alike.items()]
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
    """The badge of one pair."""
    if link is None:
        return None
    if link.link_class is None:
        return Badge(text=printable("!" if link.conflict else link.peers or "?"), tone="quiet")
    return Badge(text=link.link_class, tone=_tone(link.link_class))


def _tone(name: str) -> Tone:
    return "good" if kind(name) in FABRICS else _LINK_TONES.get(name, "quiet")


# --- what the links carry


def _reached(each: ClassReach) -> Cell:
    """The rate, with the range across machines below."""
    ends = f"{_rate(each.reach.low)} to {_rate(each.reach.high)}"
    return number(each.reach.byte_per_s, _rate, detail=ends)


def _stated(each: ClassReach) -> Cell:
    stated = each.reach.stated_byte_per_s
    return Cell(text=" to ".join(dict.fromkeys(map(_rate, stated))), key=stated[1])


_RATE_COLUMNS: Final = (
    names("Class", "link_class"),
    words("Between them", lambda each: what_lies_between(each.link_class)),
    words("Path", lambda each: _PATHS[each.reach.path]),
    numbers("Pairs", "num_pairs"),
    numbers("Reached", _reached, meaning="below it the range across machines"),
    numbers("Stated", _stated, meaning="stated by the vendors, one direction"),
    numbers(
        "Latency",
        "reach.latency_s",
        lambda seconds: format_si(seconds * 1e6, "µs"),
        meaning="of an empty message over one hop",
    ),
)


def _rates_blocks(found: Meaning) -> tuple[Block, ...]:
    caption = "Rate of long transfers between two accelerators, per direction while both directions are busy"
    sources = dict.fromkeys(each.reach.source for each in found.reached)
    return (
        table_of("topology-rates", _RATE_COLUMNS, found.reached, caption=caption),
        note(f"Sources: {sentence('; '.join(sources))}."),
    )


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
    models = {gain.workload: gain for gain in found.gains}
    of = {(gain.workload, gain.link_class): gain for gain in found.gains}

    def over(link_class: str) -> ColumnOf:
        return numbers(link_class, lambda model: _gain(of[model.workload, link_class]))

    return table_of(
        "topology-gains",
        (names("Model", "title"), numbers("Parameters", "params", format_rough), *map(over, classes)),
        models.values(),
        caption=f"Speedup of two accelerators over one that share a batch of {found.batch}, below it the "
        f"{format_percent(LEVEL)} range",
    )


def _gain(gain: Gain) -> Cell:
    return Cell(text=f"{gain.speedup:.2f} ", key=gain.speedup, detail=_gain_range(gain), badge=_verdict(gain))


def _gain_range(gain: Gain) -> str:
    return f"{gain.low:.2f} {DASH} {gain.high:.2f}"


def _verdict(gain: Gain) -> Badge:
    return Badge(text=gain.verdict, tone=_GAIN_TONES[gain.verdict])


def _crossover(each: Crossover, batch: int) -> str:
    least = tenths(LEAST_GAIN - 1)
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


def _group_words(devices: Iterable[str]) -> str:
    return name_range([printable(name) for name in devices])


_GROUP_COLUMNS: Final = (
    numbers("Ranks", "num_devices"),
    names("Use", lambda group: _group_words(group.devices)),
    words("Weakest link", "link_class"),
    words("Worst choice", "worst_class"),
)


def _groups_blocks(found: Meaning) -> tuple[Block, ...]:
    islands = [_group_words(group) for group in found.islands.members]
    without = f"Islands, connected without the slowest links: {'; '.join(islands)}." if islands else ""
    caption = "For each number of ranks, the group whose weakest link is the best"
    return (note(without), table_of("topology-groups", _GROUP_COLUMNS, found.groups, caption=caption))


# --- one screen


def _brief(found: Meaning, _: int) -> tuple[Block, ...]:
    topology = found.topology
    is_drawn = topology.links and len(topology.devices) + len(topology.nics) <= _MOST_DRAWN
    unknown = gaps(topology)[:_MOST_GAPS]
    return (
        *_processors(topology),
        *((_matrix(found),) if is_drawn else ()),
        *(_brief_gains(found) if found.gains else ()),
        bullets(map(sentence, unknown)),
        more_note(
            *(() if is_drawn or not topology.links else ("the link of every pair",)),
            "link rates",
            "crossovers",
            "which accelerators to use",
        ),
    )


def _brief_gains(found: Meaning) -> Iterator[Block]:
    weakest = found.gains[-1].link_class
    columns = (
        names(f"Two over one, {weakest}", "title"),
        numbers("Parameters", "params", format_rough),
        numbers("Speedup", "speedup", "{:.2f}".format),
        numbers(f"{format_percent(LEVEL)} range", lambda gain: Cell(text=_gain_range(gain), key=gain.low)),
        words("Verdict", lambda gain: Cell(text="", badge=_verdict(gain)), is_kept=True),
    )
    yield table_of("topology-gains", columns, [gain for gain in found.gains if gain.link_class == weakest])
    yield note(sentence(basis(found)))


TOPOLOGY: Final[Page[Meaning]] = Page(
    title=lambda found: f"Topology: {_headline(found)}",
    about=_about,
    headline=_headline,
    summary=lambda found: tuple(map(sentence, sentences(found)[1 : 1 + _MOST_SENTENCES])),
    sections=(
        Section("topology-links", "Links", _links_blocks, needs=("topology",)),
        Section("topology-reach", "Link rates", _rates_blocks, needs=("reached",)),
        Section("topology-gains", "Speedup on two accelerators", _gains_blocks, needs=("gains",)),
        Section("topology-groups", "Which accelerators to use", _groups_blocks, needs=("groups",)),
    ),
    closing=lambda found: (
        "Read from the output of tools; rates are those of similar machines, not measured here.",
        f"Origin: {printable(found.topology.origin)}.",
    ),
    brief=_brief,
)


# --- document


def topology_fields(found: Meaning) -> dict[str, Any]:
    """The document of `topology`."""
    from equipoise.report.json import fields_of, plain  # noqa: PLC0415 - loads what the page does not need

    topology = found.topology
    fields = {
        "origin": topology.origin,
        "devices": [
            {"accelerator": found.catalogue.accelerator_slug(each.title or ""), **fields_of(each)}
            for each in topology.devices
        ],
        "links": [fields_of(each, link_class="class") for each in topology.links],
        "islands": plain(found.islands.members),
        "unplaced": plain(found.islands.unplaced),
        "groups": [fields_of(each, link_class="class") for each in found.groups],
        "nics": [{**fields_of(each), "nearest": _nearest(each, topology)} for each in topology.nics],
        "missing_rows": [row.name for row in topology.missing_rows],
        "cut_rows": [fields_of(row) for row in topology.missing_rows if row.num_cells],
        "meaning": list(sentences(found)),
        "notes": list(gaps(topology)),
        "rates": [
            {"class": each.link_class, "num_pairs": each.num_pairs, **fields_of(each.reach)}
            for each in found.reached
        ],
        "predictions": {
            "batch": found.batch,
            "level": LEVEL,
            "basis": basis(found),
            "accelerators": [chip.slug for chip in found.candidates],
            "gains": [
                {**fields_of(each, link_class="class", title=None), "verdict": each.verdict}
                for each in found.gains
            ],
            "crossovers": [
                {**fields_of(each, link_class="class"), "family": FAMILY} for each in found.crossovers
            ],
            "parts": [fields_of(each, link_class="class", title=None) for each in found.parts],
        },
    }
    return {name: significant(value) for name, value in fields.items()}


def _nearest(nic: Nic, topology: Topology) -> dict[str, Any] | None:
    """The best link class between a network card and any device, and the devices with that class."""
    known = topology.classes
    near = {
        device.name: known[pair]
        for device in topology.devices
        if (pair := frozenset((device.name, nic.name))) in known
    }
    best = min(near.values(), key=rank, default=None)
    if best is None:
        return None
    return {"class": best, "devices": [name for name, link_class in near.items() if link_class == best]}
