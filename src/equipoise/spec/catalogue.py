"""The catalogue of a question: accelerators, systems and workloads, including those of a user's files.

It is an immutable value that is passed as an argument. A cluster can also be found in free text, such as the
hardware column of a table, by whole words.
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
# `h100:64`, the syntax of SkyPilot and Ray; `h100=64`, that of other options; `h100 x 64`
_COUNTED_BEHIND = re.compile(r"\s*([^:=]+?)(?:\s*[:=]\s*|\s+[x\u00d7]\s*)([0-9]{1,12})\s*", re.IGNORECASE)


class Catalogue(Systems, frozen=True, kw_only=True):
    """Accelerators, systems and workloads with all their spellings. Built by `catalogue`; read-only.

    Catalogues with equal tables are equal, so a catalogue can be part of a cache key.

    >>> shipped().cluster("rtx4090", num_accelerators=2).accelerator.slug
    'rtx-4090-pcie-24gb'
    """

    workload_table: WorkloadTable

    def __hash__(self) -> int:
        """Return a hash of the table sizes, which is fast; catalogues of equal sizes are compared."""
        tables = (self.hardware.accelerators, self.by_slug, self.workload_table.workloads)
        return hash(tuple(map(len, tables)))

    def __repr__(self) -> str:
        """Return the table sizes, because the tables have thousands of fields."""
        tables = (self.hardware.accelerators, self.by_slug, self.workload_table.workloads)
        return "Catalogue({} accelerators, {} systems, {} workloads)".format(*map(len, tables))

    def accelerator(self, name: str) -> Accelerator:
        """Return the accelerator of a slug, title, alias or short name (`h100`, `rtx4090`).

        Raises SpecError with similar names and the file to edit, or with the candidates if it is ambiguous.
        """
        return self.hardware.accelerator(name)

    def accelerator_alias(self, raw: str, system_name: str | None = None) -> AcceleratorAlias | None:
        """Return the alias of a raw name in a log or table, by exact match only; None if unknown."""
        return self.hardware.alias(raw, system_name)

    def accelerator_slug(self, raw: str) -> str | None:
        """Return the slug of a raw name in a log or table, by exact match only; None if unknown."""
        found = self.accelerator_alias(raw)
        return None if found is None else found.slug

    def form_in_nodes_of(self, slug: str, node_size: int) -> str:
        """Return the slug of the same chip in nodes of this size; the given slug if there is no such form.

        >>> shipped().form_in_nodes_of("gh200-superchip-96gb", 4)
        'gh200-quad-96gb'
        """
        family = [each for each in self.accelerators() if family_of(each.slug) == family_of(slug)]
        return _in_nodes_of(node_size, self.hardware.accelerators[slug], family).slug

    def slug_in_file(self, raw: str, asked: Sequence[str] = ()) -> str | None:
        """Return the slug of an accelerator named in a user's table, by any name that `cluster` reads.

        asked: slugs in the question. A chip's name without form and memory means the form in the question, if
        there is exactly one. None for an unknown name. Raises SpecError if the name is ambiguous.

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
        """Return names similar to an unknown name of a workload or an accelerator."""
        return tuple(self.workload_table.near(raw) if kind == "workload" else self.near_systems(raw))

    def accelerators(self) -> tuple[Accelerator, ...]:
        """Return every accelerator, in the order of the files."""
        return tuple(self.hardware.accelerators.values())

    def forms(self, name: str) -> frozenset[str]:
        """Return the slugs that a name means: all forms of a chip (`h100`), or a single accelerator.

        Raises SpecError for an unknown name.
        """
        chip = name.strip().lower()
        slugs = [each.slug for each in self.accelerators()]
        alike = frozenset(each for each in slugs if each.split("-")[0] == chip)
        return alike or frozenset({self.accelerator(name).slug})

    def systems(self) -> tuple[System, ...]:
        """Return every named system, in the order of the files."""
        return tuple(self.by_slug.values())

    def workload(self, name: str) -> Workload:
        """Return the workload of a slug, title or alias. Raises SpecError with similar names."""
        return self.workload_table.workload(name)

    def workload_slug(self, raw: str, round_number: float | None = None) -> str | None:
        """Return the slug of a raw name, in a round if given; None if unknown."""
        return self.workload_table.slug(raw, round_number)

    def workloads(self) -> tuple[Workload, ...]:
        """Return every workload, in the order of the files."""
        return tuple(self.workload_table.workloads.values())


def catalogue(hardware: Sequence[Path] = (), workloads: Sequence[Path] = ()) -> Catalogue:
    """Return the shipped tables combined with a user's files, which override fields and names.

    hardware: tables of accelerators and systems, as for `--hardware`; workloads: as for `--workloads`.
    Raises SpecError with file and line if a file is invalid.
    """
    if not hardware and not workloads:
        return shipped()
    systems = load_systems(hardware, load_hardware(hardware)) if hardware else shipped_systems()
    return _with_workloads(systems, load_workloads(workloads) if workloads else shipped_workloads())


@cache
def shipped() -> Catalogue:
    """Return the catalogue that ships with the package."""
    return _with_workloads(shipped_systems(), shipped_workloads())


def _with_workloads(known: Systems, workloads: WorkloadTable) -> Catalogue:
    return Catalogue(
        by_slug=known.by_slug, names=known.names, hardware=known.hardware, workload_table=workloads
    )


# Files on which the cached tables of accelerators and workloads depend: modules and tables of this package.
_DEPENDENCIES: Final = (
    *("__init__.py", "errors.py", "files.py", "units.py", "spec/__init__.py", "spec/hardware.py"),
    *("spec/hardware.toml", "spec/software.toml", "spec/strategy.py", "spec/transformer.py"),
    *("spec/workload.py", "spec/workloads.toml"),
)


def keep_shipped() -> None:
    """Cache the shipped tables of accelerators and workloads as records, which load ten times as fast.

    This is done when the package is installed.
    """
    keep_records({"hardware": load_hardware(), "workloads": load_workloads()}, _DEPENDENCIES)


def counted_name(text: str) -> tuple[int | None, str]:
    """Return the count and the name in a text that a user types; None as count if there is none.

    >>> counted_name("3x rtx4090"), counted_name("64xh100"), counted_name("dgx-h100"), counted_name("h100:8")
    ((3, 'rtx4090'), (64, 'h100'), (None, 'dgx-h100'), (8, 'h100'))
    >>> counted_name("h100=64"), counted_name("h100 x 64")
    ((64, 'h100'), (64, 'h100'))
    """
    behind = _COUNTED_BEHIND.fullmatch(text)
    if behind is not None:
        return int(behind[2]), behind[1]
    found = _COUNTED.fullmatch(text)
    return (int(found[1]), found[2].rstrip()) if found else (None, text.strip())


# The longest hardware column seen has about 100 characters; a far longer text does not describe a cluster.
MAX_CHARS = 1_000
# The cache holds the shipped catalogue and those of users' files.
_MOST_CATALOGUES = 8


def cluster_in_text(
    text: str, *, num_accelerators: int | None = None, catalogue: Catalogue | None = None
) -> Cluster | None:
    """Return the cluster described by a text; None if it names no known system or accelerator.

    num_accelerators: by default one node. catalogue: by default the shipped one.
    Memory, form, node size and network stated in the text override the tables. A network rate without a count
    is that of one card; a node has its usual number of cards from 100 Gb/s, and a single card below. Assumes
    the usual memory size if a chip has several and the text states none.
    Raises SpecError if the tables lack facts that a cluster needs.

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
            system = None  # the text names another chip, so the word does not mean the system
    if chip_at is None and system is None:
        return None
    chip = _chip(words, chip_at, system, known.hardware.accelerators)
    if _OF_LAPTOPS & set(words) and not _OF_LAPTOPS & set(chip.slug.split("-")):
        return None  # a laptop chip of the same name has fewer cores, less power and often less memory
    node = system or usual_system(chip, "bridge" if _is_bridged(words, chip) else None)
    usual = build_cluster(node, accelerator=chip)
    stated = _stated_node(words, chip_at if system is None else None, usual)
    whole = build_cluster(node, accelerator=chip, num_accelerators=num_accelerators, **stated)
    return _with_network(text[:MAX_CHARS], whole)


# Word sequences with the slugs that they may mean.
_Spellings: TypeAlias = Mapping[tuple[str, ...], tuple[str, ...]]


class _Match(Struct, frozen=True, kw_only=True):
    """The position of a spelling in the words, and the slugs it may mean, the likeliest first."""

    start: int
    end: int
    slugs: tuple[str, ...]


_COUNT_BEFORE = re.compile(r"(?<![\w.])(\d+)\s*[xX\u00d7]\s*(?=[A-Za-z]|\d{4}(?!\w))")
# Texts that mention links only to deny them: "no NVLink", "NVLink disabled".
_DENIED_LINK = re.compile(
    r"\b(?:no|non|not|without)[\s-]+(?:(?:an?|any|using)\s+)?(?:(?:NVLinks?|NVSwitch|bridged?|bridges)\b\s*)+"
    r"|\bNV(?:Link|Switch)\s*[:=]?\s*(?:is\s+)?(?:off|disabled|absent|none|no)\b",
    re.IGNORECASE,
)
_OF_LAPTOPS = frozenset({"laptop", "laptops", "notebook", "mobile"})
_JOINED_BY_LINKS = frozenset({"nvlink", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvswitch"})


def _words(text: str) -> tuple[str, ...]:
    """Return the canonical words of a text, with a count separated from what it counts."""
    return tuple(canonical(_COUNT_BEFORE.sub(r"\1 ", text)).split())


@lru_cache(maxsize=_MOST_CATALOGUES)
def _spellings(catalogue: Catalogue) -> tuple[_Spellings, _Spellings]:
    """Return every spelling of a catalogue's accelerators and of its systems."""
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
            if catalogue.find(name) == system:  # a later file may have reassigned the name
                systems[_words(name)] = (system.slug,)
    chips.pop((), None)
    systems.pop((), None)
    return chips, systems


def _spelled(chip: Accelerator, family: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield spellings of a family: its words, the joined words, and the words without the product line (RTX).

    The line is omitted only if a number remains: "TITAN RTX" is not written "RTX".
    """
    yield family
    yield ("".join(family),)
    if chip.kind == "gpu" and any(char.isdigit() for word in family[1:] for char in word):
        yield family[1:]


def _without_vendor(chip: Accelerator, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a name without its vendor, brand and the word `socket`."""
    dropped = {*canonical(chip.vendor).split(), "socket", *BRANDS}
    return tuple(word for word in words if word not in dropped)


def _longest(words: tuple[str, ...], spellings: _Spellings) -> _Match | None:
    """Return the first of the longest spellings in the words. A bare number must follow a count."""
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
    """Return the accelerator of the matched family with the memory and form stated in the text."""
    slugs = match.slugs if match is not None else system.accelerators if system is not None else ()
    if system is not None:
        family = {family_of(slug) for slug in slugs}
        own = [slug for slug in system.accelerators if family_of(slug) in family]
        slugs = (*own, *(slug for slug in slugs if slug not in own))
    memories = {f"{found[1]}{found[2]}b" for word in words if (found := MEMORY.fullmatch(word))}
    slugs = _narrowed(slugs, lambda slug: slug.rpartition("-")[2] in memories)
    matched = range(match.start, match.end) if match is not None else ()
    others = [word for at, word in enumerate(words) if at not in matched]
    slugs = _narrowed(slugs, lambda slug: any(_is_form(word, slug) for word in others))
    if _JOINED_BY_LINKS & set(words) and not any(map(FORM.fullmatch, words)):
        slugs = _narrowed(slugs, lambda slug: known[slug].topology != "host")
    first, size = known[slugs[0]], _node_size(words)
    if size is None or system is not None:
        return first
    return _in_nodes_of(size, first, [known[slug] for slug in slugs])


def _in_nodes_of(size: int, chip: Accelerator, family: Iterable[Accelerator]) -> Accelerator:
    """Return a family's accelerator with this node size that otherwise equals the chip; else the chip."""
    of_size = (each for each in (chip, *family) if each.node_size == size)
    return next((each for each in of_size if _differs_in_node_only(each, chip)), chip)


def _differs_in_node_only(one: Accelerator, other: Accelerator) -> bool:
    """Return whether two of a family differ at most in their nodes, as GH200 with one or four per node."""
    same = (one.memory_bytes, one.link) == (other.memory_bytes, other.link)
    return same and has_same_peaks(one, other)


def _node_size(words: tuple[str, ...]) -> int | None:
    """Return the number of accelerators per node stated in the words, or None."""
    found = _PER_NODE.search(" ".join(words))
    return None if found is None else int(found[1])


def _narrowed(slugs: tuple[str, ...], wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the wanted slugs, or all of them if none is wanted."""
    return tuple(filter(wanted, slugs)) or slugs


def _is_form(word: str, slug: str) -> bool:
    """Return whether a word names a form factor of the slug: `sxm5`, or `sxm` for any number."""
    parts = slug.split("-")
    return FORM.fullmatch(word) is not None and any(
        part == word or (part.rstrip("0123456789") == word and FORM.fullmatch(part)) for part in parts
    )


def _stated_node(words: tuple[str, ...], counted: _Match | None, usual: Cluster) -> NodeFacts:
    """Return the node size stated in the text.

    counted: the accelerator, if a number before it means the node size; None with a named system.
    """
    stated: NodeFacts = {}
    # If links join more accelerators than a host holds (NVL72), the number per host is irrelevant.
    size = _node_size(words) if usual.node_size <= LARGEST_HOST else None
    if size is None and counted is not None:
        size = _count_before(words, counted, usual)
    if size is not None and size != usual.node_size:
        stated["node_size"] = size
    return stated


def _is_bridged(words: tuple[str, ...], chip: Accelerator) -> bool:
    """Return whether the text states a bridge between cards that usually communicate through their host."""
    can_be = chip.bridge_byte_per_s is not None or "bridge" in (chip.link or "").split()
    return chip.topology == "host" and can_be and bool({"nvlink", "bridge", "bridged"} & set(words))


def _count_before(words: tuple[str, ...], chip: _Match, usual: Cluster) -> int | None:
    """Return the number directly before the accelerator if it can be the size of a node, not a total."""
    at = chip.start
    while at > 0 and words[at - 1] in {*canonical(usual.accelerator.vendor).split(), "geforce"}:
        at -= 1
    if at == 0 or not words[at - 1].isdecimal() or len(words[at - 1]) > _MAX_DIGITS:
        return None
    count = int(words[at - 1])
    return count if 0 < count <= LARGEST_HOST and usual.node_size <= LARGEST_HOST else None


def _with_network(text: str, usual: Cluster) -> Cluster:
    """Return the cluster with the network stated in a text: its rate, and the latency of EFA or TCP."""
    share = _network_share(text, usual)
    link = usual.inter if share is None else replace(usual.inter, byte_per_s=share)
    for words, latency_s in _UNORDERED:
        if words.search(text) and not _ORDERED.search(text):
            return replace(usual, inter=replace(link, latency_s=latency_s), keeps_order=False)
    return replace(usual, inter=link)


def _network_share(text: str, usual: Cluster) -> float | None:
    """Return an accelerator's share of the network rate stated in a text, in byte/s; None if there is none.

    Assumes that a rate per node is per host, if the text states the accelerators per host and links join
    several hosts (NVL72).
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
# Matches `8 GPUs per node`, `8 cards a node`, `4 GPUs / host` or `4 per node`.
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
# Networks that deliver out of order, with the latency per hop: EFA from aws-ofi-nccl, TCP by our convention
# (hardware.toml).
_UNORDERED = (
    (re.compile(r"\bEFA\b"), 20e-6),
    (re.compile(r"\bTCP\b|\b[Ee]thernet\b|\d ?GbE\b|\d ?GigE\b"), 25e-6),
)
_ORDERED = re.compile(r"RoCE|RDMA|InfiniBand|\bIB\b", re.IGNORECASE)
_EACH = re.compile(r"(?:per|a|each|/)\s*(?:GPU|accelerator|card|chip)", re.IGNORECASE)
_NODE = re.compile(r"(?:per|a|each|/)\s*(?:node|server|host|machine)", re.IGNORECASE)
# Gb/s of generations of InfiniBand (four lanes) and of Slingshot
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
