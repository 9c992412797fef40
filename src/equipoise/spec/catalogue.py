"""The catalogue of a question: accelerators, systems and workloads, a user's files among them.

It is a value that is passed on: nothing here changes what another caller sees. Reading is elsewhere. Free
text, such as the hardware column of a table, names a cluster of it by whole words.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.files import keep_records
from equipoise.spec import FORM, MEMORY, canonical, family_of
from equipoise.spec.cluster import (
    LARGEST_HOST,
    Cluster,
    NodeFacts,
    System,
    Systems,
    build_cluster,
    load_systems,
    shipped_systems,
    usual_system,
)
from equipoise.spec.hardware import (
    BRANDS,
    Accelerator,
    AcceleratorAlias,
    has_same_peaks,
    load_hardware,
)
from equipoise.spec.workload import Workload, WorkloadTable, load_workloads, shipped_workloads
from equipoise.units import SI_PREFIXES

_COUNTED = re.compile(r"\s*([0-9]{1,12})\s*[x\u00d7]\s*(.+)", re.IGNORECASE)
_COUNTED_BEHIND = re.compile(r"\s*([^:]+?)\s*:\s*([0-9]{1,12})\s*")  # as SkyPilot and Ray write it


class Catalogue(Systems, frozen=True, kw_only=True):
    """Accelerators, systems and workloads with every spelling of them. Built by `catalogue`; read-only.

    Equal where the tables are equal, so it can be part of the key of a cache.

    >>> shipped().cluster("rtx4090", num_accelerators=2).accelerator.slug
    'rtx-4090-pcie-24gb'
    """

    workload_table: WorkloadTable

    def __hash__(self) -> int:
        """Of how much it has, known at once; catalogues of equal sizes are distinguished by comparing."""
        tables = (self.hardware.accelerators, self.by_slug, self.workload_table.workloads)
        return hash(tuple(map(len, tables)))

    def __repr__(self) -> str:
        """How much it has; the tables themselves are thousands of fields."""
        tables = (self.hardware.accelerators, self.by_slug, self.workload_table.workloads)
        return "Catalogue({} accelerators, {} systems, {} workloads)".format(*map(len, tables))

    def accelerator(self, name: str) -> Accelerator:
        """The accelerator that a person names: by slug, title, alias or a short name (`h100`, `rtx4090`).

        Raises SpecError with the nearest names and the file to edit, or with what it may mean.
        """
        return self.hardware.accelerator(name)

    def accelerator_alias(self, raw: str, system_name: str | None = None) -> AcceleratorAlias | None:
        """What a raw name of a log or table means, by exact aliases alone; None where there is none."""
        return self.hardware.alias(raw, system_name)

    def accelerator_slug(self, raw: str) -> str | None:
        """The slug that a raw name of a log or table stands for, by exact aliases alone."""
        found = self.accelerator_alias(raw)
        return None if found is None else found.slug

    def form_in_nodes_of(self, slug: str, node_size: int) -> str:
        """The form of a chip whose nodes hold so many, by slug: as given where no form differs in that alone.

        >>> shipped().form_in_nodes_of("gh200-superchip-96gb", 4)
        'gh200-quad-96gb'
        """
        family = [each for each in self.accelerators() if family_of(each.slug) == family_of(slug)]
        return _in_nodes_of(node_size, self.hardware.accelerators[slug], family).slug

    def slug_in_file(self, raw: str, asked: Sequence[str] = ()) -> str | None:
        """The slug of what a person calls an accelerator in a table: any name that `cluster` reads.

        asked: slugs of the question. A chip without its form and memory is the one form of it that is asked
        about. None for a name that is not known. Raises SpecError where it may mean several.

        >>> shipped().slug_in_file("rtx4090"), shipped().slug_in_file("a100", ["a100-pcie-40gb"])
        ('rtx-4090-pcie-24gb', 'a100-pcie-40gb')
        """
        words = tuple(canonical(raw).split())
        forms = [slug for slug in asked if family_of(slug) == words]
        if len(forms) == 1:
            return forms[0]
        found = self.chip_of(raw)
        return None if found is None else found.slug

    def near(self, kind: str, raw: str) -> tuple[str, ...]:
        """What may have been meant by a name of a workload or an accelerator that is not known."""
        return tuple(self.workload_table.near(raw) if kind == "workload" else self.near_systems(raw))

    def accelerators(self) -> tuple[Accelerator, ...]:
        """Every accelerator, in the order of the files."""
        return tuple(self.hardware.accelerators.values())

    def forms(self, name: str) -> frozenset[str]:
        """Slugs of the accelerators that a name means: a chip in all its forms (`h100`), or one of them.

        Raises SpecError for a name that is not known.
        """
        chip = name.strip().lower()
        slugs = [each.slug for each in self.accelerators()]
        alike = frozenset(each for each in slugs if each.split("-")[0] == chip)
        return alike or frozenset({self.accelerator(name).slug})

    def systems(self) -> tuple[System, ...]:
        """Every named system, in the order of the files."""
        return tuple(self.by_slug.values())

    def workload(self, name: str) -> Workload:
        """The workload of a slug, title or alias. Raises SpecError with the nearest names."""
        return self.workload_table.workload(name)

    def workload_slug(self, raw: str, round_number: float | None = None) -> str | None:
        """The slug that a raw name stands for, in a round where given; None when unknown."""
        return self.workload_table.slug(raw, round_number)

    def workloads(self) -> tuple[Workload, ...]:
        """Every workload, in the order of the files."""
        return tuple(self.workload_table.workloads.values())


def catalogue(hardware: Sequence[Path] = (), workloads: Sequence[Path] = ()) -> Catalogue:
    """The shipped tables and then a user's files; of two statements on a field or name the later wins.

    hardware: tables of accelerators and systems, as `--hardware` takes them; workloads: as `--workloads`.
    Raises SpecError with file and line where a file is not such a table.
    """
    if not hardware and not workloads:
        return shipped()
    systems = load_systems(hardware, load_hardware(hardware)) if hardware else shipped_systems()
    return _with_workloads(systems, load_workloads(workloads) if workloads else shipped_workloads())


@cache
def shipped() -> Catalogue:
    """The catalogue that comes with the package."""
    return _with_workloads(shipped_systems(), shipped_workloads())


def _with_workloads(known: Systems, workloads: WorkloadTable) -> Catalogue:
    return Catalogue(
        by_slug=known.by_slug, names=known.names, hardware=known.hardware, workload_table=workloads
    )


# What says what is in the shipped tables of accelerators and workloads: modules and tables of this package.
_MADE_OF: Final = (
    *("__init__.py", "errors.py", "files.py", "units.py", "spec/__init__.py", "spec/hardware.py"),
    *("spec/hardware.toml", "spec/software.toml", "spec/strategy.py", "spec/transformer.py"),
    *("spec/workload.py", "spec/workloads.toml"),
)


def keep_shipped() -> None:
    """Keep the shipped tables of accelerators and workloads as records, read in a tenth of the time.

    Installing the package does so.
    """
    keep_records({"hardware": load_hardware(), "workloads": load_workloads()}, _MADE_OF)


def counted_name(text: str) -> tuple[int | None, str]:
    """The number with a name that a person types, and the name; None where it has no number.

    >>> counted_name("3x rtx4090"), counted_name("64xh100"), counted_name("dgx-h100"), counted_name("h100:8")
    ((3, 'rtx4090'), (64, 'h100'), (None, 'dgx-h100'), (8, 'h100'))
    """
    behind = _COUNTED_BEHIND.fullmatch(text)
    if behind is not None:
        return int(behind[2]), behind[1]
    found = _COUNTED.fullmatch(text)
    return (int(found[1]), found[2].rstrip()) if found else (None, text.strip())


# The longest column of hardware seen has about 100 characters; what is far longer describes no cluster.
MAX_CHARS = 1_000
# The shipped catalogue, and those of users' files in the same process.
_MOST_CATALOGUES = 8


def cluster_in_text(
    text: str, *, num_accelerators: int | None = None, catalogue: Catalogue | None = None
) -> Cluster | None:
    """The cluster that a text describes in words; None where it names no known system or accelerator.

    num_accelerators: how many there are; one node unless given. catalogue: the shipped one unless given.
    What the text states of memory, form, size of a node and network stands above the tables. A network rate
    without a count is that of one card: from 100 Gb/s on a node has its usual number of such cards, below it
    has one. Assumes that of a chip in several sizes the text means the usual one when it does not state it.
    Raises SpecError where the tables lack what a cluster needs.

    >>> cluster_in_text("8x A100-SXM4-40GB, 100 Gb/s per node", num_accelerators=16).inter.byte_per_s
    1562500000.0
    >>> cluster_in_text("RTX A400") is None
    True
    """
    words = _words(_DENIED_LINK.sub(" ", text[:MAX_CHARS]))
    known = catalogue or shipped()
    chips, systems = _spellings(known)
    chip_at, system_at = _longest(words, chips), _longest(words, systems)
    system = None if system_at is None else known.by_slug[system_at.slugs[0]]
    if chip_at is not None and system is not None:
        family = {family_of(slug) for slug in system.accelerators}
        if not family & {family_of(slug) for slug in chip_at.slugs}:
            system = None  # the word means something else here: the text names another chip
    if chip_at is None and system is None:
        return None
    chip = _chip(words, chip_at, system, known.hardware.accelerators)
    if _OF_LAPTOPS & set(words) and not _OF_LAPTOPS & set(chip.slug.split("-")):
        return None  # fewer cores, a lower limit of power, often less memory: another chip of that name
    node = system or usual_system(chip, "bridge" if _is_bridged(words, chip) else None)
    usual = build_cluster(node, accelerator=chip)
    stated = _stated_node(words, chip_at if system is None else None, usual)
    whole = build_cluster(node, accelerator=chip, num_accelerators=num_accelerators, **stated)
    return _with_network(text[:MAX_CHARS], whole)


# Word sequences, and the slugs that they may mean.
_Spellings: TypeAlias = Mapping[tuple[str, ...], tuple[str, ...]]


class _Match(Struct, frozen=True, kw_only=True):
    """Where a spelling stands in the words, and the slugs it may mean, the likeliest first."""

    start: int
    end: int
    slugs: tuple[str, ...]


_COUNT_BEFORE = re.compile(r"(?<![\w.])(\d+)\s*[xX\u00d7]\s*(?=[A-Za-z]|\d{4}(?!\w))")
# A text that says that nothing joins the cards names the links nevertheless: "no NVLink", "NVLink disabled".
_DENIED_LINK = re.compile(
    r"\b(?:no|non|not|without)[\s-]+(?:(?:an?|any|using)\s+)?(?:(?:NVLinks?|NVSwitch|bridged?|bridges)\b\s*)+"
    r"|\bNV(?:Link|Switch)\s*[:=]?\s*(?:is\s+)?(?:off|disabled|absent|none|no)\b",
    re.IGNORECASE,
)
_OF_LAPTOPS = frozenset({"laptop", "laptops", "notebook", "mobile"})
_JOINED_BY_LINKS = frozenset({"nvlink", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvswitch"})


def _words(text: str) -> tuple[str, ...]:
    """The words of a text as they are compared, a count apart from what it counts."""
    return tuple(canonical(_COUNT_BEFORE.sub(r"\1 ", text)).split())


@lru_cache(maxsize=_MOST_CATALOGUES)
def _spellings(catalogue: Catalogue) -> tuple[_Spellings, _Spellings]:
    """Every spelling of the accelerators and of the systems of a catalogue."""
    known = catalogue.accelerators()
    families: dict[tuple[str, ...], list[str]] = {}
    for chip in known:
        families.setdefault(family_of(chip.slug), []).append(chip.slug)
    chips: dict[tuple[str, ...], tuple[str, ...]] = {}
    for chip in known:
        same_family = tuple(families[family_of(chip.slug)])
        for spelling in _spelled(chip, family_of(chip.slug)):
            chips.setdefault(spelling, same_family)
        own = (chip.slug, *(slug for slug in same_family if slug != chip.slug))
        for name in (chip.slug, chip.title, *chip.aliases):
            for spelling in (_words(name), _without_vendor(chip, _words(name))):
                chips[spelling] = own
    systems: dict[tuple[str, ...], tuple[str, ...]] = {}
    for system in catalogue.systems():
        for name in (system.slug, system.title, *system.aliases):
            if catalogue.find(name) == system:  # a later file may have moved the name
                systems[_words(name)] = (system.slug,)
    chips.pop((), None)
    systems.pop((), None)
    return chips, systems


def _spelled(chip: Accelerator, family: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """How a family is written: its words, those run together, and without the maker's line (RTX) in front.

    What is left without the line has a number: "TITAN RTX" is not written "RTX".
    """
    yield family
    yield ("".join(family),)
    if chip.kind == "gpu" and any(char.isdigit() for word in family[1:] for char in word):
        yield family[1:]


def _without_vendor(chip: Accelerator, words: tuple[str, ...]) -> tuple[str, ...]:
    """A name without its maker, and without a remark such as the socket of a CPU."""
    dropped = {*canonical(chip.vendor).split(), "socket", *BRANDS}
    return tuple(word for word in words if word not in dropped)


def _longest(words: tuple[str, ...], spellings: _Spellings) -> _Match | None:
    """The spelling of most words that occurs; of several the first. A bare number has to follow a count."""
    best: _Match | None = None
    most = max(map(len, spellings), default=0)
    for start in range(len(words)):
        for end in range(min(len(words), start + most), start, -1):
            slugs = spellings.get(words[start:end])
            if slugs is None or (best is not None and end - start <= best.end - best.start):
                continue
            bare = end - start == 1 and words[start].isdecimal()
            if bare and (start == 0 or not words[start - 1].isdecimal()):
                continue
            best = _Match(start=start, end=end, slugs=slugs)
    return best


def _chip(
    words: tuple[str, ...], match: _Match | None, system: System | None, known: Mapping[str, Accelerator]
) -> Accelerator:
    """The accelerator that is meant: of the family, the one whose memory and form the text states."""
    slugs = match.slugs if match is not None else system.accelerators if system is not None else ()
    if system is not None:
        family = {family_of(slug) for slug in slugs}
        own = [slug for slug in system.accelerators if family_of(slug) in family]
        slugs = (*own, *(slug for slug in slugs if slug not in own))
    memories = {f"{found[1]}{found[2]}b" for word in words if (found := MEMORY.fullmatch(word))}
    slugs = _those(slugs, lambda slug: slug.rpartition("-")[2] in memories)
    matched = range(match.start, match.end) if match is not None else ()
    others = [word for at, word in enumerate(words) if at not in matched]
    slugs = _those(slugs, lambda slug: any(_is_form(word, slug) for word in others))
    if _JOINED_BY_LINKS & set(words) and not any(map(FORM.fullmatch, words)):
        slugs = _those(slugs, lambda slug: known[slug].topology != "host")
    first, size = known[slugs[0]], _node_size(words)
    if size is None or system is not None:
        return first
    return _in_nodes_of(size, first, [known[slug] for slug in slugs])


def _in_nodes_of(size: int, chip: Accelerator, family: Iterable[Accelerator]) -> Accelerator:
    """The accelerator of a family with nodes of a size that is otherwise like the chip; else the chip."""
    of_size = (each for each in (chip, *family) if each.node_size == size)
    return next((each for each in of_size if _is_built_otherwise(each, chip)), chip)


def _is_built_otherwise(one: Accelerator, other: Accelerator) -> bool:
    """Whether two of a family differ in what they are built into alone: GH200 is one or four to a node."""
    same = (one.memory_bytes, one.link) == (other.memory_bytes, other.link)
    return same and has_same_peaks(one, other)


def _node_size(words: tuple[str, ...]) -> int | None:
    """How many accelerators a node has, by the words."""
    found = _PER_NODE.search(" ".join(words))
    return None if found is None else int(found[1])


def _those(slugs: tuple[str, ...], wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """The slugs that are wanted; all of them where none is."""
    return tuple(filter(wanted, slugs)) or slugs


def _is_form(word: str, slug: str) -> bool:
    """Whether a word names a variant that a slug has: `sxm5`, or `sxm` for any of them."""
    parts = slug.split("-")
    return FORM.fullmatch(word) is not None and any(
        part == word or (part.rstrip("0123456789") == word and FORM.fullmatch(part)) for part in parts
    )


def _stated_node(words: tuple[str, ...], counted: _Match | None, usual: Cluster) -> NodeFacts:
    """What the text states about the size of a node.

    counted: the accelerator, where a number before it is that size (not so with a named system).
    """
    stated: NodeFacts = {}
    # Where links join more than a host holds (NVL72), how many a host has says nothing of them.
    size = _node_size(words) if usual.node_size <= LARGEST_HOST else None
    if size is None and counted is not None:
        size = _count_before(words, counted, usual)
    if size is not None and size != usual.node_size:
        stated["node_size"] = size
    return stated


def _is_bridged(words: tuple[str, ...], chip: Accelerator) -> bool:
    """Whether the text puts a bridge between cards that otherwise meet in their host."""
    can_be = chip.bridge_byte_per_s is not None or "bridge" in (chip.link or "").split()
    return chip.topology == "host" and can_be and bool({"nvlink", "bridge", "bridged"} & set(words))


def _count_before(words: tuple[str, ...], chip: _Match, usual: Cluster) -> int | None:
    """The number right before the accelerator, where it can be the size of a node and is no total."""
    at = chip.start
    while at > 0 and words[at - 1] in {*canonical(usual.accelerator.vendor).split(), "geforce"}:
        at -= 1
    if at == 0 or not words[at - 1].isdecimal() or len(words[at - 1]) > _MAX_DIGITS:
        return None
    count = int(words[at - 1])
    return count if 0 < count <= LARGEST_HOST and usual.node_size <= LARGEST_HOST else None


def _with_network(text: str, usual: Cluster) -> Cluster:
    """The cluster with the network a text states: its rate, and the latency of EFA or TCP where named."""
    share = _network_share(text, usual)
    link = usual.inter if share is None else replace(usual.inter, byte_per_s=share)
    for words, latency_s in _UNORDERED:
        if words.search(text) and not _ORDERED.search(text):
            return replace(usual, inter=replace(link, latency_s=latency_s), keeps_order=False)
    return replace(usual, inter=link)


def _network_share(text: str, usual: Cluster) -> float | None:
    """An accelerator's share of the network rate that a text states, in byte/s; None where it states none.

    Assumes that what is stated of a node is of one host, where a text says how many accelerators that has and
    links join those of several (NVL72).
    """
    size = _node_size(_words(text)) or usual.node_size
    for found in _RATE.finditer(text):
        rest = text[found.end() : found.end() + _NEAR_CHARS]
        in_bytes = found["unit"].startswith(("GB/", "GBps"))
        if _OTHER_LINK.match(rest) or (in_bytes and not _NETWORK.search(rest)):
            continue
        tera = found["unit"].startswith("T")
        rate = float(found["rate"]) * SI_PREFIXES["T" if tera else "G"] / (1 if in_bytes else _BITS_PER_BYTE)
        if rate <= 0:
            continue
        if found["count"] is not None:
            return rate * int(found["count"]) / size
        if _EACH.search(rest):
            return rate
        if tera or _NODE.search(rest) or rate < _CARD_EACH_BYTE_PER_S or usual.num_nics is None:
            return rate / size
        return rate * usual.num_nics / usual.node_size
    named = _GENERATION.search(text)
    if named is None:
        return None
    share = int(named["count"]) / size if named["count"] else (usual.num_nics or 1) / usual.node_size
    name = re.sub(r"[- ]", "", named["name"]).upper()
    return share * _GENERATIONS[name] * SI_PREFIXES["G"] / _BITS_PER_BYTE


_BITS_PER_BYTE = 8
_MAX_DIGITS = 4
_NEAR_CHARS = 30
_CARD_EACH_BYTE_PER_S = 100 * SI_PREFIXES["G"] / _BITS_PER_BYTE  # slower cards are one per node
# As `8 GPUs per node`, `8 cards a node`, `4 GPUs / host` or `4 per node`.
_PER_NODE = re.compile(
    r"\b(\d{1,4}) (?:(?:gpus?|accelerators?|cards?|chips?) (?:per |a |each )?|(?:per|a) )"
    r"(?:nodes?|servers?|hosts?)\b"
)
_RATE = re.compile(
    r"(?:(?<![\w.])(?P<count>\d{1,3})\s*[xX\u00d7]\s*)?(?<![\w.])(?P<rate>\d{1,5}(?:\.\d{1,4})?)\s*-?"
    r"(?P<unit>[GT](?:b/s|bps|[bB]it(?:/s)?|b\b|bE\b|igE\b)|GB/s|GBps)"
)
_OTHER_LINK = re.compile(r"\W*(?:NVLink|NVSwitch|HBM|memory|GDDR|PCIe|xGMI)", re.IGNORECASE)
_NETWORK = re.compile(
    r"EFA|\bIB\b|InfiniBand|RoCE|Ethernet|RDMA|\bNIC|network|Slingshot|\bCX-?\d", re.IGNORECASE
)
# Networks that deliver out of order, with the latency of a hop: EFA as aws-ofi-nccl has it,
# TCP by our convention (hardware.toml).
_UNORDERED = (
    (re.compile(r"\bEFA\b"), 20e-6),
    (re.compile(r"\bTCP\b|\b[Ee]thernet\b|\d ?GbE\b|\d ?GigE\b"), 25e-6),
)
_ORDERED = re.compile(r"RoCE|RDMA|InfiniBand|\bIB\b", re.IGNORECASE)
_EACH = re.compile(r"(?:per|a|each|/)\s*(?:GPU|accelerator|card|chip)", re.IGNORECASE)
_NODE = re.compile(r"(?:per|a|each|/)\s*(?:node|server|host|machine)", re.IGNORECASE)
# InfiniBand by its generations, four lanes; Slingshot by its own: 100 Gb/s cards and 200 Gb/s cards
# (https://docs.nersc.gov/systems/perlmutter/architecture/).
_GENERATIONS = {
    "FDR": 56,
    "EDR": 100,
    "HDR100": 100,
    "HDR": 200,
    "NDR": 400,
    "XDR": 800,
    "SLINGSHOT10": 100,
    "SLINGSHOT11": 200,
}
_GENERATION = re.compile(
    r"(?:(?<![\w.])(?P<count>\d{1,3})\s*[xX\u00d7]?\s+)?"
    r"\b(?P<name>FDR|EDR|HDR100|HDR|NDR|XDR|Slingshot[- ]?1[01])\b",
    re.IGNORECASE,
)
