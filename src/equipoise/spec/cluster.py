"""What joins accelerators: links inside a node and between nodes, and mixtures of unequal ones.

Facts: clusters.toml, hardware.toml.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise, permutations
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec import FactBlock, canonical, claim_name, close_names, read_blocks, shown, unknown_name
from equipoise.spec.hardware import (
    BLOCK_KINDS,
    CONFIDENCES,
    DTYPES,
    EDIT,
    NARROW_DTYPES,
    NEAR,
    TOPOLOGIES,
    Accelerator,
    Confidence,
    Dtype,
    Hardware,
    Latency,
    LinkRate,
    Topology,
    capped,
    shipped_hardware,
)
from equipoise.units import MICROSECOND_S, format_si

LinkCounts: TypeAlias = tuple[tuple[int, ...], ...]
CLUSTERS_FILE = Path(__file__).with_name("clusters.toml")
# Domains of the fast links that are larger span hosts: racks and pods.
LARGEST_HOST = 16


_Pair: TypeAlias = tuple[int, int]


@cache
def _link_counts(rows: tuple[str, ...]) -> LinkCounts:
    return tuple(tuple(map(int, row.split())) for row in rows)


@cache
def ring_links(links: LinkCounts, ranks: tuple[int, ...]) -> int:
    """Links of each rank that disjoint rings through all ranks use, in each direction; 0 without a ring.

    links: between each two accelerators. ranks: at least two of them, each once.
    Assumes that a ring runs both ways, and so uses two links of each rank; two ranks use all they share.
    Source: Patarasuk and Yuan 2009; NCCL, src/graph/search.cc.

    >>> triangle = ((0, 1, 1), (1, 0, 1), (1, 1, 0))
    >>> ring_links(triangle, (0, 1)), ring_links(triangle, (0, 1, 2))
    (1, 2)
    """
    first, *others = ranks
    if len(others) == 1:
        return links[first][others[0]]
    rings = []
    for order in permutations(others):
        edges = Counter((min(pair), max(pair)) for pair in pairwise((first, *order, first)))
        if order[0] < order[-1] and all(links[a][b] >= 1 for a, b in edges):
            rings.append(edges)
    left = Counter({(a, b): links[a][b] for a in ranks for b in ranks if a < b})
    most = min(sum(links[a][b] for b in ranks) for a in ranks) // 2
    return 2 * next((count for count in range(most, 0, -1) if _hold(left, rings, count)), 0)


def _hold(left: Counter[_Pair], rings: Sequence[Counter[_Pair]], count: int) -> bool:
    """Whether so many of the rings, each perhaps several times, fit into the links that are left."""
    if not count:
        return True
    return any(
        edges <= left and _hold(left - edges, rings[place:], count - 1) for place, edges in enumerate(rings)
    )


class Link(Struct, frozen=True, kw_only=True):
    """A link as one accelerator sees it: byte/s one way, and the time of an empty message over one hop."""

    byte_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        """Refuse links that carry nothing."""
        if not self.byte_per_s > 0 or not self.latency_s >= 0:
            raise SpecError(
                f"link: byte_per_s={self.byte_per_s:g}, latency_s={self.latency_s:g}; "
                "expected a rate above zero and a latency from zero up"
            )

    @property
    def words(self) -> str:
        """Its rate and latency, for people."""
        rate, latency = format_si(self.byte_per_s, "B/s"), self.latency_s / MICROSECOND_S
        return f"{rate} one way, {latency:.3g} µs per hop"


class Cluster(Struct, frozen=True, kw_only=True):
    """So many accelerators of one kind, `node_size` to a node.

    node_size: accelerators connected by the fast links (an NVLink domain, a TPU pod), which may span hosts.
    intra: the link inside a node, all lanes of one accelerator together; in a mesh each peer has a part.
    inter: an accelerator's share of its node's network cards, of which there are num_nics.
    shared_host_byte_per_s: of all accelerators of a node together, where their traffic has to pass the host.
    switch_reduces: whether the switch inside the node adds up what it carries (NVLink SHARP).
    keeps_order: whether messages between nodes arrive as they were sent (not so over EFA and TCP).
    bridged: accelerators that one bridge joins where topology is bridge; beyond it they meet in the host.
    links_between: rows of how many links join each accelerator of a node to each one, where rings of some
    have fewer than others; empty where they have as many.
    oversubscription: rate into a leaf switch over the rate out of it: beyond the leaf_nodes nodes that one
    joins (with rails: those of one rail's switch), an accelerator has so much less of inter.
    num_cores: of the processors of a node's hosts together, which decode and feed samples.
    unstated: facts of the network that nothing states; inter is then the link inside, and of no use.
    """

    accelerator: Accelerator
    num_accelerators: int
    node_size: int
    intra: Link
    inter: Link
    topology: Topology = "switch"
    switch_reduces: bool = False
    keeps_order: bool = True
    num_nics: int | None = None
    num_cores: int | None = None
    shared_host_byte_per_s: float | None = None
    bridged: int = 2
    links_between: tuple[str, ...] = ()
    oversubscription: float = 1.0
    leaf_nodes: int = 1
    unstated: tuple[str, ...] = ()
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse clusters without accelerators."""
        for name in ("node_size", "num_accelerators", "bridged", "leaf_nodes", "oversubscription"):
            if not getattr(self, name) >= 1:
                raise SpecError(f"cluster: {name}={getattr(self, name)}; expected at least 1")
        if self.topology not in TOPOLOGIES:
            raise SpecError(f"cluster: topology={self.topology!r}; expected {' or '.join(TOPOLOGIES)}")
        try:
            counts = _link_counts(self.links_between)
        except ValueError as err:
            raise SpecError(f"cluster: links_between={self.links_between!r}; expected whole numbers") from err
        if counts and (
            self.topology != "mesh"
            or {len(counts), *map(len, counts)} != {max(len(counts), self.node_size)}
            or counts != tuple(zip(*counts, strict=True))
        ):
            raise SpecError(
                f"cluster: links_between of {len(counts)} rows, topology={self.topology!r}; expected, with "
                f"topology mesh, at least {self.node_size} rows of as many numbers, symmetric"
            )

    def expect_network(self, num_accelerators: int) -> None:
        """Raise SpecError where so many are more than a node, and nothing states what joins nodes."""
        if self.unstated and num_accelerators > self.node_size:
            raise _missing(
                self.accelerator,
                self.unstated,
                remedy=f", or ask for at most {self.node_size} accelerators, one node",
            )

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.num_accelerators // self.node_size)

    @property
    def beyond_bridge_byte_per_s(self) -> float:
        """An accelerator's rate to those of its node that no bridge joins it to; else that of intra.

        Assumes that accelerators reach each other through their slots.
        """
        host = self.accelerator.host_byte_per_s
        if self.topology != "bridge" or self.node_size <= self.bridged or host is None:
            return self.intra.byte_per_s
        return min(host, self.intra.byte_per_s)

    def group_byte_per_s(self, size: int, stride: int) -> float:
        """An accelerator's rate in rings through `size` of a node that are `stride` apart, the slowest such.

        Assumes that where links join them to no ring, they meet in the host; groups that do not fit into the
        node leave it, and those that do not divide it are its first accelerators.
        Source: NCCL's rings: disjoint, each of one link a rank and direction (`ring_links`).
        """
        rate, num = self.intra.byte_per_s, self.node_size
        if not self.links_between or size * stride > num:
            return rate
        links = _link_counts(self.links_between)
        last = num - (size - 1) * stride if num % (size * stride) == 0 else stride
        groups = [
            tuple(range(first, first + size * stride, stride))
            for first in range(last)
            if first // stride % size == 0
        ]
        used = min(ring_links(links, group) for group in groups)
        host = self.accelerator.host_byte_per_s or rate
        return rate * used / max(map(sum, links)) if used else min(host, rate)


class NodeFacts(TypedDict, total=False):
    """What a caller may state about a node in place of what the tables state."""

    node_size: int
    num_nics: int
    num_cores: int
    intra_byte_per_s: float
    intra_latency_s: float
    inter_byte_per_s: float
    inter_latency_s: float
    topology: Topology
    switch_reduces: bool
    keeps_order: bool
    shared_host_byte_per_s: float
    bridged: int
    links_between: tuple[str, ...]
    oversubscription: float
    leaf_nodes: int


_NODE_FACTS = tuple(NodeFacts.__annotations__)
_NEEDED = (
    "node_size",
    "intra_byte_per_s",
    "intra_latency_s",
    "inter_byte_per_s",
    "inter_latency_s",
    "topology",
)


class System(Struct, frozen=True, kw_only=True):
    """A kind of machine, without a size: its accelerators, and how its nodes differ from the usual.

    accelerators: slugs; the first is meant unless another is named. None: as the accelerator usually sits.
    """

    slug: str
    title: str
    accelerators: tuple[str, ...]
    source: str
    confidence: Confidence
    node_size: int | None = None
    num_nics: int | None = None
    num_cores: int | None = None
    intra_byte_per_s: LinkRate | None = None
    intra_latency_s: Latency | None = None
    inter_byte_per_s: LinkRate | None = None
    inter_latency_s: Latency | None = None
    topology: Topology | None = None
    switch_reduces: bool | None = None
    keeps_order: bool | None = None
    shared_host_byte_per_s: LinkRate | None = None
    bridged: int | None = None
    links_between: tuple[str, ...] | None = None
    oversubscription: float | None = None
    leaf_nodes: int | None = None
    aliases: tuple[str, ...] = ()


class Systems(Struct, frozen=True, kw_only=True):
    """The named systems and every spelling that leads to them. Built by `load_systems`; read-only.

    hardware: the accelerators that they consist of.
    """

    by_slug: Mapping[str, System]
    names: Mapping[str, str]
    hardware: Hardware

    def find(self, name: str) -> System | None:
        """The system of a slug, title or alias; None when the table does not have it."""
        slug = self.names.get(canonical(name))
        return None if slug is None else self.by_slug[slug]

    def cluster(
        self,
        name: str,
        *,
        num_accelerators: int | None = None,
        power_cap_w: float | None = None,
        **stated: Unpack[NodeFacts],
    ) -> Cluster:
        """A cluster of so many accelerators (one node unless given): facts as stated, else as in the tables.

        name: a system (`dgx-h100`), or an accelerator, which then sits in its usual node, or several with `+`
        between them (`rtx 3090+rtx 4090`: equal numbers, equal shares of the work); accelerators by any name
        that `Hardware.find` reads. power_cap_w: of each.
        Raises SpecError with the nearest names and the file to edit, or with the facts that are missing.
        """
        found = self.find(name)
        chip = self.chip_of(name)
        if chip is None:
            complaint = f"{shown(name)} is not a known accelerator or system"
            raise unknown_name(complaint, self.near_systems(name), kind="accelerators", edit=EDIT)
        node = found or usual_system(chip, stated.get("topology"))
        whole = build_cluster(node, accelerator=chip, num_accelerators=num_accelerators, **stated)
        if power_cap_w is None:
            return whole
        return replace(whole, accelerator=capped(whole.accelerator, power_cap_w))

    def near_systems(self, name: str) -> list[str]:
        """Up to five accelerators and systems that may have been meant."""
        close = [self.names[each] for each in close_names(name, self.names, cutoff=NEAR)]
        return list(dict.fromkeys((*self.hardware.near(name)[:3], *close)))[:5]

    def chip_of(self, name: str) -> Accelerator | None:
        """The accelerator of a name as `cluster` reads it; None for what is neither it nor a system.

        Raises SpecError, naming the candidates, where it may mean several.
        """
        system = self.find(name)
        chip = self.hardware.accelerators[system.accelerators[0]] if system else self.hardware.find(name)
        parts = () if chip is not None else tuple(map(self.hardware.find, name.split("+")))
        if len(parts) > 1 and all(parts):
            return mixture(tuple(part for part in parts if part is not None))
        return chip


def cluster(
    name: str,
    *,
    num_accelerators: int | None = None,
    power_cap_w: float | None = None,
    **stated: Unpack[NodeFacts],
) -> Cluster:
    """A cluster of the shipped tables; see `Systems.cluster`.

    >>> cluster("dgx-h100", num_accelerators=64).num_nodes
    8
    >>> cluster("NVIDIA A100-SXM4-80GB (400W)", num_accelerators=16, node_size=4).num_nodes
    4
    """
    known = shipped_systems()
    return known.cluster(name, num_accelerators=num_accelerators, power_cap_w=power_cap_w, **stated)


def build_cluster(
    system: System,
    *,
    accelerator: Accelerator,
    num_accelerators: int | None = None,
    **stated: Unpack[NodeFacts],
) -> Cluster:
    """So many accelerators in nodes of a system: facts as stated, else the system's, else the accelerator's.

    accelerator: one of those the system comes with.
    Raises SpecError naming every fact that none of the three states.
    """
    chip = accelerator
    described, system = system, replace(system, **stated)
    node = _node_of(_facts(described), _facts(usual_system(chip, system.topology)))
    node = _node_of({**dict.fromkeys(_NODE_FACTS), **stated}, node)
    size = node["node_size"]
    count = size if num_accelerators is None else num_accelerators
    unstated = tuple(field for field in ("inter_byte_per_s", "inter_latency_s") if node[field] is None)
    if size is not None and count is not None and count <= size:  # nothing leaves the node: any link will do
        node["inter_byte_per_s"] = node["inter_byte_per_s"] or node["intra_byte_per_s"]
        node["inter_latency_s"] = node["inter_latency_s"] or node["intra_latency_s"]
    if size == 1 and count == 1:  # it exchanges with nobody: any rate will do
        node["inter_byte_per_s"] = node["inter_byte_per_s"] or chip.memory_byte_per_s
        node["inter_latency_s"] = node["inter_latency_s"] or node["intra_latency_s"] or 0.0
    if size == 1:  # nothing stays in the node
        node["intra_byte_per_s"] = node["intra_byte_per_s"] or node["inter_byte_per_s"]
        node["intra_latency_s"] = node["intra_latency_s"] or node["inter_latency_s"]
        node["topology"] = node["topology"] or "host"
    missing = [field for field in _NEEDED if node[field] is None]
    if missing:
        raise _missing(chip, missing)
    intra = Link(byte_per_s=node["intra_byte_per_s"], latency_s=node["intra_latency_s"])
    inter = Link(byte_per_s=node["inter_byte_per_s"], latency_s=node["inter_latency_s"])
    return Cluster(
        accelerator=chip,
        num_accelerators=count,
        node_size=size,
        intra=intra,
        inter=inter,
        topology=node["topology"],
        switch_reduces=bool(node["switch_reduces"]),
        keeps_order=node["keeps_order"] is not False,
        num_nics=node["num_nics"],
        num_cores=node["num_cores"],
        shared_host_byte_per_s=node["shared_host_byte_per_s"],
        bridged=2 if node["bridged"] is None else node["bridged"],
        links_between=_kept_links(node["links_between"], node),
        oversubscription=node["oversubscription"] or 1.0,
        leaf_nodes=node["leaf_nodes"] or 1,
        unstated=unstated,
        name=system.slug,
        source=system.source,
    )


def _facts(system: System) -> dict[str, Any]:
    return {field: getattr(system, field) for field in _NODE_FACTS}


def _node_of(stated: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a node: as stated, else as usual; an accelerator has its share of the network cards.

    Where a usual node has a card for each accelerator, so has this one. Else it has the cards of the usual
    one, at most one for each accelerator, which more or fewer share.
    """
    node = {field: usual[field] if value is None else value for field, value in stated.items()}
    size, usual_size, num_nics = node["node_size"], usual["node_size"], usual["num_nics"]
    if size == usual_size or None in {size, usual_size, num_nics} or stated["inter_byte_per_s"] is not None:
        return node
    num_cards = stated["num_nics"] or (size if num_nics == usual_size else min(num_nics, size))
    node["num_nics"] = num_cards
    if usual["inter_byte_per_s"] is not None and num_cards * usual_size != num_nics * size:
        node["inter_byte_per_s"] = usual["inter_byte_per_s"] * usual_size * num_cards / (num_nics * size)
    return node


def _missing(chip: Accelerator, facts: Sequence[str], *, remedy: str = "") -> SpecError:
    """The error that names facts of an accelerator's node that nothing states."""
    return SpecError(
        f"cluster of {chip.slug}: {', '.join(facts)} missing; add to [accelerator.{chip.slug}] in {EDIT} "
        "(there intra_byte_per_s is link_byte_per_s, or host_byte_per_s where topology is host)",
        remedy=remedy,
    )


def _kept_links(rows: tuple[str, ...] | None, node: Mapping[str, Any]) -> tuple[str, ...]:
    """The links of a system, unless a caller's node is of another topology or larger."""
    if rows is None or node["topology"] != "mesh" or node["node_size"] > len(rows):
        return ()
    return rows


def usual_system(chip: Accelerator, topology: Topology | None) -> System:
    """The node an accelerator usually sits in; where its host joins it to others, with the rate of that path.

    topology: what joins the accelerators, where it is not what is usual.
    """
    joins = topology or chip.topology
    rates = {"host": chip.host_byte_per_s, "bridge": chip.bridge_byte_per_s or chip.link_byte_per_s}
    return System(
        slug=chip.slug,
        title=f"usual node of {chip.title}",
        accelerators=(chip.slug,),
        source=chip.node_source or chip.source,
        confidence=chip.confidence,
        node_size=chip.node_size,
        num_nics=chip.num_nics,
        intra_byte_per_s=rates.get(joins or "switch", chip.link_byte_per_s),
        intra_latency_s=chip.intra_latency_s,
        inter_byte_per_s=chip.inter_byte_per_s,
        inter_latency_s=chip.inter_latency_s,
        topology=joins,
        switch_reduces=chip.switch_reduces,
        keeps_order=chip.keeps_order,
    )


_MIXTURE_RATES = (
    "memory_byte_per_s",
    *(f"peak_{dtype}_flop_per_s" for dtype in DTYPES),
    *(f"achieved_{dtype}_flop_per_s" for dtype in ("bf16", "fp16", "fp32")),
    "link_byte_per_s",
    "host_byte_per_s",
    "bridge_byte_per_s",
    "inter_byte_per_s",
)
_MIXTURE_COUNTS = ("memory_bytes", "node_size", "num_nics")
_LATENCIES = ("intra_latency_s", "inter_latency_s")


def mixture(chips: tuple[Accelerator, ...]) -> Accelerator:
    """One accelerator that stands for equal numbers of several: the least of each rate and size, mean power.

    Its shares of peaks are those that give the least rate that any of them reaches.

    Assumes equal shares of the work, so that the slowest sets the pace; what one does not state is unknown.
    Source: definition of synchronous training.
    """
    if len({chip.slug for chip in chips}) == 1:
        return chips[0]
    facts: dict[str, object] = {}
    for names, least in ((_MIXTURE_RATES, min), (_MIXTURE_COUNTS, min), (_LATENCIES, max)):
        facts |= {name: _of_all(chips, name, least) for name in names}
    hosted = any(chip.topology == "host" for chip in chips)
    title = " + ".join(chip.title for chip in chips)
    return Accelerator(
        slug="+".join(chip.slug for chip in chips),
        title=title,
        vendor=" + ".join(dict.fromkeys(chip.vendor for chip in chips)),
        kind=chips[0].kind,
        source=f"the lowest of each value of {title}",
        confidence=max((chip.confidence for chip in chips), key=CONFIDENCES.index),
        power_w=_of_all(chips, "power_w", fmean),
        topology="host" if hosted else chips[0].topology,
        switch_reduces=all(chip.switch_reduces for chip in chips),
        keeps_order=all(chip.keeps_order is not False for chip in chips),
        for_desktops=all(chip.for_desktops for chip in chips),
        shares_host_memory=any(chip.shares_host_memory for chip in chips),
        usable_memory_fraction=min(chip.usable_memory_fraction or 1.0 for chip in chips),
        asynchronous_products=min(chip.asynchronous_products or 0 for chip in chips),
        grace_host=any(chip.grace_host for chip in chips),
        lacks_compiler=any(chip.lacks_compiler for chip in chips),
        node_source=chips[0].node_source,
        ordered_fraction=_share_of_least(chips, "achievable_fraction", NARROW_DTYPES),
        ordered_fp32_fraction=_share_of_least(chips, "achievable_fp32_fraction", ("fp32",)),
        **facts,  # type: ignore[arg-type]  # numbers, by name
    )


def _share_of_least(chips: tuple[Accelerator, ...], share: str, dtypes: tuple[Dtype, ...]) -> float:
    """The share of the lowest peak at which the lowest rate of several accelerators lies.

    The least over the types that all of them state; the lowest share of any where there is no such type.
    """
    shares: list[float] = [getattr(chip, share) for chip in chips]
    stated = [[rate for chip in chips if (rate := chip.peak_flop_per_s(each))] for each in dtypes]
    common = [peaks for peaks in stated if len(peaks) == len(chips)]
    return min((min(map(mul, each, shares)) / min(each) for each in common), default=min(shares))


def _of_all(
    chips: tuple[Accelerator, ...], name: str, combine: Callable[[Iterable[float]], float]
) -> float | None:
    """One figure of several accelerators; None where one of them does not state it."""
    stated = [getattr(chip, name) for chip in chips]
    return None if None in stated else combine(stated)


@cache
def shipped_systems() -> Systems:
    """The shipped table."""
    return load_systems((), shipped_hardware())


def load_systems(extra: Sequence[Path], known: Hardware) -> Systems:
    """The shipped table and then the given files; of two statements on a field or name the later wins.

    known: the accelerators that systems may consist of.
    Raises SpecError with file and line if a file is not such a table.
    """
    table: dict[str, System] = {}
    names: dict[str, str] = {}
    for path in (CLUSTERS_FILE, *extra):
        owners: dict[str, str] = {}
        for block in read_blocks(path, BLOCK_KINDS):
            if block.kind != "cluster":
                continue
            found = _system(block, table.get(block.slug), known)
            table[found.slug] = found
            for spelling in (found.slug, found.title, *block.texts("aliases")):
                names[claim_name(block, spelling, found.slug, owners)] = found.slug
    return Systems(by_slug=table, names=names, hardware=known)


def _system(block: FactBlock, known: System | None, chips: Hardware) -> System:
    """The system a block describes; fields it does not state are kept from an earlier file."""
    found = block.read(System, known, given={"slug": block.slug})
    return replace(found, accelerators=tuple(chips.accelerator(name).slug for name in found.accelerators))
